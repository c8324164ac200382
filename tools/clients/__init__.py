"""Unmodified clients of the OpenAI and Anthropic APIs, each in an environment of its own. For tests only."""
