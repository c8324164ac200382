import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.rates import RateCurve

rates = st.floats(0, 50).map(lambda rate: rate if rate > 1e-3 else 0.0)
pieces = st.lists(st.tuples(st.floats(0.1, 100), rates, rates), min_size=1, max_size=6)


def curve(parts):
    lengths, begins, ends = np.array(parts, dtype=float).T
    return RateCurve(np.concatenate(([0.0], np.cumsum(lengths))), begins, ends)


@given(pieces, st.lists(st.floats(0, 1, exclude_max=True), max_size=20))
def test_when_is_the_reverse_of_expected(parts, shares):
    drawn = curve(parts)
    marks = np.array(shares) * drawn.total()
    marks = marks[marks < drawn.total()]
    times = drawn.when(marks)
    assert (times >= 0).all()
    assert (times < drawn.duration_s).all()
    assert drawn.expected(times) == pytest.approx(marks, rel=1e-6, abs=1e-6)


@given(pieces, st.floats(0.1, 10))
def test_the_expectation_is_the_area_under_the_rate(parts, factor):
    drawn = curve(parts)
    area = sum(length * (begin + end) / 2 for length, begin, end in parts)
    assert drawn.total() == pytest.approx(area)
    assert drawn.scaled(factor).total() == pytest.approx(factor * area)
    assert drawn.expected(np.array([drawn.duration_s])) == pytest.approx(area)
    assert drawn.peak_per_s == max(max(begin, end) for _, begin, end in parts)


def test_steps_keep_their_rate_and_nothing_comes_where_there_is_none():
    steps = RateCurve.steps([0.0, 10.0, 20.0, 30.0], [1.0, 0.0, 3.0])
    assert steps.expected(np.array([5.0, 10.0, 15.0, 20.0, 21.0])).tolist() == [5.0, 10.0, 10.0, 10.0, 13.0]
    assert steps.when(np.array([5.0, 10.0, 13.0])).tolist() == pytest.approx([5.0, 20.0, 21.0])


def test_a_ramp_from_nothing_is_half_a_square():
    ramp = RateCurve(np.array([0.0, 10.0]), np.array([0.0]), np.array([20.0]))
    assert ramp.expected(np.array([0.0, 5.0])).tolist() == [0.0, 25.0]
    assert ramp.when(np.array([0.0, 25.0])).tolist() == pytest.approx([0.0, 5.0])
