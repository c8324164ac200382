"""vLLM as the gateway sees it (`vllm serve`, checked against 0.32).

`/health` tells only that the engine process is alive; it answers at once.
"""

from gateway.model import EngineKind

VLLM = EngineKind(name="vllm", health_path="/health", prefill=True)
