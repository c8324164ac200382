"""The self-test against generators of released load generators, each with its defect, and against ours."""

import random

import numpy as np
import pytest

from loadgen.plan.arrivals import Law, parse_arrivals
from loadgen.plan.rates import RateCurve
from loadgen.plan.self_test import counts_check, lawless_test, refusal, self_test
from tests.loadgen.plan.test_arrivals import EVERY_FAMILY


def poisson_law(rate, duration_s):
    return Law(curve=RateCurve.steps([0.0, duration_s], [rate]), cv=1.0)


def failed(at_s, law):
    return {check.name for check in self_test(np.asarray(at_s, dtype=float), law) if not check.passed}


def until(duration_s, gaps):
    times = np.cumsum(list(gaps))
    return times[times < duration_s]


def repeated_gaps(rate, duration_s, seed, *, workers=4):
    """GuideLLM 0.8.1: every worker draws from a generator of the same seed and adds to an offset that all share."""
    generators = [random.Random(seed) for _ in range(workers)]
    draws = (generator.expovariate(rate) for _ in range(int(rate * duration_s)) for generator in generators)
    return until(duration_s, draws)


def whole_seconds(rate, duration_s, seed):
    """inference-perf 0.7.0: each second has a number of gaps that are scaled to fill it."""
    rng = np.random.default_rng(seed)
    times = []
    for second in range(int(duration_s)):
        gaps = rng.exponential(size=rng.poisson(rate))
        times += (second + np.cumsum(gaps) / gaps.sum()).tolist() if len(gaps) else []
    return times


def conditioned(rate, duration_s, seed, *, margin_s=0.0):
    """vLLM: the delays are scaled until the last one falls on requests/rate."""
    rng = np.random.default_rng(seed)
    times = np.cumsum(rng.exponential(1 / rate, size=int(rate * duration_s)))
    return times * ((duration_s - margin_s) / times[-1])


def drifting(rate, duration_s, seed, *, late_s=0.0004):
    """SGLang 0.5.23: sleeps a gap after each request, so what each wake-up is late adds up."""
    rng = np.random.default_rng(seed)
    return until(duration_s, rng.exponential(1 / rate, size=int(2 * rate * duration_s)) + late_s)


def burst_at_start(rate, duration_s, seed):
    """GuideLLM 0.8.1, R1 of the peers' measurements: a hundred requests have their time before the start."""
    rng = np.random.default_rng(seed)
    late = until(duration_s, rng.exponential(1 / rate, size=int(2 * rate * duration_s)))
    return np.concatenate([np.full(100, 1e-3) + np.arange(100) * 1e-6, late[late > 2e-3]])


def evenly(rate, duration_s, seed):
    """A loop that sleeps 1/rate and calls it Poisson."""
    return (np.arange(int(rate * duration_s)) + np.random.default_rng(seed).random()) / rate


def in_milliseconds(rate, duration_s, seed):
    """A schedule whose times were rounded to a millisecond on their way."""
    rng = np.random.default_rng(seed)
    return np.unique(
        np.rint(until(duration_s, rng.exponential(1 / rate, size=int(2 * rate * duration_s))) * 1000) / 1000
    )


DEFECTS = [
    (repeated_gaps, 20.0, {"distinct_gaps", "dispersion_1s"}),
    (repeated_gaps, 100.0, {"distinct_gaps", "dispersion_1s"}),
    (whole_seconds, 1.0, {"phase_1s"}),
    (whole_seconds, 2.0, {"phase_1s"}),
    (whole_seconds, 5.0, {"phase_1s"}),
    (whole_seconds, 20.0, {"phase_1s"}),
    (conditioned, 20.0, {"distance_from_ends"}),
    (drifting, 200.0, {"gap_law"}),
    (burst_at_start, 20.0, {"dispersion_1s"}),
    (evenly, 20.0, {"gap_law", "distinct_gaps", "dispersion_1s"}),
    (in_milliseconds, 20.0, {"phase_1ms"}),
]


