"""Request peeks, answers of every family, and error events as the real SDK reads them."""

from __future__ import annotations

import httpx
import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.openai import (
    Answer,
    BadRequest,
    ModelCard,
    RequestPeek,
    Usage,
    answer_of,
    error_body,
    error_for,
    family_of,
    finish_reason_of,
    models_body,
    peek_request,
    stream_error,
    usage_of,
)
from protocol.sse import SseParser


def test_a_full_request_is_read_in_one_peek() -> None:
    body = (
        b'{"model":"llama","messages":[{"role":"user","content":"hi"}],"stream":true,"temperature":0.5,'
        b'"stream_options":{"include_usage":true,"continuous_usage_stats":true},"user":"u1",'
        b'"max_tokens":5,"max_completion_tokens":7,"n":2,"tools":[{"type":"function"}]}'
    )
    assert peek_request(body) == RequestPeek(
        model="llama",
        stream=True,
        include_usage=True,
        stream_options=True,
        user="u1",
        max_tokens=7,
        n=2,
        size_bytes=len(body),
    )


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"model":null,"stream":null,"stream_options":null,"user":null,"max_tokens":null,"n":null}',
        b'{"stream":false,"stream_options":{},"max_tokens":-1,"n":0}',
        b'{"stream_options":{"include_usage":null},"n":-3}',
    ],
)
def test_absent_null_and_senseless_values_state_nothing(body: bytes) -> None:
    assert peek_request(body) == RequestPeek(
        model=None,
        stream=False,
        include_usage=False,
        stream_options=b'"stream_options":{' in body,
        user=None,
        max_tokens=None,
        n=1,
        size_bytes=len(body),
    )


@pytest.mark.parametrize(
    ("body", "bound"),
    [
        (b'{"max_tokens":5}', 5),
        (b'{"max_completion_tokens":7}', 7),
        (b'{"max_output_tokens":9}', 9),
        (b'{"max_completion_tokens":0,"max_tokens":5}', 0),
        (b'{"max_completion_tokens":null,"max_tokens":5}', 5),
    ],
)
def test_the_output_bound_of_every_endpoint(body: bytes, bound: int) -> None:
    assert peek_request(body).max_tokens == bound


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b'{"stream":"yes"}', "stream", r"Expected `bool \| null`, got `str`"),
        (b'{"model":["a"]}', "model", "got `array`"),
        (b'{"n":1.5}', "n", "got `float`"),
        (b'{"stream_options":{"include_usage":1}}', "stream_options.include_usage", "got `int`"),
        (b'{"stream_options":true}', "stream_options", "got `bool`"),
        (b"[]", None, "Expected `object`, got `array`"),
        (b'{"model":}', None, r"not valid JSON.*byte 9"),
        (b'{"model":"a"} x', None, r"not valid JSON.*trailing characters"),
        (b"", None, "not valid JSON"),
        (b'{"model":"\xff"}', None, "not valid JSON"),
        (b'{"x":' + b"[" * 200_000, None, "nested too deeply"),
    ],
)
def test_a_bad_request_names_its_fault(body: bytes, param: str | None, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        peek_request(body)
    assert caught.value.param == param
    assert str(caught.value) == caught.value.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=10,
    )
)
def test_fields_that_are_not_read_are_never_judged(value: object) -> None:
    body = msgspec.json.encode({"messages": value, "model": "m", "metadata": value})
    assert peek_request(body).model == "m"


@given(st.text(alphabet='{}[]:,"x1.e- ', max_size=40).map(str.encode))
def test_json_objects_are_peeked_and_all_else_is_refused(body: bytes) -> None:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = None
    if isinstance(value, dict):
        assert peek_request(body).size_bytes == len(body)
    else:
        with pytest.raises(BadRequest):
            peek_request(body)


def usage(prompt: int, completion: int, cached: int | None = None) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (
            (
                b'{"choices":[{"message":{"content":"x"},"finish_reason":"length"}],"usage":{"prompt_tokens":13,'
                b'"total_tokens":17,"completion_tokens":4,"prompt_tokens_details":null}}'
            ),
            Answer(usage=usage(13, 4), finish_reason="length"),
        ),
        (
            (
                b'{"choices":[],"usage":{"prompt_tokens":22,"completion_tokens":2,'
                b'"prompt_tokens_details":{"cached_tokens":21}}}'
            ),
            Answer(usage=usage(22, 2, 21)),
        ),
        (
            b'{"choices":[{"finish_reason":null},{"finish_reason":"stop"},{"finish_reason":"length"}],"usage":null}',
            Answer(finish_reason="stop"),
        ),
        (b'{"object":"list","data":[],"usage":{"prompt_tokens":5,"total_tokens":5}}', Answer(usage=usage(5, 0))),
        (b'{"choices":null,"usage":{}}', Answer()),
        (
            (
                b'{"type":"message","content":[],"stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":3,'
                b'"cache_read_input_tokens":7,"cache_creation_input_tokens":2}}'
            ),
            Answer(usage=usage(14, 3, 7), finish_reason="end_turn"),
        ),
        (
            b'{"type":"message_delta","delta":{"stop_reason":"max_tokens"},"usage":{"output_tokens":3}}',
            Answer(usage=usage(0, 3), finish_reason="max_tokens"),
        ),
        (
            b'{"type":"message_start","message":{"usage":{"input_tokens":12,"output_tokens":0}}}',
            Answer(usage=usage(12, 0)),
        ),
        (b'{"type":"response.output_text.delta","delta":"x"}', Answer()),
        (
            (
                b'{"type":"response.completed","response":{"error":null,"usage":{"input_tokens":11,'
                b'"input_tokens_details":{"cached_tokens":3},"output_tokens":1}}}'
            ),
            Answer(usage=usage(11, 1, 3)),
        ),
        (b'{"type":"response.created","response":{"usage":null,"error":null}}', Answer()),
        (b'{"error":{"message":"m","code":503}}', Answer(error={"message": "m", "code": 503})),
        (b'{"error":{"object":"error","message":"m"}}', Answer(error={"object": "error", "message": "m"})),
        (b'{"error":"Unauthorized"}', Answer(error={"message": "Unauthorized"})),
        (
            b'{"object":"error","message":"full","type":"503","code":503}',
            Answer(error={"object": "error", "message": "full", "type": "503", "code": 503}),
        ),
        (b'{"type":"error","message":"m"}', Answer(error={"type": "error", "message": "m"})),
        (b'{"object":"error"}', Answer()),
        (b'{"choices":7}', Answer()),
        (b"[DONE]", Answer()),
        (b"", Answer()),
        (b'{"x":' + b"[" * 200_000, Answer()),
    ],
)
def test_what_an_answer_says(body: bytes, answer: Answer) -> None:
    assert answer_of(body) == answer
    assert usage_of(body) == answer.usage
    assert finish_reason_of(body) == answer.finish_reason


