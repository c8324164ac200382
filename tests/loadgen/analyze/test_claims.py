"""Verdicts on sides whose difference is known."""

import math

import numpy as np
import pytest

from loadgen.analyze.claims import Margins, Matched
from loadgen.analyze.run_figures import BY_NAME


def rows(runs, a, b, names=("ttft_p99",), *, paired=True, **margins):
    matched = Matched(runs_a=a, runs_b=b, paired=paired, margins=Margins(**margins), rng=np.random.default_rng(1))
    return matched.rows([(BY_NAME[name], lambda run, name=name: run.values[name]) for name in names])


def test_a_slower_side_is_worse_by_its_factor(runs):
    (row,) = rows(runs, *runs.sides(8, factor=1.2))
    assert row.verdict == "worse"
    assert row.why == "B is higher"
    assert row.claim.estimate.low <= 1.2 <= row.claim.estimate.high
    assert row.claim.p == pytest.approx(2 / 256)


def test_a_faster_side_is_better_and_so_is_a_higher_rate(runs):
    (row,) = rows(runs, *runs.sides(8, factor=0.8))
    assert (row.verdict, row.why) == ("better", "B is lower")
    a, b = runs.sides(8, output_tokens_per_s=1200.0)
    assert rows(runs, a, b, ("output_tokens_per_s",))[0].verdict == "better"


def test_equal_sides_are_equivalent_not_merely_undecided(runs):
    (row,) = rows(runs, *runs.sides(8))
    assert row.verdict == "equivalent"
    assert row.claim.equivalence_p == pytest.approx(1 / 256)


def test_sides_that_vary_too_much_are_undecided(runs):
    assert rows(runs, *runs.sides(6, spread=0.5))[0].verdict == "undecided"


def test_a_real_difference_within_the_margin_is_equivalence(runs):
    (row,) = rows(runs, *runs.sides(8, factor=1.02, spread=0.001))
    assert (row.verdict, row.why) == ("equivalent", "B is higher, by less than the margin")


def test_five_pairs_cannot_show_a_difference_and_say_what_would(runs):
    (row,) = rows(runs, *runs.sides(5, factor=1.5))
    assert row.verdict == "undecided"
    assert row.claim.estimate.confidence == pytest.approx(1 - 2 / 32)
    assert row.detectable is None
    assert row.repeats_needed >= 6


def test_below_five_runs_nothing_is_claimed_but_repeats_are_recommended(runs):
    (row,) = rows(runs, *runs.sides(4, factor=1.5))
    assert (row.verdict, row.claim, row.detectable) == ("no claim", None, None)
    assert row.why == "4 runs a side, 5 are needed"
    assert row.between_a.low is None
    assert row.repeats_needed >= 6


def test_one_run_a_side_tells_no_spread(runs):
    assert rows(runs, *runs.sides(1))[0].repeats_needed is None


def test_p_is_adjusted_over_the_metrics_that_can_be_tested(runs):
    a, b = runs.sides(8, factor=1.2, gap_p99=None)
    found = {row.metric: row for row in rows(runs, a, b, ("ttft_p50", "ttft_p99", "gap_p99"))}
    assert found["ttft_p99"].claim.p_holm == pytest.approx(2 * 2 / 256)
    assert found["gap_p99"].claim is None
    assert found["gap_p99"].why == "8 of 16 runs have too few values for it"
    assert found["gap_p99"].between_b is None


def test_a_value_of_zero_has_no_ratio(runs):
    a, b = runs.sides(6, output_tokens_per_s=0.0)
    (row,) = rows(runs, a, b, ("output_tokens_per_s",))
    assert (row.verdict, row.why) == ("no claim", "a run has a value of 0: there is no ratio")


def test_error_rates_are_compared_by_their_difference(runs):
    a, b = runs.sides(8, error_rate=0.03)
    (row,) = rows(runs, a, b, ("error_rate",))
    assert row.verdict == "worse"
    assert row.claim.estimate.value == pytest.approx(0.02)
    assert row.between_a is None
    a, b = runs.sides(8)
    assert rows(runs, a, b, ("error_rate",))[0].verdict == "equivalent"


def test_groups_need_no_partners(runs):
    a, b = runs.sides(8, factor=3.0)
    (row,) = rows(runs, a, b[:6], paired=False)
    assert row.verdict == "worse"
    assert row.detectable > 1


def test_pairs_find_what_groups_miss(runs):
    a, b = runs.sides(8, factor=1.05)
    assert rows(runs, a, b, paired=True)[0].verdict == "worse"
    assert rows(runs, a, b, paired=False)[0].verdict == "undecided"


def test_margins_are_logarithms_of_ratios():
    margins = Margins(ratio=0.05, error_rate=0.01)
    assert margins.of(BY_NAME["ttft_p99"]) == pytest.approx(math.log(1.05))
    assert margins.of(BY_NAME["error_rate"]) == 0.01
