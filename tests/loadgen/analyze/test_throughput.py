"""Rates and in-flight integrals of runs whose truth is known."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.throughput import InFlight, rates, spaced_rate_per_s, time_in_flight_ns, window_of

MS = 1_000_000
SECOND = 1_000 * MS


def test_completions_between_10_and_40_s_come_at_five_per_second(made):
    """151 answers from 10 s to 40 s: 5.0 per second, not 151 / 40."""
    requests = [made.request(i, end_ns=10 * SECOND + i * SECOND // 5) for i in range(151)]
    found = rates(requests, window_of(requests))
    assert found.completions_per_s == pytest.approx(5.0)
    assert found.requests_per_s == pytest.approx(151 / 40)


def test_rates_of_parts_add_up_to_the_whole(made):
    requests = [made.request(i, at_ms=100 * i, tokens=5 + i) for i in range(20)]
    window = window_of(requests)
    whole, *parts = (rates(part, window) for part in (requests, requests[:7], requests[7:]))
    assert whole.requests_per_s == pytest.approx(sum(part.requests_per_s for part in parts))
    assert whole.output_tokens_per_s == pytest.approx(sum(part.output_tokens_per_s for part in parts))


def test_failed_requests_and_their_tokens_count_for_nothing(made):
    requests = [made.request(0), made.request(1, outcome="truncated"), made.failed(2)]
    found = rates(requests, window_of(requests))
    window_s = 0.301
    assert found.requests_per_s == pytest.approx(1 / window_s)
    assert found.output_tokens_per_s == pytest.approx(11 / window_s)
    assert found.completions_per_s is None


def test_without_usage_the_token_rate_is_unknown_and_without_success_it_is_zero(made):
    silent = [made.request(0, output_tokens=None)]
    assert rates(silent, window_of(silent)).output_tokens_per_s is None
    none_left = [made.failed(0)]
    assert rates(none_left, window_of(none_left)).output_tokens_per_s == 0
    nothing = rates([], None)
    assert (nothing.requests_per_s, nothing.completions_per_s, nothing.output_tokens_per_s) == (None, None, None)


def test_the_window_needs_a_start_and_a_later_end(made):
    assert window_of([]) is None
    assert window_of([made.unsent()]) is None
    assert window_of([made.request(end_ns=None)]) is None
    assert window_of([made.failed(end_ns=0, headers_ns=0)]) is None
    found = window_of([made.request(0, at_ms=50), made.request(1, at_ms=10, end_ns=None)])
    assert (found.start_ns, found.end_ns) == (10 * MS, 351 * MS)


def test_a_rate_needs_two_different_instants():
    assert spaced_rate_per_s([]) is None
    assert spaced_rate_per_s([5]) is None
    assert spaced_rate_per_s([5, 5]) is None
    assert spaced_rate_per_s([2 * SECOND, 0, SECOND]) == 1.0


def test_time_in_flight_is_known_only_with_both_ends(made):
    assert time_in_flight_ns(made.request()) == 301 * MS
    assert time_in_flight_ns(made.unsent()) is None
    assert time_in_flight_ns(made.request(end_ns=None)) is None


def test_in_flight_of_a_lost_request_lasts_to_the_end(made):
    requests = [made.request(0, end_ns=SECOND), made.request(1, at_ms=500, end_ns=None), made.unsent(2)]
    found = InFlight.of(requests, 2 * SECOND)
    edges = np.array([0, SECOND, 2 * SECOND], dtype=np.int64)
    assert found.integral_s(edges) == pytest.approx([0, 1.5, 2.5])
    assert found.peak() == 2


def test_back_to_back_requests_do_not_overlap(made):
    requests = [made.request(i, sent_ns=i * SECOND, end_ns=(i + 1) * SECOND) for i in range(3)]
    assert InFlight.of(requests, 0).peak() == 1
    assert InFlight.of([], 0).peak() == 0


spans = st.lists(st.tuples(st.integers(0, 10**13), st.integers(1, 10**11)), min_size=1, max_size=50)


@given(spans, st.integers(0, 2 * 10**13))
def test_the_integral_is_the_sum_of_each_requests_time_so_far(spans, at):
    found = InFlight(
        starts_ns=np.sort(np.array([s for s, _ in spans], dtype=np.int64)),
        ends_ns=np.sort(np.array([s + d for s, d in spans], dtype=np.int64)),
    )
    expected = sum(max(0, min(at, s + d) - s) for s, d in spans)
    assert found.integral_s(np.array([at], dtype=np.int64))[0] == pytest.approx(expected / 1e9)


@given(spans)
def test_the_peak_is_the_most_that_overlap_any_start(spans):
    found = InFlight(
        starts_ns=np.sort(np.array([s for s, _ in spans], dtype=np.int64)),
        ends_ns=np.sort(np.array([s + d for s, d in spans], dtype=np.int64)),
    )
    expected = max(sum(s <= at < s + d for s, d in spans) for at, _ in spans)
    assert found.peak() == expected
