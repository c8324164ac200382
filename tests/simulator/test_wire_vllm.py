"""vLLM's bytes, compared with lines recorded from a running vLLM 0.32.0."""

from __future__ import annotations

import msgspec
import pytest

from simulator import wire_vllm
from simulator.answer import DONE, Choice, Head, Usage
from simulator.intake import Rejected, read

FINGERPRINT = "vllm-0.32.0-216cf4a3"


def head(*, chat: bool = True, include_usage: bool = False, name: str = "chatcmpl-my-req-1") -> Head:
    return Head(
        ids=(name, name),
        chat=chat,
        model="tiny",
        created_s=1796082118,
        fingerprint=FINGERPRINT,
        include_usage=include_usage,
    )


def usage(completion: int, *, prompt: int = 13, cached: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


CHAT = b'data: {"id":"chatcmpl-my-req-1","object":"chat.completion.chunk","created":1796082118,"model":"tiny",'
TEXT = b'data: {"id":"cmpl-b90f6398","object":"text_completion","created":1796082118,"model":"tiny",'


def test_chat_stream_without_usage() -> None:
    stream = wire_vllm.stream(head())
    assert [
        *stream.opening(0, None),
        stream.delta(0, "flavour", None),
        *stream.closing(0, " get", "length", None, None),
        *stream.ending(usage(2)),
    ] == [
        CHAT + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"content":"flavour"},"logprobs":null,"finish_reason":null,'
        b'"token_ids":null}]}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"content":" get"},"logprobs":null,"finish_reason":"length",'
        b'"stop_reason":null,"token_ids":null}],"system_fingerprint":"vllm-0.32.0-216cf4a3"}\n\n',
        DONE,
    ]


def test_chat_stream_with_continuous_usage() -> None:
    stream = wire_vllm.stream(head(include_usage=True))
    assert [
        *stream.opening(0, usage(0)),
        stream.delta(0, " rules", usage(1)),
        *stream.closing(0, "num", "stop", "\n", usage(3)),
        *stream.ending(usage(3)),
    ] == [
        CHAT + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],"usage":{"prompt_tokens":13,"total_tokens":13,"completion_tokens":0,'
        b'"completion_tokens_details":null},"prompt_token_ids":null,"prompt_text":null}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"content":" rules"},"logprobs":null,"finish_reason":null,'
        b'"token_ids":null}],"usage":{"prompt_tokens":13,"total_tokens":14,"completion_tokens":1,'
        b'"completion_tokens_details":null}}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"content":"num"},"logprobs":null,"finish_reason":"stop",'
        b'"stop_reason":"\\n","token_ids":null}],"usage":{"prompt_tokens":13,"total_tokens":16,'
        b'"completion_tokens":3,"completion_tokens_details":null}}\n\n',
        CHAT + b'"choices":[],"usage":{"prompt_tokens":13,"total_tokens":16,"completion_tokens":3},'
        b'"system_fingerprint":"vllm-0.32.0-216cf4a3"}\n\n',
        DONE,
    ]


def test_usage_reports_cached_tokens_when_told_to() -> None:
    last = wire_vllm.stream(head(include_usage=True)).ending(usage(4, cached=0))[0]
    assert last == (
        CHAT + b'"choices":[],"usage":{"prompt_tokens":13,"total_tokens":17,"completion_tokens":4,'
        b'"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}},'
        b'"system_fingerprint":"vllm-0.32.0-216cf4a3"}\n\n'
    )


def test_completions_stream() -> None:
    stream = wire_vllm.stream(head(chat=False, name="cmpl-b90f6398"))
    assert stream.opening(0, None) == []
    assert stream.delta(1, " go", None) == (
        TEXT + b'"choices":[{"index":1,"text":" go","logprobs":null,"finish_reason":null,"stop_reason":null,'
        b'"prompt_token_ids":null,"token_ids":null}]}\n\n'
    )
    assert stream.closing(1, " offset", "length", None, None) == [
        TEXT + b'"choices":[{"index":1,"text":" offset","logprobs":null,"finish_reason":"length",'
        b'"stop_reason":null,"prompt_token_ids":null,"token_ids":null}],'
        b'"system_fingerprint":"vllm-0.32.0-216cf4a3"}\n\n'
    ]
    assert stream.delta(0, "x", usage(1, prompt=2)).endswith(
        b'"usage":{"prompt_tokens":2,"total_tokens":3,"completion_tokens":1}}\n\n'
    )


def test_whole_answers() -> None:
    choice = Choice(text=" Message Syntax drivepython", tokens=4, reason="length", stop=None)
    assert wire_vllm.body(head(name="chatcmpl-my-req-3"), [choice], usage(4)) == (
        b'{"id":"chatcmpl-my-req-3","object":"chat.completion","created":1796082118,"model":"tiny","choices":'
        b'[{"index":0,"message":{"role":"assistant","content":" Message Syntax drivepython","refusal":null,'
        b'"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,'
        b'"finish_reason":"length","stop_reason":null,"token_ids":null,"routed_experts":null}],'
        b'"service_tier":null,"system_fingerprint":"vllm-0.32.0-216cf4a3","usage":{"prompt_tokens":13,'
        b'"total_tokens":17,"completion_tokens":4,"prompt_tokens_details":null,'
        b'"completion_tokens_details":null},"prompt_logprobs":null,"prompt_token_ids":null,'
        b'"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
    )
    text = Choice(text="names putSend o", tokens=4, reason="length", stop=None)
    assert wire_vllm.body(head(chat=False, name="cmpl-b9bf"), [text], usage(4, prompt=2)) == (
        b'{"id":"cmpl-b9bf","object":"text_completion","created":1796082118,"model":"tiny","choices":'
        b'[{"index":0,"text":"names putSend o","logprobs":null,"finish_reason":"length","stop_reason":null,'
        b'"token_ids":null,"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],'
        b'"service_tier":null,"system_fingerprint":"vllm-0.32.0-216cf4a3","usage":{"prompt_tokens":2,'
        b'"total_tokens":6,"completion_tokens":4,"prompt_tokens_details":null,'
        b'"completion_tokens_details":null},"kv_transfer_params":null,"ec_transfer_params":null,'
        b'"metrics":null}'
    )


