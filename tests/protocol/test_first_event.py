"""Streams that begin with an error, in every family's shape, cut anywhere; and those that only look like it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.first_event import FIRST_EVENT_BYTES, NEED_MORE, ErrorInfo, first_event_error
from protocol.openai import error_body, stream_error

CHAT = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
CREATED = b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","error":null}}\n\n'
START = b'event: message_start\ndata: {"type":"message_start","message":{"role":"assistant","content":[]}}\n\n'
DONE = b"data: [DONE]\n\n"

BUSY = {"message": "The engine is currently busy.", "type": "Service Unavailable", "param": None, "code": 503}
FULL = {
    "object": "error",
    "message": "The request queue is full.",
    "type": "SERVICE_UNAVAILABLE",
    "param": None,
    "code": 503,
}


def data(value: object, event: bytes = b"") -> bytes:
    return (b"event: " + event + b"\n" if event else b"") + b"data: " + msgspec.json.encode(value) + b"\n\n"


ERRORS = [
    (data({"error": BUSY}), 503, "Service Unavailable", BUSY),
    (data({"error": FULL}), 503, "SERVICE_UNAVAILABLE", FULL),
    (data(FULL), 503, "SERVICE_UNAVAILABLE", FULL),
    (data({"error": "Unauthorized"}), 500, None, {"message": "Unauthorized"}),
    (data({"error": {"message": "m", "code": "429"}}), 429, "429", {"message": "m", "code": "429"}),
    (data({"error": {"message": "m", "code": 200}}), 500, None, {"message": "m", "code": 200}),
    (data({"error": {"message": "m", "code": 600}}), 500, None, {"message": "m", "code": 600}),
    (
        data({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, b"error"),
        503,
        "overloaded_error",
        {"type": "overloaded_error", "message": "Overloaded"},
    ),
    (
        data(
            {"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded", "message": "slow"}}},
            b"response.failed",
        ),
        429,
        "rate_limit_exceeded",
        {"code": "rate_limit_exceeded", "message": "slow"},
    ),
    (
        data({"type": "error", "code": "server_error", "message": "m"}, b"error"),
        500,
        "server_error",
        {"type": "error", "code": "server_error", "message": "m"},
    ),
    (b"event: error\ndata: gone\n\n", 500, None, {"message": "gone"}),
]
BEFORE = [b"", b": keep-alive\n\n", b"\xef\xbb\xbf", b"event: ping\n\n"]
AFTER = [b"", DONE, CHAT]


@given(
    error=st.sampled_from(ERRORS),
    before=st.sampled_from(BEFORE),
    after=st.sampled_from(AFTER),
    end=st.sampled_from([b"\n", b"\r\n", b"\r"]),
)
def test_an_error_is_known_as_soon_as_its_event_is_complete(
    error: tuple[bytes, int, str | None, dict[str, object]], before: bytes, after: bytes, end: bytes
) -> None:
    event, status, kind, raw = error
    message = raw["message"]
    assert isinstance(message, str)
    want = ErrorInfo(status=status, message=message, kind=kind, error=raw)
    begin = (before + event).replace(b"\n", end)
    answers = [first_event_error((begin + after)[:size]) for size in range(len(begin + after) + 1)]
    # A CR alone already ends the line; the LF of a CRLF says nothing more.
    known = len(begin) - (end == b"\r\n")
    assert answers[:known] == [NEED_MORE] * known
    assert answers[known:] == [want] * (len(answers) - known)


@pytest.mark.parametrize(
    "first", [CHAT, CREATED, START, DONE, b"data: {}\n\n", b"data: \xff\n\n", b'data: "error"\n\n']
)
@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", [b"", data({"error": BUSY}), b"data: cut"])
def test_any_other_first_event_is_none_whatever_follows(first: bytes, before: bytes, after: bytes) -> None:
    stream = before + first
    for size in range(len(stream)):
        assert first_event_error(stream[:size]) is NEED_MORE
    assert first_event_error(stream + after) is None


@given(st.text(max_size=20), st.sampled_from([CHAT, data({"error": "x"})]))
def test_text_that_speaks_of_errors_is_none(text: str, after: bytes) -> None:
    chunk = {"choices": [{"delta": {"content": f'{{"error":{{"message":"{text}"}}}} "error"'}}]}
    assert first_event_error(data(chunk) + after) is None


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize("status", [429, 500])
def test_the_errors_that_we_put_into_streams_are_read_back(path: str, status: int) -> None:
    found = first_event_error(stream_error(path, error_body("why", kind="k", code=status)))
    assert isinstance(found, ErrorInfo)
    assert (found.status, found.message) == (status, "why")


def test_an_error_without_a_message_gets_one() -> None:
    found = first_event_error(data({"error": {"code": 529}}))
    assert found == ErrorInfo(status=529, message="the engine gave no reason", kind=None, error={"code": 529})


def test_the_wait_for_a_first_event_is_bounded() -> None:
    long = b"data: " + b"x" * FIRST_EVENT_BYTES
    assert first_event_error(long[: FIRST_EVENT_BYTES - 1]) is NEED_MORE
    assert first_event_error(long) is None
    late = b": wait\n" * (FIRST_EVENT_BYTES // 7 + 1) + data({"error": BUSY})
    assert first_event_error(late) is None
