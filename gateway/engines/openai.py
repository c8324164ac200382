"""Any other server that speaks the OpenAI API: nothing may be assumed but `/v1/models`."""

from gateway.model import EngineKind

OPENAI = EngineKind(name="openai", health_path="/v1/models", prefill=False, load=None)
