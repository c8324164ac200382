"""Knees and laws that were put there are found; what has none is said to have none."""

import numpy as np
import pytest

from loadgen.analyze.knee import Scalability, find_knee, scalability

LEVELS = np.arange(50.0, 151, 10)


def points(capacity, seed=0, noise=1.0, repeats=3):
    """Throughput that follows the load up to the capacity, `repeats` runs a level."""
    rng, load = np.random.default_rng(seed), np.repeat(LEVELS, repeats)
    return load, np.minimum(load, capacity) + rng.normal(0, noise, len(load))


def test_the_knee_is_where_throughput_stops_to_follow():
    found = find_knee(*points(97.0, noise=0.01), LEVELS)
    assert found.load == pytest.approx(97.0, abs=0.2)
    assert (found.slope_before, found.slope_after) == (pytest.approx(1, abs=0.01), pytest.approx(0, abs=0.01))
    assert (found.open_low, found.open_high) == (False, False)


def test_the_interval_holds_as_often_as_it_says():
    found = [find_knee(*points(97.0, seed, noise=3.0), LEVELS) for seed in range(300)]
    assert np.mean([knee.low <= 97.0 <= knee.high for knee in found]) == pytest.approx(0.95, abs=0.04)


def test_an_interval_that_goes_on_beyond_the_loads_is_open():
    high, low = find_knee(*points(141.0, noise=0.5), LEVELS), find_knee(*points(59.0, noise=0.5), LEVELS)
    assert high.open_high
    assert low.open_low


def test_throughput_that_follows_the_load_everywhere_has_no_knee():
    assert "does not level off" in find_knee(*points(1000.0), LEVELS)


def test_throughput_that_never_follows_has_no_knee():
    assert "does not level off" in find_knee(LEVELS, np.linspace(30, 20, len(LEVELS)), LEVELS)


def test_too_few_loads_have_no_knee():
    assert find_knee(LEVELS[:6], LEVELS[:6], LEVELS[:6]) == "6 loads were measured, a knee needs 7"


def law(n, rate, contention, coherency):
    return rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))


def test_the_law_is_found_again_with_its_peak():
    n = np.arange(1.0, 60, 4)
    found = scalability(n, law(n, 2.0, 0.05, 0.001))
    assert (found.rate, found.contention, found.coherency) == pytest.approx((2.0, 0.05, 0.001), rel=0.01)
    assert found.peak_in_flight == pytest.approx(np.sqrt(0.95 / 0.001), rel=0.01)
    assert found.r_squared == pytest.approx(1.0)


def test_a_peak_far_beyond_the_data_is_not_told():
    n = np.arange(1.0, 12)
    assert scalability(n, law(n, 2.0, 0.05, 0.0001)).peak_in_flight is None
    linear = scalability(n, 2 * n)
    assert isinstance(linear, Scalability)
    assert linear.peak_in_flight is None


def test_a_throughput_that_never_changes_explains_nothing():
    assert scalability(np.arange(1.0, 12), np.full(11, 5.0)).r_squared == 0.0


def test_too_few_points_have_no_law():
    assert "fewer than 7" in scalability(np.ones(20), np.ones(20))


def test_a_fit_that_does_not_end_is_told(monkeypatch):
    def endless(*_, **__):
        raise RuntimeError("maximum number of evaluations exceeded")

    monkeypatch.setattr("loadgen.analyze.knee.curve_fit", endless)
    assert scalability(np.arange(1.0, 12), np.arange(1.0, 12)).startswith("the law does not fit")
