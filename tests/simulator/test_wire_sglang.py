"""SGLang's bytes, compared with lines recorded from a running SGLang 0.5.23."""

from __future__ import annotations

import msgspec
import pytest

from simulator import wire_sglang
from simulator.answer import DONE, Choice, Head, Usage
from simulator.intake import Generation, Rejected, read


def head(*, chat: bool = True, include_usage: bool = False, ids: tuple[str, ...] = ("my-rid-2",)) -> Head:
    return Head(ids=ids, chat=chat, model="tiny", created_s=1796083313, fingerprint="", include_usage=include_usage)


def usage(completion: int, *, prompt: int = 13, cached: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


CHAT = b'data: {"id":"my-rid-2","object":"chat.completion.chunk","created":1796083313,"model":"tiny",'
COUNTS = (
    b'{"prompt_tokens":13,"total_tokens":16,"completion_tokens":3,"prompt_tokens_details":null,'
    b'"reasoning_tokens":0,"completion_tokens_details":null}'
)


def test_chat_stream() -> None:
    stream = wire_sglang.stream(head())
    assert [
        *stream.opening(0, None),
        stream.delta(0, "bigsection", None),
        *stream.closing(0, "", "length", None, None),
        *stream.ending(usage(2)),
    ] == [
        CHAT + b'"choices":[{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},'
        b'"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"reasoning_content":null,"content":"bigsection"},'
        b'"logprobs":null,"finish_reason":null,"matched_stop":null}]}\n\n',
        CHAT + b'"choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,'
        b'"finish_reason":"length","matched_stop":null}]}\n\n',
        DONE,
    ]


def test_chat_stream_with_continuous_usage() -> None:
    stream = wire_sglang.stream(head(include_usage=True))
    assert b"usage" not in stream.opening(0, usage(0))[0]
    assert stream.closing(0, " objects`.", "stop", "x", usage(3)) == [
        CHAT + b'"choices":[{"index":0,"delta":{"reasoning_content":null,"content":" objects`."},'
        b'"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":' + COUNTS + b"}\n\n",
        CHAT + b'"choices":[{"index":0,"delta":{"reasoning_content":null},"logprobs":null,'
        b'"finish_reason":"stop","matched_stop":"x"}]}\n\n',
    ]
    assert stream.ending(usage(3)) == [CHAT + b'"choices":[],"usage":' + COUNTS + b"}\n\n", DONE]
    assert b'"prompt_tokens_details":{"cached_tokens":21}' in stream.ending(usage(3, cached=21))[0]


def test_completions_stream_gives_each_choice_its_id() -> None:
    stream = wire_sglang.stream(head(chat=False, ids=("6be0", "afae"), include_usage=True))
    text = b'data: {"id":"%b","object":"text_completion","created":1796083313,"model":"tiny",'
    assert stream.opening(0, None) == []
    assert stream.delta(1, "gon", None) == (
        text % b"afae" + b'"choices":[{"index":1,"text":"gon","logprobs":null,"finish_reason":null,'
        b'"matched_stop":null}],"usage":null}\n\n'
    )
    assert stream.closing(0, "AC", "length", None, None) == [
        text % b"6be0" + b'"choices":[{"index":0,"text":"AC","logprobs":null,"finish_reason":"length",'
        b'"matched_stop":null}],"usage":null}\n\n'
    ]
    assert stream.ending(usage(3, prompt=2)) == [
        text % b"6be0" + b'"choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"completion_tokens":3,'
        b'"reasoning_tokens":0}}\n\n',
        DONE,
    ]


def test_whole_answers() -> None:
    choice = Choice(text="ytesIO()]epcopylongest", tokens=4, reason="length", stop=None)
    assert wire_sglang.body(head(ids=("b725",)), [choice], usage(4)) == (
        b'{"id":"b725","object":"chat.completion","created":1796083313,"model":"tiny","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"ytesIO()]epcopylongest","reasoning_content":null},'
        b'"logprobs":null,"finish_reason":"length","matched_stop":null}],"usage":{"prompt_tokens":13,'
        b'"total_tokens":17,"completion_tokens":4,"prompt_tokens_details":null,"reasoning_tokens":0,'
        b'"completion_tokens_details":null},"metadata":{"weight_version":"default","weight_versions":'
        b'[{"version":"default","start":0,"end":4}]}}'
    )
    text = Choice(text="domain GNUTYPE modeSt", tokens=4, reason="stop", stop=None)
    assert (
        b'[{"index":0,"text":"domain GNUTYPE modeSt","logprobs":null,"finish_reason":"stop",'
        b'"matched_stop":128009}]' in wire_sglang.body(head(chat=False), [text], usage(4))
    )


def parse(body: object, content_type: str = "application/json") -> Generation:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return read(raw, content_type, chat=True, rules=wire_sglang.RULES, model="tiny", max_model_tokens=16384)


def rejected(body: object, content_type: str = "application/json") -> tuple[int, bytes]:
    with pytest.raises(Rejected) as caught:
        parse(body, content_type)
    return wire_sglang.rejection(caught.value)


HELLO = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (
            {"messages": [{"role": "user", "content": "a " * 40_000}]},
            (
                b'{"object":"error","message":"The input (40011 tokens) is longer than the model\'s context length '
                b'(16384 tokens).","type":"BadRequestError","param":null,"code":400}'
            ),
        ),
        (
            {"messages": HELLO, "max_tokens": 99999},
            (
                b'{"object":"error","message":"max_completion_tokens is too large: 99999.This model supports at '
                b'most 16384 completion tokens.","type":"BadRequestError","param":null,"code":400}'
            ),
        ),
        (
            {"messages": HELLO, "temperature": -1},
            (
                b'{"object":"error","message":"temperature must be a non-negative finite number, got -1.0.",'
                b'"type":"BadRequestError","param":null,"code":400}'
            ),
        ),
        (
            {"messages": []},
            (
                b'{"object":"error","message":"Messages cannot be empty.","type":"BadRequestError","param":null,'
                b'"code":400}'
            ),
        ),
    ],
)
def test_errors_are_those_recorded(body: object, error: bytes) -> None:
    assert rejected(body) == (400, error)


