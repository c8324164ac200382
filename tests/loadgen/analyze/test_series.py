"""Chart data: exact where it has points, and bounded however long the run."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.latency import content_reads
from loadgen.analyze.series import (
    CURVE_POINTS,
    MAX_BINS,
    SCATTER_POINTS,
    SLOWEST_KEPT,
    curve,
    scatter,
    series,
)
from protocol.records import ChunkRecord

SECOND = 1_000_000_000


def test_a_small_curve_holds_every_value_of_every_arm():
    found = curve({"a": np.array([3.0, 1.0]), "b": np.array([2.0, 2.0, 4.0, 5.0]), "none": np.empty(0)})
    assert found.x == [1, 2, 3, 4, 5]
    assert found.share == {"a": [0.5, 0.5, 1, 1, 1], "b": [0, 0.5, 0.5, 0.75, 1]}


def test_no_values_make_an_empty_curve():
    assert curve({"a": np.empty(0)}).x == []


@given(st.integers(CURVE_POINTS + 1, 20_000))
def test_a_large_curve_is_bounded_exact_and_keeps_its_tail(n):
    values = np.arange(1.0, n + 1)
    found = curve({"a": values})
    assert len(found.x) <= CURVE_POINTS
    assert (found.x[0], found.x[-2:]) == (1, [n - 1, n])
    assert found.share["a"] == pytest.approx([x / n for x in found.x])


def test_a_small_scatter_holds_every_request_in_order_of_time(made):
    requests = [made.request(1, at_ms=900, ttft_ms=50), made.request(0, at_ms=100), made.failed(2, at_ms=500)]
    found = scatter(requests, 1.0)
    assert (found.n, found.t_s, found.ttft_s) == (2, [0.1, 0.9], [0.2, 0.05])


def test_slices_cover_the_run_in_tenths(made):
    requests = [made.request(i, at_ms=10 * i, ttft_ms=i + 1) for i in range(100)]
    requests.append(made.request(100, at_ms=1000, ttft_ms=500))
    found = scatter(requests, 1.0).slices
    assert [s.n for s in found] == [10] * 9 + [11]
    assert (found[0].start_s, found[0].end_s) == (0, pytest.approx(0.1))
    assert (found[0].median_s, found[0].max_s) == (0.005, 0.010)
    assert found[9].max_s == 0.5


def test_a_scatter_without_points_says_so():
    found = scatter([], 10.0)
    assert (found.n, found.t_s) == (0, [])
    assert {(s.n, s.median_s, s.max_s) for s in found.slices} == {(0, None, None)}


def test_a_large_scatter_is_bounded_and_keeps_the_slowest(made):
    spikes = range(7, 5000, 25)
    requests = [made.request(i, at_ms=i, ttft_ms=900 + i if i in spikes else 100) for i in range(5000)]
    assert len(spikes) == SLOWEST_KEPT
    found = scatter(requests, 5.0)
    assert found.n == 5000
    assert len(found.t_s) == SCATTER_POINTS
    assert found.t_s == sorted(found.t_s)
    assert sum(ttft > 0.5 for ttft in found.ttft_s) == SLOWEST_KEPT


def test_load_second_by_second(made):
    """Two streams of 11 tokens, 100 ms apart: 200–1200 ms and 700–1700 ms."""
    requests = [made.request(0, gap_ms=100), made.request(1, at_ms=500, gap_ms=100), made.unsent(2)]
    reads = {r.index: content_reads(made.chunks(r)) for r in requests[:2]}
    found = series({"a": requests}, reads, 1701_000_000)
    load = found.arms["a"]
    assert (found.bin_s, found.t_s) == (1, [0, 1])
    assert load.sent_per_s == [2, 0]
    assert load.in_flight == pytest.approx([1 + 0.5, 0.201 + 0.701])
    assert load.output_tokens_per_s == pytest.approx([8 + 3, 3 + 8])


def test_tokens_follow_the_events_of_each_read_and_sum_to_the_usage(made):
    request = made.request(0, gap_ms=500, tokens=3)
    reads = {0: content_reads(made.chunks(request))}
    request = msgspec.structs.replace(request, output_tokens=30)
    assert series({"a": [request]}, reads, 2 * SECOND).arms["a"].output_tokens_per_s == pytest.approx([20, 10, 0])


def test_without_reads_all_tokens_count_at_the_end(made):
    request = made.request(0, gap_ms=100)
    no_text = content_reads(ChunkRecord(index=0, t_ns=[0], bytes=[9], content_events=[0]))
    for reads in ({}, {0: no_text}):
        assert series({"a": [request]}, reads, 2 * SECOND).arms["a"].output_tokens_per_s == [0, 11, 0]


def test_failed_and_tokenless_responses_bring_no_tokens(made):
    requests = [made.request(0, outcome="truncated"), made.request(1, output_tokens=None), made.request(2, end_ns=None)]
    assert series({"a": requests}, {}, SECOND).arms["a"].output_tokens_per_s == [0, 0]


@given(st.integers(0, 40 * 3600))
def test_bins_are_bounded_and_cover_the_run(run_s):
    found = series({}, {}, run_s * SECOND)
    assert len(found.t_s) <= MAX_BINS
    assert found.t_s[-1] <= run_s < found.t_s[-1] + found.bin_s


def test_peak_throughput_is_at_least_the_average(made):
    """Spec-decode-like stream: reads of several tokens; counting reads would put the peak below the mean."""
    request = made.request(0, tokens=41, gap_ms=50)
    reads = {0: content_reads(made.chunks(request, per_read=4))}
    load = series({"a": [request]}, reads, request.end_ns).arms["a"]
    assert sum(load.output_tokens_per_s) == pytest.approx(41)
    assert max(load.output_tokens_per_s) >= 41 / (request.end_ns / SECOND)
