"""The engine kinds a pool may name."""

from gateway.engines.openai import OPENAI
from gateway.engines.sglang import SGLANG
from gateway.engines.vllm import VLLM

ENGINES = {kind.name: kind for kind in (VLLM, SGLANG, OPENAI)}
