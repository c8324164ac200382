"""The metric definitions against streams whose truth is known."""

import numpy as np
import pytest

from loadgen.analyze.latency import (
    DEFINITIONS,
    Latencies,
    content_reads,
    e2e_ns,
    e2e_service_ns,
    latencies,
    longest_gaps_s,
    pooled_gaps_s,
    seconds,
    send_lateness_ns,
    tpot_ns,
    ttfo_ns,
    ttft_ns,
    ttft_service_ns,
)
from protocol.records import ChunkRecord

MS = 1_000_000


def reads_at(*times_ms, index=0, events=None):
    return content_reads(
        ChunkRecord(
            index=index,
            t_ns=[t * MS for t in times_ms],
            bytes=[40] * len(times_ms),
            content_events=events or [1] * len(times_ms),
        )
    )


def test_every_latency_metric_is_defined_once():
    assert [d.name for d in DEFINITIONS] == list(Latencies.__struct_fields__)


def test_a_role_event_is_no_token(made):
    """Role at 5 ms, content at 214 ms: the first token is at 214, and the role read makes no gap."""
    request = made.request(ttft_ms=214, headers_ns=5 * MS)
    assert ttft_ns(request) == 214 * MS
    assert len(reads_at(5, 214, 224, events=[0, 1, 1]).gaps_s()) == 1


def test_latency_counts_from_the_intended_send_and_service_from_the_actual_one(made):
    late = made.request(at_ms=1000, late_ms=300, ttft_ms=200, gap_ms=10, tokens=11)
    assert ttft_ns(late) == 500 * MS
    assert ttft_service_ns(late) == 200 * MS
    assert e2e_ns(late) == (300 + 200 + 100 + 1) * MS
    assert e2e_service_ns(late) == (200 + 100 + 1) * MS
    assert send_lateness_ns(late) == 300 * MS


def test_a_capped_client_shows_flat_service_time_and_growing_latency(made):
    """190 ms of service, at most 4 at once, 40 a second asked for: the queue grows and must show."""
    requests = [
        made.request(i, at_ms=25 * i, late_ms=190 * (i // 4) - 25 * i + 25 * (i % 4), ttft_ms=188, tokens=1)
        for i in range(400)
    ]
    found = latencies(requests, {})
    assert found.e2e_service_s.p99.value == pytest.approx(0.189)
    assert found.e2e_s.p99.value > 8


def test_tpot_divides_by_usage_tokens_not_by_chunks(made):
    """Reads at 0, 100 and 200 ms, 31 tokens by usage."""
    request = made.request(ttft_ms=0, tokens=2, last_token_ns=200 * MS, end_ns=200 * MS, output_tokens=31, headers_ns=0)
    assert tpot_ns(request) == pytest.approx(200 * MS / 30)


def test_tokens_batched_per_chunk(made):
    """10 reads of 4 tokens, 40 ms apart: TPOT 9.23 ms, chunk gap 40 ms."""
    request = made.request(tokens=40, ttft_ms=0, headers_ns=0, last_token_ns=360 * MS, end_ns=361 * MS)
    assert tpot_ns(request) == pytest.approx(9.2308 * MS, rel=1e-4)
    gaps = reads_at(*range(0, 400, 40), events=[4] * 10).gaps_s()
    assert gaps == pytest.approx([0.040] * 9)


@pytest.mark.parametrize(
    "changes",
    [
        {"outcome": "truncated"},
        {"output_tokens": None},
        {"output_tokens": 1},
        {"first_token_ns": None},
        {"last_token_ns": None},
        {"last_token_ns": 200 * MS},
    ],
    ids=["failed", "no usage", "one token", "no first token", "no last token", "all tokens in one read"],
)
def test_tpot_is_unknown_rather_than_wrong(made, changes):
    assert tpot_ns(made.request(**changes)) is None


def test_ttft_survives_a_later_failure_but_end_to_end_does_not(made):
    cut = made.request(outcome="truncated")
    assert ttft_ns(cut) == 200 * MS
    assert e2e_ns(cut) is None
    assert e2e_service_ns(cut) is None


def test_what_never_happened_has_no_latency(made):
    never = made.unsent()
    for metric in (ttft_ns, ttfo_ns, ttft_service_ns, e2e_ns, e2e_service_ns, tpot_ns, send_lateness_ns):
        assert metric(never) is None
    assert len(seconds([never], ttft_ns)) == 0
    assert e2e_ns(made.request(end_ns=None)) is None
    assert e2e_service_ns(made.request(sent_ns=None)) is None
    assert ttft_service_ns(made.request(sent_ns=None)) is None


def test_three_tokens_have_two_gaps():
    assert len(reads_at(0, 10, 20).gaps_s()) == 2


def test_mean_tpot_weighs_requests_and_mean_gap_weighs_gaps(made):
    """2 tokens 100 ms apart and 101 tokens 10 ms apart: TPOT 55 ms, pooled gap 10.9 ms."""
    requests = [
        made.request(0, tokens=2, gap_ms=100, output_tokens_planned=2),
        made.request(1, tokens=101, gap_ms=10, output_tokens_planned=101),
    ]
    found = latencies(requests, {r.index: content_reads(made.chunks(r)) for r in requests})
    assert found.tpot_s.mean == pytest.approx(0.055)
    assert found.chunk_gap_s.mean == pytest.approx((100 + 100 * 10) / 101 / 1000)
    assert found.chunk_gap_s.n == 101


def test_one_stall_among_a_thousand_gaps_stays_visible(made):
    stalled = reads_at(*range(0, 10_000, 10), 11_990)
    request = made.request(0)
    found = latencies([request], {0: stalled})
    assert found.chunk_gap_s.max == 2.0
    assert found.chunk_gap_max_s.max == 2.0
    assert np.mean(stalled.gaps_s()) == pytest.approx(0.01199)


def test_gaps_are_pooled_over_the_requests_asked_for(made):
    reads = {0: reads_at(0, 10), 1: reads_at(0, 20, 50, index=1), 2: reads_at(7, index=2)}
    requests = [made.request(1), made.request(2), made.request(3)]
    assert pooled_gaps_s(requests, reads) == pytest.approx([0.020, 0.030])
    assert longest_gaps_s(requests, reads) == pytest.approx([0.030])
    assert len(pooled_gaps_s([], reads)) == 0


def test_pooled_gaps_carry_no_interval(made):
    requests = [made.request(i, tokens=101) for i in range(5)]
    found = latencies(requests, {r.index: content_reads(made.chunks(r)) for r in requests})
    assert found.chunk_gap_s.p99.value == pytest.approx(0.010)
    assert found.chunk_gap_s.p99.high is None
    assert found.ttft_s.p50.refused is None
