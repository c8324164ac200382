"""SGLang as the gateway sees it (`sglang.launch_server`, checked against 0.5.23).

`/health` runs a generation and takes a second or more by design; `/ready` answers at once.
"""

from gateway.model import EngineKind

SGLANG = EngineKind(name="sglang", health_path="/ready", prefill=True)
