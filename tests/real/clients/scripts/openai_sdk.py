"""The OpenAI SDK: openai_sdk.py BASE_URL MODEL"""

import sys

import openai
from checks import MESSAGES, TOKENS, refused, run

url, model = sys.argv[1:]
client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
common = {"model": model, "messages": MESSAGES, "max_tokens": TOKENS, "temperature": 0}


def text() -> str:
    return client.chat.completions.create(**common).choices[0].message.content


def chat() -> None:
    answer = client.chat.completions.create(**common)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= TOKENS


def stream_equals_whole() -> None:
    chunks = list(client.chat.completions.create(**common, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == text()
    assert all(chunk.usage is None for chunk in chunks)


def stream_with_usage() -> None:
    *_, last = client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
    assert last.usage.prompt_tokens > 0
    assert not last.choices


def completions() -> None:
    answer = client.completions.create(model=model, prompt="def main(", max_tokens=TOKENS, temperature=0)
    assert answer.choices[0].text


def responses() -> None:
    answer = client.responses.create(model=model, input="Tell me of rivers.", max_output_tokens=TOKENS)
    assert answer.output_text


def responses_stream() -> None:
    events = list(
        client.responses.create(model=model, input="Tell me of rivers.", max_output_tokens=TOKENS, stream=True)
    )
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


def log_probabilities() -> None:
    answer = client.chat.completions.create(**common, logprobs=True, top_logprobs=2)
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def unknown_model() -> None:
    refused(lambda: client.chat.completions.create(**{**common, "model": "gpt-9"}), openai.NotFoundError, "gpt-9")


def bad_value() -> None:
    refused(
        lambda: client.chat.completions.create(**{**common, "temperature": -1}), openai.BadRequestError, "temperature"
    )


def leaving_a_stream() -> None:
    stream = client.chat.completions.create(**{**common, "max_tokens": 2000}, stream=True)
    next(iter(stream))
    stream.close()


def timeout() -> None:
    refused(
        lambda: client.with_options(timeout=0.02).chat.completions.create(**{**common, "max_tokens": 2000}),
        openai.APITimeoutError,
        "",
    )


def models() -> None:
    assert [one.id for one in client.models.list()] == [model]
    assert client.models.retrieve(model).id == model


run(
    [
        *(chat, stream_equals_whole, stream_with_usage, completions, responses, responses_stream, log_probabilities),
        *(unknown_model, bad_value, leaving_a_stream, timeout, models),
    ]
)