def test_error_body_has_the_shape_of_the_engines() -> None:
    body = error_body("no such model", kind="NotFoundError", code=404, param="model", request_id="r1")
    assert msgspec.json.decode(body) == {
        "error": {
            "message": "no such model", "type": "NotFoundError", "param": "model", "code": 404, "request_id": "r1",
        }
    }  # fmt: skip
    assert b"request_id" not in error_body("m", kind="k", code=500)
    assert b'"param":null' in error_body("m", kind="k", code=500)


BODY = error_body("line one\nline two", kind="UpstreamError", code=503)


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/completions?api-version=1", "completions"),
        ("/v1/messages?beta=true", "messages"),
        ("/openai/v1/responses", "responses"),
        ("/v1/messages/count_tokens", None),
        ("/v1/embeddings?then=/messages", None),
        ("/", None),
    ],
)
def test_the_family_of_a_path_is_that_of_its_end(path: str, family: str | None) -> None:
    assert family_of(path) == family


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages?beta=true", "/v1/responses"])
@pytest.mark.parametrize("body", [BODY, b'{\n  "error": {\n "message": "m"}}', b"<html>\r\nbad gateway\xff", b""])
def test_a_stream_error_is_one_event_whatever_the_body(path: str, body: bytes) -> None:
    parser = SseParser()
    [event] = parser.feed(stream_error(path, body))
    assert parser.between_events
    assert answer_of(event.data).error is not None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (b'{"code":503}', "overloaded_error"),
        (b'{"code":429,"type":"x"}', "rate_limit_error"),
        (b'{"code":502}', "api_error"),
        (b'{"type":"overloaded_error"}', "overloaded_error"),
        (b'{"message":"m"}', "api_error"),
    ],
)
def test_messages_errors_carry_a_type_that_its_clients_know(error: bytes, kind: str) -> None:
    [event] = SseParser().feed(stream_error("/v1/messages", b'{"error":' + error + b"}"))
    data = msgspec.json.decode(event.data)
    assert (event.event, data["type"], data["error"]["type"]) == (b"error", "error", kind)


def sdk(stream: bytes) -> openai.OpenAI:
    """The real client; only its socket is replaced, by these bytes."""
    transport = httpx.MockTransport(
        lambda request: httpx.Response(200, headers={"content-type": "text/event-stream"}, content=stream)
    )
    return openai.OpenAI(
        api_key="k", base_url="http://engine/v1", max_retries=0, http_client=httpx.Client(transport=transport)
    )


TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" hi"},"finish_reason":null}]}\n\n'


def test_the_openai_client_raises_at_a_chat_stream_error() -> None:
    with sdk(TOKEN + stream_error("/v1/chat/completions", BODY)) as client:
        chunks = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}], stream=True)
        assert next(chunks).choices[0].delta.content == " hi"
        with pytest.raises(openai.APIError, match="line one\nline two") as caught:
            next(chunks)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["type"] == "UpstreamError"


@pytest.mark.parametrize(("code", "cause"), [(503, "server_error"), (429, "rate_limit_exceeded")])
def test_the_openai_client_reads_a_responses_stream_error(code: int, cause: str) -> None:
    with sdk(stream_error("/v1/responses", error_body("gone", kind="k", code=code))) as client:
        [event] = list(client.responses.create(model="m", input="x", stream=True))
    assert event.type == "response.failed"
    assert event.response.status == "failed"
    assert event.response.error is not None
    assert (event.response.error.code, event.response.error.message) == (cause, "gone")


def test_models_body_lists_cards_that_the_client_reads() -> None:
    cards = [
        ModelCard(id="a", created=1, owned_by="weir", max_model_len=4096),
        ModelCard(id="b", created=2, owned_by="x"),
    ]
    with sdk(models_body(cards)) as client:
        body = client.models.with_raw_response.list().content
    assert msgspec.json.decode(body) == {
        "object": "list",
        "data": [
            {"id": "a", "object": "model", "created": 1, "owned_by": "weir", "max_model_len": 4096},
            {"id": "b", "object": "model", "created": 2, "owned_by": "x"},
        ],
    }


def test_an_error_has_the_shape_of_its_family() -> None:
    body = error_body("not here", kind="model_not_found", code=404, param="model", request_id="r")
    assert error_for("/v1/chat/completions", body) is body
    wrapped = msgspec.json.decode(error_for("/v1/messages", body))
    assert wrapped["type"] == "error"
    assert (wrapped["error"]["type"], wrapped["error"]["message"]) == ("not_found_error", "not here")
