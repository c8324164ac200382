"""Estimates and exact tests, against enumeration and SciPy."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.effects import (
    Sides,
    _mann_whitney_law,
    _signed_rank_law,
    difference_p,
    equivalence_p,
    hodges_lehmann,
    holm,
)

RNG = np.random.default_rng(0)


def paired(*differences):
    b = np.array(differences, dtype=np.float64)
    return Sides(a=np.zeros(len(b)), b=b, paired=True)


def groups(a, b):
    return Sides(a=np.array(a, dtype=np.float64), b=np.array(b, dtype=np.float64), paired=False)


def test_the_signed_rank_law_is_that_of_all_signs():
    sums = [sum(chosen) for n in range(6) for chosen in itertools.combinations(range(1, 6), n)]
    assert _signed_rank_law(5) == pytest.approx(np.bincount(sums) / 32)


def test_the_mann_whitney_law_is_that_of_all_labels():
    sums = [sum(chosen) - 6 for chosen in itertools.combinations(range(1, 8), 3)]
    assert _mann_whitney_law(3, 4) == pytest.approx(np.bincount(sums) / math.comb(7, 3))


def test_five_pairs_allow_no_exact_95_percent_and_say_what_they_allow():
    found = hodges_lehmann(paired(1, 2, 3, 4, 10))
    assert (found.value, found.low, found.high) == (3.0, 1.0, 10.0)
    assert found.confidence == pytest.approx(1 - 2 / 32)


def test_six_pairs_allow_95_percent_by_their_extremes():
    found = hodges_lehmann(paired(1, 2, 3, 4, 5, 6))
    assert (found.low, found.high) == (1.0, 6.0)
    assert found.confidence == pytest.approx(1 - 2 / 64)


def test_groups_are_estimated_by_the_median_of_all_differences():
    found = hodges_lehmann(groups([1, 2, 3, 4, 5], [11, 12, 13, 14, 15]))
    assert found.value == 10.0
    # Tables of the rank-sum test: for 5 against 5 the third smallest and largest difference, 96.8 %.
    assert (found.low, found.high) == (7.0, 13.0)
    assert found.confidence == pytest.approx(0.9683, abs=1e-4)


@pytest.mark.parametrize("is_paired", [True, False])
def test_intervals_hold_as_often_as_they_say(is_paired):
    rng, hits = np.random.default_rng(3), 0
    for _ in range(1000):
        found = hodges_lehmann(Sides(a=rng.normal(0, 1, 7), b=rng.normal(0.5, 1, 7), paired=is_paired))
        hits += found.low <= 0.5 <= found.high
    assert hits / 1000 == pytest.approx(found.confidence, abs=0.02)


def test_p_counts_the_signs_that_are_as_extreme():
    assert difference_p(paired(1, 2, 3, 4, 5, 6), RNG) == pytest.approx(2 / 64)
    assert difference_p(paired(-1, 1, -2, 2), RNG) == 1.0


def test_p_of_groups_counts_the_labels():
    assert difference_p(groups([1, 2, 3, 4, 5], [11, 12, 13, 14, 15]), RNG) == pytest.approx(2 / 252)


def test_equivalence_needs_both_sides_within_the_margin():
    small = paired(0.01, -0.01, 0.02, 0.0, -0.02, 0.01)
    assert equivalence_p(small, 0.05, RNG) == pytest.approx(1 / 64)
    assert equivalence_p(paired(*[0.2, 0.21, 0.19, 0.2, 0.18, 0.22]), 0.05, RNG) == 1.0
    # Not knowing is not equality.
    assert equivalence_p(paired(0.3, -0.3, 0.2, -0.2, 0.4, -0.4), 0.05, RNG) > 0.05


def test_spread_is_that_of_pairs_or_of_one_side():
    a, b = np.array([1.0, 2.0, 4.0]), np.array([2.0, 4.0, 5.0])
    assert Sides(a=a, b=b, paired=True).spread() == pytest.approx((b - a).std(ddof=1))
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    assert Sides(a=a, b=b, paired=False).spread() == pytest.approx(pooled)
    assert math.isnan(paired(1.0).spread())
    assert math.isnan(groups([1.0], [2.0]).spread())


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p(p_values):
    adjusted = holm(p_values)
    order = np.argsort(p_values, kind="stable")
    assert all(p <= q <= 1 for p, q in zip(p_values, adjusted, strict=True))
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


@given(st.lists(st.floats(-10, 10), min_size=6, max_size=9, unique=True))
def test_swapping_the_sides_turns_the_estimate_round(differences):
    forth, back = hodges_lehmann(paired(*differences)), hodges_lehmann(paired(*(-d for d in differences)))
    assert (back.value, back.low, back.high) == pytest.approx((-forth.value, -forth.high, -forth.low))


def test_p_is_the_share_of_all_signs_that_are_as_extreme():
    differences = np.random.default_rng(5).normal(0.3, 1, 6)
    sums = np.array([np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=6)])
    expected = np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-12)
    assert difference_p(paired(*differences), RNG) == pytest.approx(expected)
