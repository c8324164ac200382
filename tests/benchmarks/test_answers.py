import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import wire
from benchmarks.answers import Exchange, judge, tally
from benchmarks.results import Quantiles
from benchmarks.wire import Shape

SENT_NS = 1_000_000_000
TTFT_NS = 20_000_000
GAP_NS = 10_000_000
DELAY_NS = 3_000_000


def streamed(chunks: int, *, done: bytes = wire.DONE) -> Exchange:
    """Chunks written every 10 ms from 20 ms after the request, each read 3 ms after its write."""
    written_ns = [SENT_NS + TTFT_NS + index * GAP_NS for index in range(chunks)]
    reads = [wire.chunk(index, chunks, written_ns[index]) for index in range(chunks)]
    reads[-1] += done
    return Exchange(
        sent_ns=SENT_NS, status=200, reads=reads, reads_ns=[each + DELAY_NS for each in written_ns], error=None
    )


def small(body: bytes = wire.SMALL_ANSWER, status: int = 200) -> Exchange:
    return Exchange(sent_ns=SENT_NS, status=status, reads=[body], reads_ns=[SENT_NS + 2_000_000], error=None)


def test_times_of_a_stream() -> None:
    result = tally([streamed(5), streamed(5)], Shape(chunks=5), duration_s=2.0)
    assert (result.completed, result.altered, result.failed, result.chunks) == (2, 0, {}, 10)
    assert result.ttft_ms == Quantiles(p50=23.0, p99=23.0)
    assert result.total_ms == Quantiles(p50=63.0, p99=63.0)
    assert result.gap_ms == Quantiles(p50=10.0, p99=10.0)
    assert result.delay_ms == Quantiles(p50=3.0, p99=3.0)


@given(st.data())
def test_how_the_bytes_were_cut_into_reads_changes_no_verdict(data: st.DataObject) -> None:
    whole = b"".join(streamed(4).reads)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=12)))
    reads = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    late_ns = SENT_NS + 10**9
    exchange = Exchange(
        sent_ns=SENT_NS, status=200, reads=reads, reads_ns=[late_ns + n for n in range(len(reads))], error=None
    )
    result = tally([exchange], Shape(chunks=4), duration_s=1.0)
    assert (result.completed, result.altered) == (1, 0)
    assert result.delay_ms is not None
    assert result.delay_ms.p50 > 900


def test_a_chunk_arrives_with_the_read_that_ends_its_stamp() -> None:
    exchange = streamed(2)
    first = exchange.reads[0]
    middle = first.index(b"@") + 5
    exchange.reads[:1] = [first[:middle], first[middle:]]
    exchange.reads_ns.insert(0, SENT_NS + TTFT_NS + 1)
    result = tally([exchange], Shape(chunks=2), duration_s=1.0)
    assert result.delay_ms == Quantiles(p50=3.0, p99=3.0)


def test_small_answers() -> None:
    result = tally([small(), small(wire.SMALL_ANSWER + b"\n")], Shape(chunks=0), duration_s=1.0)
    assert (result.completed, result.altered, result.chunks) == (2, 1, 0)
    assert result.ttft_ms == Quantiles(p50=2.0, p99=2.0)
    assert result.gap_ms is None
    assert result.delay_ms is None


def test_a_complete_stream_with_other_bytes_is_altered_not_failed() -> None:
    exchange = streamed(3)
    exchange.reads[1] = exchange.reads[1].replace(b'"logprobs":null,', b"")
    result = tally([exchange], Shape(chunks=3), duration_s=1.0)
    assert (result.completed, result.altered, result.failed) == (1, 1, {})


def test_a_line_that_lost_a_byte_of_its_padding_is_altered() -> None:
    shape = Shape(chunks=1, pad_bytes=1000)
    body = wire.chunk(0, 1, SENT_NS, shape.pad_bytes) + wire.DONE
    assert [tally([small(each)], shape, duration_s=1.0).altered for each in (body, body.replace(b"~~", b"~", 1))] == [
        0,
        1,
    ]


def out_of_order() -> Exchange:
    exchange = streamed(3)
    exchange.reads[:2] = [wire.chunk(0, 3, SENT_NS + 2), wire.chunk(1, 3, SENT_NS + 1)]
    return exchange


def from_the_future() -> Exchange:
    exchange = streamed(3)
    exchange.reads_ns[1] = SENT_NS
    return exchange


@pytest.mark.parametrize(
    ("exchange", "chunks", "reason"),
    [
        (Exchange(sent_ns=SENT_NS), 3, "unfinished"),
        (Exchange(sent_ns=SENT_NS, error="connection lost"), 3, "connection lost"),
        (small(b'{"error":{}}', status=502), 0, "status 502"),
        (Exchange(sent_ns=SENT_NS, status=200, error=None), 0, "empty body"),
        (small(b'{"error":{}}'), 0, "not a chat completion"),
        (streamed(2), 3, "incomplete stream"),
        (streamed(3, done=b""), 3, "incomplete stream"),
        (out_of_order(), 3, "chunks out of order"),
        (from_the_future(), 3, "chunks out of order"),
    ],
)
def test_failures_have_reasons(exchange: Exchange, chunks: int, reason: str) -> None:
    assert judge(exchange, Shape(chunks=chunks)) == reason
    result = tally([exchange], Shape(chunks=chunks), duration_s=1.0)
    assert (result.completed, result.failed, result.ttft_ms) == (0, {reason: 1}, None)
