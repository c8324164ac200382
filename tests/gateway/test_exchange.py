"""What is known of a request, and the record made of it."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.config import Config
from gateway.discovery import static
from gateway.exchange import MAX_JSON_BYTES, BodyWatch, Exchange
from gateway.fleet import Fleet
from gateway.model import Headers, RequestHead
from gateway.upstream.client import UpstreamClient
from protocol.openai import Usage, peek_request
from protocol.records import PHASES, GatewayRecord
from protocol.traceparent import TraceParent

TRACE = TraceParent("a" * 32, "b" * 16, True)
PARENT = TraceParent("a" * 32, "c" * 16, True)
ANSWER = (
    b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'
)


class Client:
    """A downstream of which only the head matters here."""

    def __init__(self) -> None:
        self.head = RequestHead(path="/v1/completions", target=b"/v1/completions?x", headers=[])
        self.gone = False
        self.started = False
        self.on_gone = lambda: None
        self.on_flow = lambda _paused: None

    async def read_body(self, limit_bytes: int, timeout_s: float) -> bytes:
        return b""

    def start(self, status: int, headers: Headers) -> None: ...

    chunk_writer = None
    paused = False

    def write(self, data: bytes) -> None: ...

    def flush(self) -> None: ...

    def end(self) -> None: ...

    def abort(self) -> None: ...


def exchange(parent: TraceParent | None = None) -> Exchange:
    return Exchange(Client(), b"r1", TRACE, parent)


def finished(x: Exchange, wall_anchor_ns: int = 0) -> GatewayRecord:
    x.mark("finish")
    x.mark("end")
    return x.record(wall_anchor_ns)


def test_a_request_that_got_nowhere_leaves_a_record_all_the_same() -> None:
    x = exchange()
    x.mark("receive")
    x.error, x.status, x.outcome = errors.slow_request(60), 408, "error"
    record = finished(x, wall_anchor_ns=10**18)
    marks = record.marks_ns
    assert list(marks) == ["receive", "finish", "end"]
    assert 0 <= marks["receive"] <= marks["finish"] <= marks["end"]
    assert record == GatewayRecord(
        request_id="r1", trace_id="a" * 32, span_id="b" * 16, parent_span_id=None,
        received_unix_ns=10**18 + x.origin_ns, path="/v1/completions", model=None, stream=False, route=None, pool=None,
        endpoint=None, attempts=0, status=408, outcome="error", error_source="client", error_kind="receive_timeout",
        request_bytes=0, response_bytes=0, marks_ns=marks, first_token_ns=None, chunks=0, gap_max_ns=None, events=0,
        prompt_tokens=None, completion_tokens=None, cached_tokens=None, finish_reason=None,
    )  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(record), type=GatewayRecord) == record


def routed(body: bytes) -> Exchange:
    config = Config.model_validate(
        {
            "pools": {"p": {"engine": "vllm", "endpoints": [{"url": "http://h"}]}},
            "routes": [{"model": "m", "split": {"p": 1}}],
        }
    )
    x = exchange(PARENT)
    x.body, x.peek = body, peek_request(body)
    x.route, x.pool = "m", Fleet(config, static.addresses).pools["p"]
    for _ in range(2):
        x.begin(x.pool.endpoints[0], TRACE)
    x.status = 200
    return x


def test_the_record_of_a_stream_has_times_counts_and_usage() -> None:
    body = b'{"model":"m","stream":true}'
    x = routed(body)
    watch = x.observe(streams=True)
    assert x.watch is watch
    assert x.streams
    token = b'data: {"choices":[{"delta":{"content":"x"},"finish_reason":null}]}\n\n'
    usage = b'"usage":{"prompt_tokens":3,"completion_tokens":1}'
    end = b'data: {"choices":[{"delta":{},"finish_reason":"length"}],%b}\n\n' % usage
    watch.feed(b": hello\n\n", x.origin_ns + 10)
    watch.feed(token, x.origin_ns + 30)
    watch.feed(end + b"data: [DONE]\n\n", x.origin_ns + 80)
    record = finished(x)
    assert (record.model, record.stream, record.route, record.pool, record.endpoint) == ("m", True, "m", "p", "p-0")
    assert (record.attempts, record.status, record.outcome, record.error_kind) == (2, 200, "ok", None)
    assert record.parent_span_id == "c" * 16
    assert record.request_bytes == len(body)
    assert record.response_bytes == 9 + len(token) + len(end) + 14
    assert (record.first_token_ns, record.gap_max_ns, record.chunks, record.events) == (30, 50, 3, 3)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (3, 1, None)
    assert record.finish_reason == "length"


def test_the_record_of_a_json_answer_has_its_usage_but_no_first_token() -> None:
    x = routed(b'{"model":"m"}')
    watch = x.observe(streams=False)
    assert not x.streams
    watch.feed(ANSWER, x.origin_ns + 10)
    record = finished(x)
    assert (record.stream, record.events, record.first_token_ns, record.gap_max_ns) == (False, 0, None, None)
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (9, 2, 4)
    assert (record.finish_reason, record.chunks, record.response_bytes) == ("stop", 1, len(ANSWER))


def test_what_the_body_said_is_asked_for_once() -> None:
    x = exchange()
    x.observe(streams=False).feed(ANSWER, 1)
    seen = x.seen()
    assert seen.usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)
    assert x.seen() is seen


def test_the_marks_are_those_of_the_last_attempt() -> None:
    x = routed(b'{"model":"m"}')
    for phase in ("receive", "admit", "route"):
        x.mark(phase)
    endpoint = x.pool.endpoints[0] if x.pool else pytest.fail("routed")
    first = x.begin(endpoint, TRACE)
    for phase in ("connect", "send", "first_byte"):
        first.mark(phase)
    x.begin(endpoint, TRACE).mark("connect")
    marks = finished(x).marks_ns
    assert list(marks) == ["receive", "admit", "route", "connect", "finish", "end"]
    assert sorted(marks.values()) == list(marks.values())


@given(reached=st.integers(0, 8))
def test_marks_are_in_the_order_of_phases_however_far_it_came(reached: int) -> None:
    x = routed(b'{"model":"m"}')
    assert x.attempt is not None
    for phase in PHASES[:reached]:
        (x.attempt if phase in ("connect", "send", "first_byte") else x).mark(phase)
    marks = finished(x).marks_ns
    assert list(marks) == [phase for phase in (*PHASES, "end") if phase in marks]
    assert sorted(marks.values()) == list(marks.values())


def test_an_attempt_counts_as_in_flight_until_it_is_let_go_of() -> None:
    x, upstream = routed(b'{"model":"m"}'), UpstreamClient()
    assert x.pool is not None
    [endpoint] = x.pool.endpoints
    assert (endpoint.in_flight, len(x.open)) == (2, 2)
    for attempt in list(x.open):
        for _ in range(2):
            x.end(attempt, upstream)
    assert (endpoint.in_flight, x.open) == (0, [])


def test_the_usage_of_a_stream_that_was_cut_is_what_was_relayed() -> None:
    x = routed(b'{"model":"m","stream":true}')
    x.observe(streams=True).feed(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', 1)
    x.outcome = "client_gone"
    record = finished(x)
    assert (record.prompt_tokens, record.completion_tokens, record.usage_partial) == (None, 1, True)


@given(sizes=st.lists(st.integers(0, 500), min_size=1, max_size=10), gaps=st.lists(st.integers(0, 99), min_size=10))
def test_a_body_is_counted_and_read_whole_in_any_pieces(sizes: list[int], gaps: list[int]) -> None:
    watch, now_ns, rest = BodyWatch(), 100, ANSWER
    times: list[int] = []
    for size, gap in zip(sizes, gaps, strict=False):
        piece, rest = rest[:size], rest[size:]
        now_ns += gap
        times.append(now_ns)
        watch.feed(piece, now_ns)
    watch.feed(rest, now_ns)
    assert (watch.reads, watch.bytes, watch.last_byte_ns) == (len(times) + 1, len(ANSWER), now_ns)
    assert watch.gap_max_ns == max([0, *(later - earlier for earlier, later in pairwise(times))])
    result = watch.result()
    assert (result.finish_reason, result.done, result.events, result.complete) == ("stop", True, 0, True)
    assert result.usage == Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4)


def test_gaps_need_two_reads() -> None:
    watch = BodyWatch()
    assert (watch.gap_max_ns, watch.last_byte_ns, watch.first_token_ns) == (None, None, None)
    watch.feed(b"x", 5)
    assert watch.gap_max_ns is None
    watch.feed(b"x", 9)
    assert watch.gap_max_ns == 4


@pytest.mark.parametrize("too_many", [0, 1])
def test_a_body_is_read_up_to_its_bound_and_not_kept_beyond(too_many: int) -> None:
    padding = b" " * (MAX_JSON_BYTES - len(ANSWER) + too_many)
    watch = BodyWatch()
    watch.feed(padding, 1)
    watch.feed(ANSWER, 2)
    assert watch.bytes == MAX_JSON_BYTES + too_many
    assert (watch.result().usage is None) is bool(too_many)
    if too_many:
        watch.feed(ANSWER, 3)
        assert watch._parts == []
        assert watch.result().usage is None
