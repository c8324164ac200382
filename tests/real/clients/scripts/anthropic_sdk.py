"""The Anthropic SDK on /v1/messages: anthropic_sdk.py BASE_URL MODEL"""

import sys

import anthropic
from checks import MESSAGES, TOKENS, refused, run

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
common = {"model": model, "messages": MESSAGES, "max_tokens": TOKENS, "extra_body": {"temperature": 0}}


def messages() -> None:
    answer = client.messages.create(**common)
    assert answer.content[0].text
    assert answer.usage.output_tokens <= TOKENS


def stream_equals_whole() -> None:
    with client.messages.stream(**common) as stream:
        streamed = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert streamed == client.messages.create(**common).content[0].text
    assert final.usage.output_tokens > 0


def count_tokens() -> None:
    assert client.messages.count_tokens(model=model, messages=MESSAGES).input_tokens > 0


def unknown_model() -> None:
    refused(lambda: client.messages.create(**{**common, "model": "claude-9"}), anthropic.NotFoundError, "claude-9")


def leaving_a_stream() -> None:
    with client.messages.stream(**{**common, "max_tokens": 2000}) as stream:
        next(iter(stream.text_stream))


run([messages, stream_equals_whole, count_tokens, unknown_model, leaving_a_stream])
