"""Order statistics: exact values, refusals, and the coverage that the binomial law promises."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from loadgen.analyze.stats import describe, interval_ranks, order_statistic, quantile, required_n

samples = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=200)


def ordered(*values):
    return np.sort(np.array(values, dtype=np.float64))


@pytest.mark.parametrize(("q", "n"), [(0.5, 5), (0.9, 29), (0.99, 299)])
def test_the_fewest_values_a_percentile_needs(q, n):
    assert required_n(q) == n
    assert q**n <= 0.05 < q ** (n - 1)


def test_percentile_of_merged_values_is_not_a_mean_of_percentiles():
    values = ordered(*[0.010] * 1000, *[2.0] * 10)
    assert order_statistic(values, 0.95) == 0.010
    assert order_statistic(values, 1000 / 1010) == 0.010
    assert order_statistic(values, 1001 / 1010) == 2.0


def test_the_rank_is_exact_where_the_product_is_not():
    assert 0.07 * 100 > 7
    assert order_statistic(np.arange(1.0, 101.0), 0.07) == 7


@given(samples, st.floats(0.001, 0.999))
def test_a_percentile_is_a_value_that_the_stated_share_does_not_exceed(values, q):
    found = order_statistic(np.sort(values), q)
    assert found in values
    assert np.mean(np.array(values) <= found) >= q - 1e-9


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("n", [1, 5, 29, 367, 368, 1000])
def test_interval_ranks_leave_at_most_a_fortieth_on_each_side(n, q):
    low, high = interval_ranks(n, q)
    if low is not None:
        assert binom.cdf(low - 1, n, q) <= 0.025
        assert binom.cdf(low, n, q) > 0.025
    else:
        assert binom.cdf(0, n, q) > 0.025
    if high is not None:
        assert binom.sf(high - 1, n, q) <= 0.025
        assert binom.sf(high - 2, n, q) > 0.025
    else:
        assert q**n > 0.025


def test_p99_is_bounded_above_from_368_values():
    assert interval_ranks(367, 0.99)[1] is None
    assert interval_ranks(368, 0.99)[1] == 368


@given(st.integers(5, 2000), st.sampled_from([0.5, 0.9, 0.99]))
def test_the_interval_contains_the_percentile(n, q):
    found = quantile(np.arange(float(n)), q, interval=True)
    if found.value is not None:
        assert found.low is None or found.low <= found.value
        assert found.high is None or found.high >= found.value


def test_a_small_sample_is_refused_with_its_reason():
    found = quantile(np.arange(298.0), 0.99, interval=True)
    assert (found.value, found.low, found.high) == (None, None, None)
    assert found.refused == "n = 298, needs 299"
    assert quantile(np.arange(299.0), 0.99, interval=True).value == 296


def test_without_an_interval_only_the_value_is_given():
    found = quantile(np.arange(10.0), 0.5, interval=False)
    assert (found.value, found.low, found.high) == (4, None, None)


def test_describe_takes_any_order_and_an_empty_sample():
    found = describe(np.array([3.0, 1.0, 2.0, 5.0, 4.0]))
    assert (found.n, found.mean, found.p50.value, found.max) == (5, 3, 3, 5)
    assert found.p99.refused == "n = 5, needs 299"
    empty = describe(np.empty(0))
    assert (empty.n, empty.mean, empty.p50.value, empty.max) == (0, None, None, None)
