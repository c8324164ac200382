"""Intervals between runs and numbers of repeats, against SciPy and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from loadgen.analyze.repeats import Design, between_runs, detectable, needed, spread_bound

PAIRED = Design(paired=True, tests=1)


def test_the_interval_is_the_t_interval_of_the_logarithms():
    values = np.array([1.0, 1.2, 0.9, 1.1, 1.05])
    low, high = stats.ttest_1samp(np.log(values), 0).confidence_interval(0.95)
    found = between_runs(values)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.value == pytest.approx(stats.gmean(values))


def test_fewer_than_five_runs_have_no_interval():
    found = between_runs(np.array([1.0, 4.0]))
    assert (found.n, found.value, found.low, found.high) == (2, pytest.approx(2.0), None, None)


@pytest.mark.parametrize(
    ("paired", "tests", "fewest"), [(True, 1, 6), (True, 6, 8), (False, 1, 4), (False, 6, 5), (False, 20, 6)]
)
def test_fewest_is_where_the_smallest_possible_p_reaches_the_level(paired, tests, fewest):
    assert Design(paired=paired, tests=tests).fewest() == fewest


@pytest.mark.parametrize("design", [PAIRED, Design(paired=False, tests=1)])
def test_the_detectable_effect_is_found_nine_times_in_ten(design):
    repeats, spread, rng = 8, 0.1, np.random.default_rng(1)
    effect = detectable(spread, repeats, design)
    if design.paired:
        p = stats.ttest_1samp(rng.normal(effect, spread, (4000, repeats)), 0, axis=1).pvalue
    else:
        sides = rng.normal(0, spread, (2, 4000, repeats))
        p = stats.ttest_ind(sides[0] + effect, sides[1], axis=1).pvalue
    assert np.mean(p <= 0.05) == pytest.approx(0.9, abs=0.03)


def test_one_run_a_side_detects_nothing():
    assert detectable(0.1, 1, PAIRED) == math.inf


def test_needed_is_the_first_number_that_is_enough():
    n = needed(0.2, 0.05, PAIRED)
    assert detectable(0.2, n, PAIRED) <= 0.05 < detectable(0.2, n - 1, PAIRED)


def test_needed_is_never_below_what_the_exact_test_can_reach():
    assert needed(0.0, 0.05, PAIRED) == 6


def test_a_spread_beyond_reach_needs_more_than_can_be_said():
    assert needed(10.0, 0.01, PAIRED) is None


def test_the_bound_of_the_spread_holds_four_times_in_five():
    seen = np.random.default_rng(2).normal(0, 1.0, (4000, 5)).std(axis=1, ddof=1)
    assert np.mean([spread_bound(spread, 4) >= 1.0 for spread in seen]) == pytest.approx(0.8, abs=0.02)