def rejected(body: object, *, content_type: str = "application/json", chat: bool = True) -> tuple[int, bytes]:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    with pytest.raises(Rejected) as caught:
        read(raw, content_type, chat=chat, rules=wire_vllm.RULES, model="tiny", max_model_tokens=16384)
    return wire_vllm.rejection(caught.value)


HELLO = [{"role": "user", "content": "hi"}]
LONG = [{"role": "user", "content": "hi " * 40_000}]


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (
            {"messages": LONG},
            400,
            (
                b'{"error":{"message":"This model\'s maximum context length is 16384 tokens. However, your prompt '
                b"contains at least 16385 input tokens, which exceeds this limit even without any output tokens. "
                b'Please reduce the length of the input prompt. (parameter=input_tokens, value=16385)",'
                b'"type":"BadRequestError","param":"input_tokens","code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "max_tokens": 99999},
            400,
            (
                b'{"error":{"message":"max_tokens=99999 cannot be greater than max_model_len=16384. Please request '
                b'fewer output tokens. (parameter=max_tokens, value=99999)","type":"BadRequestError",'
                b'"param":"max_tokens","code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "model": "nope"},
            404,
            (
                b'{"error":{"message":"The model `nope` does not exist. Valid aliases: tiny.",'
                b'"type":"NotFoundError","param":"model","code":404}}'
            ),
        ),
        (
            b'{"model":',
            400,
            (
                b"{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'json_invalid', 'loc': 'body.9', "
                b"'msg': 'JSON decode error', 'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting value'}}\","
                b'"type":"Bad Request","param":"body.9","code":400}}'
            ),
        ),
        (
            {"model": "tiny"},
            400,
            (
                b"{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'missing', 'loc': 'body.messages', "
                b"'msg': 'Field required', 'input': '<dict of 1 items>'}\",\"type\":\"Bad Request\","
                b'"param":"body.messages","code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "temperature": "hot"},
            400,
            (
                b"{\"error\":{\"message\":\"1 validation error:\\n  {'type': 'float_parsing', 'loc': "
                b"'body.temperature', 'msg': 'Input should be a valid number, unable to parse string as a number', "
                b'\'input\': \'hot\'}","type":"Bad Request","param":"body.temperature","code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "temperature": -1},
            400,
            (
                b'{"error":{"message":"temperature must be non-negative, got -1.0. (parameter=temperature, '
                b'value=-1.0)","type":"BadRequestError","param":"temperature","code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "max_tokens": 0},
            400,
            (
                b'{"error":{"message":"max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",'
                b'"type":"BadRequestError","param":"max_tokens","code":400}}'
            ),
        ),
        (
            {"messages": []},
            400,
            (
                b'{"error":{"message":"Cannot apply chat template to an empty conversation. Provide at least one '
                b'message.","type":"BadRequestError","param":null,"code":400}}'
            ),
        ),
        (
            {"messages": HELLO, "stream_options": {"include_usage": True}},
            400,
            (
                b'{"error":{"message":"Stream options can only be defined when `stream=True`. '
                b'(parameter=stream_options)","type":"BadRequestError","param":"stream_options","code":400}}'
            ),
        ),
    ],
)
def test_errors_are_those_recorded(body: object, status: int, error: bytes) -> None:
    assert rejected(body) == (status, error)


def test_wrong_content_type() -> None:
    assert rejected({"messages": HELLO}, content_type="text/plain") == (
        400,
        (
            b'{"error":{"message":"1 validation error:\\n  Unsupported Media Type: Only \'application/json\' is '
            b'allowed","type":"Bad Request","param":null,"code":400}}'
        ),
    )


def test_errors_without_a_recording_name_the_parameter() -> None:
    _, total = rejected({"messages": HELLO, "max_tokens": 16384})
    assert b'"param":"input_tokens"' in total
    assert b"you requested 16384 output tokens and your prompt contains 11" in total
    _, least = rejected({"messages": HELLO, "max_tokens": 4, "min_tokens": 5})
    assert b"(parameter=min_tokens, value=5)" in least
    _, several = rejected({"messages": [{}], "n": 0, "stop": [[1]]})
    assert several.startswith(b'{"error":{"message":"4 validation errors:\\n  {\'type\':')


def test_a_full_queue_inside_a_stream() -> None:
    assert wire_vllm.stream_rejection(Rejected("queue_full")) == (
        b'data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please try '
        b'again later or on a different instance.", "type": "Service Unavailable", "param": null, '
        b'"code": 503}}\n\n'
    )


def test_ids_come_from_the_header_then_the_body_then_chance() -> None:
    def ids(chat: bool, header: str | None, **more: object) -> tuple[str, ...]:
        body = {"messages": HELLO, "prompt": "hi", **more}
        generation = read(
            msgspec.json.encode(body),
            "application/json",
            chat=chat,
            rules=wire_vllm.RULES,
            model="tiny",
            max_model_tokens=100,
        )
        return wire_vllm.answer_ids(generation, header, 2)

    assert ids(True, "a", request_id="b") == ("chatcmpl-a", "chatcmpl-a")
    assert ids(False, None, request_id="b") == ("cmpl-b", "cmpl-b")
    first, second = ids(True, None)
    assert first == second
    assert len(first) == len("chatcmpl-") + 16