@pytest.mark.parametrize(("generator", "rate", "found_by"), DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_a_generator_with_a_known_defect_is_refused_whatever_its_seed(generator, rate, found_by):
    law = poisson_law(rate, 120.0)
    for seed in range(20):
        assert failed(generator(rate, 120.0, seed), law) >= found_by


def test_gaps_that_are_not_repeated_pass_where_one_worker_draws_them():
    assert not failed(repeated_gaps(20.0, 120.0, 1, workers=1), poisson_law(20.0, 120.0))


def test_constant_arrivals_that_are_drawn_at_random_are_refused():
    """inference-perf 0.7.0: `constant` draws exponential gaps and scales them."""
    law = Law(curve=RateCurve.steps([0.0, 60.0], [10.0]), cv=0.0)
    assert "gap_deviation" in failed(whole_seconds(10.0, 60.0, 1), law)
    assert not failed(evenly(10.0, 60.0, 1), law)


def test_a_count_that_never_varies_is_found_over_several_schedules():
    laws = [poisson_law(20.0, 120.0)] * 5
    drawn = [conditioned(20.0, 120.0, seed, margin_s=0.02) for seed in range(5)]
    assert not any(failed(times, laws[0]) for times in drawn)
    check = counts_check([len(times) for times in drawn], laws)
    assert (check.name, check.value, check.passed) == ("count_variance", 0.0, False)
    assert not counts_check([len(times) for times in drawn[:1]], laws[:1]).judged
    ours = [parse_arrivals("poisson:rate=20").draw(np.random.default_rng(seed), duration_s=120.0) for seed in range(5)]
    assert counts_check([len(times) for times, _ in ours], [law for _, law in ours]).passed


def test_a_rate_that_is_not_the_planned_one_is_refused():
    times, _ = parse_arrivals("poisson:rate=19").draw(np.random.default_rng(1), duration_s=600.0)
    assert "count" in failed(times, poisson_law(20.0, 600.0))


def test_slow_changes_that_the_law_does_not_have_are_refused():
    times, law = parse_arrivals("bursts:rate=5").draw(np.random.default_rng(1), duration_s=3600.0)
    assert not failed(times, law)
    flat = poisson_law(law.curve.total() / 3600, 3600.0)
    assert failed(times, flat) >= {"dispersion_1s", "dispersion_10s", "gap_law"}


OURS = [*EVERY_FAMILY, "gamma:rate=20,cv=5", "gamma:rate=20,cv=0.2", "ramp:from=1,to=30,cv=3", "poisson:rate=0.2"]


@pytest.mark.parametrize("text", OURS)
def test_our_own_arrivals_pass(text):
    """Of right schedules nearly none is refused: these 100 all pass."""
    arrivals = parse_arrivals(text)
    for seed in range(100):
        times, law = arrivals.draw(np.random.default_rng([7, seed]), duration_s=117.3)
        assert refusal(self_test(times, law)) is None


def test_a_curve_that_repeats_within_a_second_has_its_phases_expected():
    times, law = parse_arrivals("bursts:rate=20,period=0.5,length=0.1").draw(np.random.default_rng(1), duration_s=60.0)
    assert not failed(times, law)
    assert "phase_1s" in failed(times, poisson_law(law.curve.total() / 60, 60.0))


def test_a_long_schedule_is_looked_at_in_long_windows():
    times, law = parse_arrivals("gamma:rate=2,cv=2").draw(np.random.default_rng(1), duration_s=6600.0)
    found = {check.name: check for check in self_test(times, law)}
    assert found["dispersion_300s"].passed
    assert found["dispersion_300s"].low < 4 < found["dispersion_300s"].high


def test_an_mmpp_that_stays_where_it_should_not_is_refused():
    arrivals = parse_arrivals("mmpp:low=5,high=20,low_s=5,high_s=5")
    times, law = arrivals.draw(np.random.default_rng(1), duration_s=600.0)
    checks = {check.name: check for check in self_test(times, law)}
    assert checks["time_at_high_rate"].judged
    assert checks["time_at_high_rate"].passed
    stuck = Law(
        curve=RateCurve.steps([0.0, 600.0], [20.0]),
        cv=1.0,
        occupancy=law.occupancy.__class__(share=1.0, mean=0.5, deviation=law.occupancy.deviation, switches=120.0),
    )
    always_high, _ = parse_arrivals("poisson:rate=20").draw(np.random.default_rng(1), duration_s=600.0)
    assert failed(always_high, stuck) == {"time_at_high_rate"}
    short, law = arrivals.draw(np.random.default_rng(1), duration_s=20.0)
    assert not {c.name: c for c in self_test(short, law)}["time_at_high_rate"].judged


@pytest.mark.parametrize("times", [[], [0.5], [0.2, 0.7]])
def test_a_handful_of_requests_is_not_judged(times):
    assert refusal(self_test(np.array(times), poisson_law(2.0, 1.0))) is None
    assert refusal(lawless_test(np.array(times), 1.0, judged=True)) is None


def test_a_refusal_says_what_was_found_and_what_was_expected():
    reason = refusal(self_test(np.array(evenly(20.0, 60.0, 1)), poisson_law(20.0, 60.0)))
    assert reason.startswith("the arrivals do not follow their law: ")
    assert "distinct_gaps is 0." in reason
    assert ", expected " in reason


def test_times_without_a_law_are_judged_by_what_no_law_has():
    rng = np.random.default_rng(1)
    bursty, _ = parse_arrivals("bursts:rate=20,cv=2").draw(rng, duration_s=120.0)
    checks = lawless_test(bursty, 120.0, judged=True)
    assert refusal(checks) is None
    described = {check.name: check for check in checks}
    assert described["dispersion_1s"].value > 10
    assert not described["dispersion_1s"].judged
    assert {
        c.name for c in lawless_test(np.array(whole_seconds(2.0, 120.0, 1)), 120.0, judged=True) if not c.passed
    } >= {"phase_1s"}
    assert {c.name for c in lawless_test(repeated_gaps(20.0, 120.0, 1), 120.0, judged=True) if not c.passed} == {
        "distinct_gaps"
    }


def test_times_of_a_log_are_described_and_never_refused():
    grid = np.sort(np.random.default_rng(1).integers(0, 40, size=500) * 3.0 + 1)
    checks = lawless_test(grid, 121.0, judged=False)
    assert refusal(checks) is None
    assert {check.name: check.value for check in checks}["phase_1s"] > 10
