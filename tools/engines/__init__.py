"""Real vLLM and SGLang on a machine without a GPU: their environments, a small model, their life. For tests only."""
