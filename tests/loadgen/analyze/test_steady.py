"""Transients and trends that were put there are found, and others are not."""

import dataclasses

import msgspec
import numpy as np
import pytest

from loadgen.analyze.steady import _judged, is_stationary, mser, steadiness, trend
from loadgen.analyze.validity import judge


def noise(n, seed, phi=0.0):
    """A stationary series of mean 10 with standard deviation 1 and correlation `phi` of neighbours."""
    rng, values = np.random.default_rng(seed), np.empty(n)
    values[0] = rng.normal()
    for at in range(1, n):
        values[at] = phi * values[at - 1] + np.sqrt(1 - phi**2) * rng.normal()
    return 10 + values


def test_mser_cuts_a_step_where_it_is():
    assert mser(np.array([0.0, 0, 0, *([10, 11] * 10)])) == 3


def test_mser_cuts_nothing_from_what_is_even():
    assert mser(np.array([10.0, 11] * 10)) == 0


@pytest.mark.parametrize("phi", [0.0, 0.8])
def test_series_at_rest_are_seldom_called_otherwise(phi):
    found = [_judged("x", noise(120, seed, phi), 1.0) for seed in range(200)]
    assert sum(each.never for each in found) <= 2
    assert sum(each.late for each in found) <= 10


def test_a_queue_that_grows_never_comes_to_rest():
    found = [_judged("x", noise(120, seed) + np.arange(120) / 10, 1.0) for seed in range(50)]
    assert all(each.never for each in found)
    assert found[0].change == pytest.approx(12 / 16, abs=0.15)


def test_a_start_unlike_the_rest_is_found_with_its_length():
    found = _judged("x", noise(120, 1) + np.where(np.arange(120) < 20, 30.0, 0.0), 1.0)
    assert (found.late, found.never) == (True, False)
    assert 20 <= found.settled_s <= 40


def test_a_start_before_a_constant_counts():
    found = _judged("x", np.where(np.arange(60) < 10, 3.0, 1.0), 1.0)
    assert (found.late, found.settled_s) == (True, 10.0)


def test_a_constant_has_no_trend():
    assert trend(np.ones(20)) == (0.0, 1.0)
    assert trend(np.zeros(20)) == (0.0, 1.0)


def test_a_straight_line_is_a_trend():
    change, p = trend(np.arange(1.0, 21))
    assert (change, p) == (pytest.approx(19 / 10.5), pytest.approx(0.0, abs=1e-12))


@pytest.mark.parametrize(
    ("arrivals", "stationary"),
    [
        ("poisson:rate=2", True),
        ("closed", True),
        ("constant:rate=1", True),
        ("own", False),
        ("ramp:from=1,to=2", False),
    ],
)
def test_only_some_loads_are_meant_to_be_the_same_at_all_times(arrivals, stationary):
    assert is_stationary(arrivals) is stationary


@pytest.fixture
def evidence(made):
    """A run of 100 s with even arrivals, whose TTFT in ms is a function of the request's index."""

    def make(ttft_ms, *, arrivals="constant:rate=10", n=1000):
        requests = [made.request(i, at_ms=100 * i, ttft_ms=ttft_ms(i)) for i in range(n)]
        found = made.evidence(requests)
        return dataclasses.replace(found, header=msgspec.structs.replace(found.header, arrivals=arrivals))

    return make


def kinds(evidence):
    return {reason.kind: reason.severity for reason in judge(evidence).reasons}


def test_a_run_at_rest_is_valid_without_a_reason(evidence):
    assert kinds(evidence(lambda i: 200 + 20 * (i % 3))) == {}


def test_a_run_whose_waits_grow_is_invalid_and_says_by_how_much(evidence):
    found = judge(evidence(lambda i: 200 + 10 * i))
    assert found.verdict == "INVALID"
    (reason,) = found.reasons
    assert reason.kind == "not_steady"
    assert "TTFT by +1" in reason.text


def test_a_slow_start_is_warned_of(evidence):
    found = judge(evidence(lambda i: 3000 if i < 100 else 200 + 20 * (i % 3)))
    assert (found.verdict, [reason.kind for reason in found.reasons]) == ("VALID", ["transient"])
    assert "of 95 s are a start" in found.reasons[0].text


def test_loads_that_change_are_not_judged(evidence):
    assert kinds(evidence(lambda i: 200 + 10 * i, arrivals="own")) == {}


def test_short_runs_and_runs_without_a_send_are_not_judged(evidence, made):
    assert kinds(evidence(lambda i: 200 + 10 * i, n=450)) == {}
    nothing = made.evidence([made.unsent(0)])
    header = msgspec.structs.replace(nothing.header, arrivals="constant:rate=1")
    assert "not_steady" not in kinds(dataclasses.replace(nothing, header=header))


def test_seconds_without_a_request_have_the_wait_of_those_before(made):
    requests = [made.request(i, at_ms=3000 * i, ttft_ms=100) for i in range(40)]
    found = {each.name: each for each in steadiness(requests, {}, requests[-1].sent_ns)}
    assert found["TTFT"].trend_p == 1.0


def test_runs_without_a_token_are_judged_by_what_was_in_flight(made):
    requests = [made.failed(i, at_ms=100 * i) for i in range(1000)]
    assert [each.name for each in steadiness(requests, {}, requests[-1].sent_ns)] == ["requests in flight"]
