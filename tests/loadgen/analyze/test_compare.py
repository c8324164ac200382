"""How runs are matched, what differs between them, and what stands where there is no claim."""

import numpy as np
import pytest

from loadgen.analyze.claims import Margins
from loadgen.analyze.compare import Question, compare
from loadgen.analyze.run_figures import METRICS


def compared(a, b):
    question = Question(a="A", b="B", metrics=METRICS, margins=Margins())
    return compare(question, a, b, np.random.default_rng(1))


def test_runs_of_one_schedule_are_pairs_whatever_the_order_given(runs):
    a, b = runs.sides(6)
    found = compared(a, b[::-1])
    assert (found.paired, found.pairing) == (True, "6 pairs of runs, each of one schedule")
    assert [name[1:] for name in found.runs_a] == [name[1:] for name in found.runs_b]


def test_repeats_of_one_schedule_are_matched_in_the_order_of_time(runs):
    a = [runs.figures(f"a{at}", at=at) for at in (4, 0, 2)]
    b = [runs.figures(f"b{at}", at=at) for at in (3, 5, 1)]
    found = compared(a, b)
    assert (found.runs_a, found.runs_b) == (["a0", "a2", "a4"], ["b1", "b3", "b5"])


def test_runs_without_a_partner_are_compared_as_groups_and_the_reason_is_said(runs):
    a, b = runs.sides(6)
    found = compared(a, [*b[:5], runs.figures("other", schedule="z", at=11)])
    assert not found.paired
    assert found.pairing.startswith("not paired: 2 runs have no partner")
    assert found.same_stream == []
    assert found.same_stream_ratio is None


def test_differing_fingerprints_are_found_field_by_field(runs):
    a, b = runs.sides(5, host="other")
    (field,) = compared(a, b).differing
    assert (field.field, field.a, field.b) == ("host.cpu", ["h"], ["other"])
    assert compared(*runs.sides(5)).differing == []


def test_a_field_that_changes_within_a_side_differs_too(runs):
    a, b = runs.sides(5)
    changed = [*a[:4], runs.figures("a9", host="other", at=9, schedule="s4")]
    assert compared(changed, b).differing[0].a == ["h", "other"]


def test_what_changes_alike_on_both_sides_differs_only_where_it_parts_a_pair(runs):
    a, b = ([runs.figures(f"{s}{n}", host=f"h{n}", at=2 * n, schedule=f"s{n}") for n in range(5)] for s in "ab")
    assert compared(a, b).differing == []
    swapped = [runs.figures(f"b{n}", host=f"h{4 - n}", at=2 * n, schedule=f"s{n}") for n in range(5)]
    assert [each.field for each in compared(a, swapped).differing] == ["host.cpu"]
    assert compared(a, [*b, runs.figures("b5", host="h0", schedule="s5")]).differing == []


def test_invalid_runs_and_sides_one_after_the_other_are_warned_of(runs):
    a = [runs.figures(f"a{at}", at=at, verdict="INVALID" if at == 2 else "VALID") for at in range(5)]
    b = [runs.figures(f"b{at}", at=at) for at in range(5, 10)]
    invalid, order = compared(a, b).warnings
    assert "a2" in invalid
    assert order.startswith("All runs of one side came before")
    assert compared(b, a).warnings[-1] == order
    assert compared(*runs.sides(5)).warnings == []


def test_requests_of_a_pair_are_compared_one_by_one(runs):
    found = compared(*runs.sides(6, factor=1.3, spread=0.001))
    assert [pair.requests for pair in found.same_stream] == [400] * 6
    assert found.same_stream[0].ratio.value == pytest.approx(1.3, rel=0.01)
    assert found.same_stream_ratio.value == pytest.approx(1.3, rel=0.01)


def test_too_few_runs_have_intervals_within_runs_and_no_claim(runs):
    found = compared(*runs.sides(2, factor=1.3))
    assert {row.verdict for row in found.rows} == {"no claim"}
    assert found.same_stream_ratio is None
    assert len(found.within) == 2 * 2 * 3
    assert {each.metric for each in found.within} == {"ttft_p50", "ttft_p99", "e2e_p99"}
    assert all(each.found.low <= each.found.value <= each.found.high for each in found.within)
    assert found.within_label.startswith("within-run only")


def test_enough_runs_have_no_intervals_within_runs(runs):
    assert compared(*runs.sides(5)).within == []


def test_runs_too_short_for_a_p99_have_no_interval_of_it(runs):
    a, b = [runs.figures("a", requests=100)], [runs.figures("b", requests=100)]
    assert {each.metric for each in compared(a, b).within} == {"ttft_p50"}


def test_runs_too_short_for_a_median_are_no_pairs_of_requests(runs):
    pair = compared([runs.figures("a", requests=3)], [runs.figures("b", requests=3)]).same_stream[0]
    assert pair.ratio is None


def test_buckets_are_rows_of_their_own(runs):
    found = compared(*runs.sides(8, factor=1.2))
    p50, p99 = found.buckets["≤ 128"]
    assert (p50.metric, p50.verdict) == ("ttft_p50", "worse")
    assert p99.verdict == "no claim"
    a, b = runs.sides(8)
    b[0].buckets.clear()
    assert compared(a, b).buckets["≤ 128"][0].verdict == "no claim"


def test_equal_runs_give_equal_comparisons(runs):
    assert compared(*runs.sides(5)) == compared(*runs.sides(5))