@pytest.mark.parametrize(
    ("body", "listed"),
    [
        (
            {"model": "tiny"},
            (
                "{'type': 'missing', 'loc': ('body', 'messages'), 'msg': 'Field required', "
                "'input': {'model': 'tiny', 'tool_choice': 'none'}}"
            ),
        ),
        (
            {"messages": HELLO, "temperature": "hot"},
            (
                "{'type': 'float_parsing', 'loc': ('body', 'temperature'), 'msg': 'Input should be a valid number, "
                "unable to parse string as a number', 'input': 'hot'}"
            ),
        ),
        (
            b'{"model":',
            (
                "{'type': 'json_invalid', 'loc': ('body', 9), 'msg': 'JSON decode error', 'input': {}, "
                "'ctx': {'error': 'unexpected end of data'}}"
            ),
        ),
        (
            b'{"model"?',
            (
                "{'type': 'json_invalid', 'loc': ('body', 8), 'msg': 'JSON decode error', 'input': {}, "
                "'ctx': {'error': 'unexpected character'}}"
            ),
        ),
    ],
)
def test_validation_errors_are_listed_twice_around_a_place_in_the_code(body: object, listed: str) -> None:
    status, raw = rejected(body)
    error = msgspec.json.decode(raw)
    assert (status, error["type"], error["object"], error["param"]) == (400, "Bad Request", "error", None)
    assert error["message"].startswith(f"1 validation error:\n  {listed}\n\n  File ")
    assert error["message"].endswith(f"POST /v1/chat/completions [{listed}]")


def test_wrong_content_type() -> None:
    assert rejected({"messages": HELLO}, "text/plain") == (
        400,
        (
            b'{"object":"error","message":"1 validation error:\\n  {\'loc\': [\'header\', \'content-type\'], '
            b"'msg': \\\"Unsupported Media Type: Only 'application/json' is allowed\\\", 'type': 'value_error'} "
            b"[{'loc': ['header', 'content-type'], 'msg': \\\"Unsupported Media Type: Only 'application/json' is "
            b'allowed\\", \'type\': \'value_error\'}]","type":"Bad Request","param":null,"code":400}'
        ),
    )


def test_errors_without_a_recording() -> None:
    assert b"max_new_tokens must be at least 0, got -1" in rejected({"messages": HELLO, "max_tokens": -1})[1]
    least = rejected({"messages": HELLO, "max_tokens": 4, "min_tokens": 5})[1]
    assert b"min_new_tokens must be in [0, max_new_tokens(4)], got 5." in least
    status, body = wire_sglang.rejection(Rejected("duplicate_id", request_id="r"))
    assert (status, b"Duplicate request ID detected: r" in body) == (400, True)


def test_what_sglang_lets_pass() -> None:
    lenient = parse({"messages": HELLO, "model": "nope", "max_tokens": 0, "stream_options": {"include_usage": True}})
    assert (lenient.model, lenient.max_tokens, lenient.include_usage) == ("nope", (0,), False)
    assert parse({"messages": HELLO, "max_tokens": 16384}).max_tokens == (16384 - 11,)


def test_a_full_queue_in_both_shapes() -> None:
    full = Rejected("queue_full")
    assert wire_sglang.rejection(full) == (
        503,
        b'{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}',
    )
    assert wire_sglang.stream_rejection(full) == (
        b'data: {"error": {"object": "error", "message": "The request queue is full.", '
        b'"type": "SERVICE_UNAVAILABLE", "param": null, "code": 503}}\n\n'
    )


def test_the_id_is_the_rid_of_a_single_choice_and_the_header_is_not_read() -> None:
    assert wire_sglang.answer_ids(parse({"messages": HELLO, "rid": "r"}), "header", 1) == ("r",)
    two = wire_sglang.answer_ids(parse({"messages": HELLO, "rid": "r", "n": 2}), "header", 2)
    assert len({*two, "r", "header"}) == 4
    assert all(len(each) == 32 for each in two)
    assert len(wire_sglang.answer_ids(parse({"messages": HELLO, "rid": ["r"]}), None, 1)[0]) == 32
