import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.arrivals import cumulative, renewals, sample
from loadgen.workload.fitting.rates import (
    Resolution,
    bin_width_s,
    change_points,
    coarse,
    foretelling,
    foretold,
    grid_s,
    periods_s,
    rate_steps,
    spread_over_grid,
)


def arrive(rates_per_s, each_s, seed=1):
    curve = cumulative(np.arange(len(rates_per_s)) * each_s, np.array(rates_per_s), len(rates_per_s) * each_s)
    end_s = len(rates_per_s) * each_s
    poisson = lambda rng, span: renewals(rng, 1.0, span)  # noqa: E731
    return sample(np.random.default_rng(seed), curve, poisson, window_s=(0.0, end_s), rate_scale=1.0)


def coarse_at(duration_s, bin_s):
    """As for a log with ten requests in each bin."""
    return coarse(duration_s, round(10 * duration_s / bin_s), 0.0)


def cost(counts, starts, penalty):
    """Of a segmentation: negative Poisson log-likelihood at the means, and a penalty for each stretch."""
    total = -penalty
    for part in np.split(np.array(counts), starts[1:]):
        total += part.sum() - part.sum() * math.log(max(1, part.sum()) / len(part)) + penalty
    return total


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.floats(0.1, 20))
def test_no_other_cuts_cost_less(counts, penalty):
    found = change_points(np.array(counts), penalty)
    inner = range(1, len(counts))
    every = ([0, *cuts] for size in range(len(counts)) for cuts in itertools.combinations(inner, size))
    assert cost(counts, found, penalty) == pytest.approx(min(cost(counts, cuts, penalty) for cuts in every))


def test_known_steps_are_found_where_they_are():
    times = arrive([4.0, 20.0, 0.0, 10.0], 600.0)
    starts, per_s = rate_steps(times, 2400.0, coarse_at(2400.0, 5.0))
    assert starts == pytest.approx([0, 600, 1200, 1800], abs=10)
    assert per_s == pytest.approx([4, 20, 0, 10], rel=0.05, abs=0.05)


@pytest.mark.parametrize("seed", range(10))
def test_a_steady_rate_has_no_steps(seed):
    starts, per_s = rate_steps(arrive([5.0], 3600.0, seed), 3600.0, coarse_at(3600.0, 2.0))
    assert starts.tolist() == [0]
    assert per_s == pytest.approx([5.0], rel=0.05)


def test_a_short_burst_is_a_step_of_its_own():
    times = arrive([*[1.0] * 50, 30.0, *[1.0] * 50], 10.0)
    starts, per_s = rate_steps(times, 1010.0, coarse_at(1010.0, 5.0))
    assert starts.tolist() == [0, 500, 510]
    assert per_s[1] == pytest.approx(30, rel=0.2)


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=60), st.floats(1, 100))
def test_steps_keep_the_number_of_requests(times, bin_s):
    starts, per_s = rate_steps(np.sort(np.array(times)), 1000.0, Resolution(bin_s, 3.0))
    assert (per_s * np.diff(np.append(starts, 1000.0))).sum() == pytest.approx(len(times))


@pytest.mark.parametrize("seed", range(3))
def test_a_steady_rate_is_foretold_best_with_the_largest_penalty(seed):
    times = arrive([10.0], 1800.0, seed)
    assert foretelling(times, 1800.0, 0.0) == Resolution(1.0, 8.0)


def test_many_short_bursts_are_foretold_best_one_by_one():
    paces = np.where(np.random.default_rng(3).random(900) < 0.1, 12.0, 1.0)
    times = arrive(paces.tolist(), 2.0)
    found = foretelling(times, 1800.0, 0.0)
    assert found.penalty <= 3
    assert foretold(times, 1800.0, found) > foretold(times, 1800.0, coarse(1800.0, len(times), 0.0)) + 100


def test_a_step_that_was_there_foretells_more_than_none():
    times = arrive([2.0, 8.0], 300.0)
    none = Resolution(5.0, 1e9)
    # Of each half: the rates' own entropy, from one rate of 2.5 to rates of 1 and 4 requests a second.
    gained = 300 * (1 * np.log(1 / 2.5) + 4 * np.log(4 / 2.5))
    assert foretold(times, 600.0, Resolution(5.0, 8.0)) - foretold(times, 600.0, none) == pytest.approx(gained, rel=0.2)


def test_bins_that_foretell_are_no_narrower_than_the_grid():
    assert foretelling(arrive([10.0], 600.0), 600.0, 3.0).bin_s == 3.0


@pytest.mark.parametrize(
    ("duration_s", "requests", "width_s"), [(3600.0, 36_000, 1.2), (600.0, 60_000, 1.0), (3600.0, 360, 100.0)]
)
def test_bins_have_some_requests_each(duration_s, requests, width_s):
    assert bin_width_s(duration_s, requests) == pytest.approx(width_s)


@pytest.mark.parametrize("step", [1.0, 3.0, 10.0, 60.0])
def test_times_on_a_grid_are_seen_even_when_stamps_tremble(step):
    rng = np.random.default_rng(2)
    times = np.floor(arrive([2.0], 1800.0) / step) * step
    assert grid_s(times) == step
    assert grid_s(np.sort(times + rng.uniform(-0.003, 0.003, len(times)))) == step


def test_times_off_a_grid_and_too_few_steps_are_on_none():
    assert grid_s(arrive([5.0], 600.0)) == 0
    assert grid_s(np.repeat(np.arange(9.0), 5)) == 0


@given(st.integers(0, 99))
def test_what_is_spread_stays_in_its_cell_and_is_even_within(seed):
    times = np.repeat(np.arange(0, 300, 3.0), 7)
    spread = spread_over_grid(times, 3.0, np.random.default_rng(seed))
    assert (np.diff(spread) >= 0).all()
    assert (np.floor(spread / 3.0) * 3.0).tolist() == times.tolist()
    assert np.mean(spread % 3.0) == pytest.approx(1.5, abs=0.15)


def swinging(period_s, duration_s=3600.0, seed=3):
    """A mean of 10 per second, half as much and half as much again by turns, as a sine."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0, duration_s, rng.poisson(15 * duration_s)))
    rate = 10 * (1 + 0.5 * np.sin(2 * np.pi * times / period_s))
    return times[rng.random(len(times)) < rate / 15]


@pytest.mark.parametrize("period_s", [20.0, 60.0, 300.0])
def test_a_swing_is_found_with_its_period(period_s):
    found = periods_s(swinging(period_s), 3600.0, np.full(720, 50.0), 5.0)
    assert found[0] == pytest.approx(period_s, rel=0.02)


@pytest.mark.parametrize("seed", range(10))
def test_a_steady_rate_swings_nowhere(seed):
    assert periods_s(arrive([10.0], 3600.0, seed), 3600.0, np.full(720, 50.0), 5.0) == []


def test_too_little_to_swing_and_bins_in_which_nothing_is_expected():
    assert periods_s(np.array([0.5]), 1.0, np.ones(1), 1.0) == []
    assert periods_s(np.array([0.5, 30.0]), 10.0, np.array([*[1.0] * 5, *[0.0] * 5]), 1.0) == []


def test_no_more_than_three_periods_are_told():
    times = np.sort(
        np.concatenate([swinging(period_s, seed=n) for n, period_s in enumerate((20.0, 45.0, 100.0, 240.0))])
    )
    found = periods_s(times, 3600.0, np.full(720, 200.0), 5.0)
    assert len(found) == 3
    assert all(min(abs(one / period - 1) for period in (20.0, 45.0, 100.0, 240.0)) < 0.03 for one in found)
