"""The LiteLLM SDK: litellm_sdk.py BASE_URL MODEL"""

import sys

import litellm
from checks import MESSAGES, TOKENS, refused, run

url, model = sys.argv[1:]
litellm.num_retries = 0
common = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none", "messages": MESSAGES}
common |= {"max_tokens": TOKENS, "temperature": 0}


def completion() -> None:
    answer = litellm.completion(**common)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= TOKENS


def stream_equals_whole() -> None:
    chunks = list(litellm.completion(**common, stream=True))
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert streamed == litellm.completion(**common).choices[0].message.content


def unknown_model() -> None:
    refused(lambda: litellm.completion(**{**common, "model": "openai/gpt-9"}), litellm.NotFoundError, "gpt-9")


run([completion, stream_equals_whole, unknown_model])
