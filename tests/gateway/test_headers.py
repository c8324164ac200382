"""Which header fields cross the gateway, and what it adds."""

from __future__ import annotations

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import headers
from gateway.model import EndpointAddress, Headers, RequestHead, ResponseHead

ADDRESS = EndpointAddress(name="a-0", host="h", port=8000, tls=False, base_path=b"/base", authority=b"h:8000")
HOP_BY_HOP = (
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
)  # fmt: skip


class Parsed:
    """A request as an engine's HTTP parser reads it."""

    def __init__(self, data: bytes) -> None:
        self.url = b""
        self.headers: Headers = []
        self.body = b""
        self.complete = False
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method = parser.get_method()

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def upstream_of(fields: Headers, body: bytes = b"{}", target: bytes = b"/v1/completions?x=1") -> Parsed:
    head = RequestHead(path="/v1/completions", target=target, headers=fields)
    return Parsed(headers.request_bytes(head, ADDRESS, body, request_id=b"r1", traceparent=b"00-1-2-01"))


ADDED: Headers = [(b"x-request-id", b"r1"), (b"traceparent", b"00-1-2-01"), (b"content-length", b"2")]


def test_a_request_goes_out_under_the_engines_name_with_our_ids() -> None:
    sent = upstream_of([(b"host", b"gateway"), (b"authorization", b"Bearer k"), (b"content-type", b"application/json")])
    assert (sent.method, sent.url, sent.body, sent.complete) == (b"POST", b"/base/v1/completions?x=1", b"{}", True)
    kept: Headers = [(b"authorization", b"Bearer k"), (b"content-type", b"application/json")]
    assert sent.headers == [(b"host", b"h:8000"), *kept, *ADDED]


@pytest.mark.parametrize(
    "name",
    [*HOP_BY_HOP, b"host", b"content-length", b"expect", b"accept-encoding", b"traceparent", b"x-request-id"],
)
def test_what_ends_here_or_is_decided_anew_does_not_reach_the_engine(name: bytes) -> None:
    sent = upstream_of([(name, b"7"), (b"tracestate", b"v=1")])
    assert sent.headers == [(b"host", b"h:8000"), (b"tracestate", b"v=1"), *ADDED]


@pytest.mark.parametrize(
    "connection",
    [
        [b"close, X-Hop"],
        [b"x-hop"],
        [b" Keep-Alive ,\tx-hop "],
        [b"keep-alive", b"x-hop"],
        [b"x-hop", b"close"],
    ],
)
def test_fields_that_connection_names_end_here_in_both_directions(connection: list[bytes]) -> None:
    fields: Headers = [*((b"connection", value) for value in connection), (b"x-hop", b"1"), (b"x-end", b"2")]
    assert [name for name, _ in upstream_of(fields).headers[1:2]] == [b"x-end"]
    answer = headers.response_fields(response(fields), request_id=b"r", pool=b"p", stream=False)
    assert [name for name, _ in answer] == [b"x-end", b"x-request-id", b"x-weir-pool"]


TOKEN = st.text("abcdefgh-", min_size=1, max_size=12).map(lambda text: b"x-" + text.encode())
VALUE = st.text("ab ,;=\"'", max_size=12).map(lambda text: text.strip().encode())


@given(fields=st.lists(st.tuples(TOKEN, VALUE), max_size=8), body=st.binary(max_size=200))
def test_every_other_field_and_the_body_arrive_as_they_are_in_order(fields: Headers, body: bytes) -> None:
    sent = upstream_of(fields, body)
    assert sent.headers[1 : 1 + len(fields)] == fields
    assert (sent.body, sent.complete) == (body, True)
    assert sent.headers[-1] == (b"content-length", b"%d" % len(body))


def response(fields: Headers, status: int = 200) -> ResponseHead:
    return ResponseHead(status=status, headers=fields, length=None)


@pytest.mark.parametrize("name", [*HOP_BY_HOP, b"x-request-id", b"x-weir-pool"])
def test_what_ends_here_does_not_reach_the_client(name: bytes) -> None:
    fields = headers.response_fields(
        response([(name, b"upstream"), (b"server", b"uvicorn")]), request_id=b"r", pool=b"p", stream=False
    )
    assert fields == [(b"server", b"uvicorn"), (b"x-request-id", b"r"), (b"x-weir-pool", b"p")]


def test_a_response_keeps_its_length_type_and_repeated_fields() -> None:
    given: Headers = [
        (b"content-length", b"5"), (b"content-type", b"application/json"), (b"set-cookie", b"a"), (b"set-cookie", b"b"),
        (b"cache-control", b"max-age=1"),
    ]  # fmt: skip
    assert headers.response_fields(response(given), request_id=b"r", pool=b"p", stream=False)[:-2] == given


def test_a_stream_is_neither_cached_nor_buffered_on_its_way() -> None:
    given: Headers = [(b"cache-control", b"max-age=1"), (b"x-accel-buffering", b"yes"), (b"server", b"s")]
    assert headers.response_fields(response(given), request_id=b"r", pool=b"p", stream=True) == [
        (b"server", b"s"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", b"r"),
        (b"x-weir-pool", b"p"),
    ]
