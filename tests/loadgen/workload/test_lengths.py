import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.lengths import coupled_uniforms, quantiles, rounded_cdf

MIXTURE = [(0.3, 3.0, 0.5), (0.7, 5.0, 1.0)]


@given(st.integers(1, 200), st.integers(0, 3000))
def test_the_probabilities_rise_to_one(low, span):
    cdf = rounded_cdf(MIXTURE, low, low + span)
    assert len(cdf) == span + 1
    assert (np.diff(cdf) >= 0).all()
    assert cdf[0] >= 0
    assert cdf[-1] == 1


def test_lengths_follow_the_mixture():
    cdf = rounded_cdf(MIXTURE, 1, 5000)
    law = lambda x: sum(w * stats.lognorm(s, scale=np.exp(m)).cdf(x) for w, m, s in MIXTURE)  # noqa: E731
    assert cdf[:100] == pytest.approx(law(np.arange(1, 101) + 0.5))


def test_what_lies_beyond_a_limit_lies_on_it():
    cdf = rounded_cdf([(1.0, np.log(100), 1.0)], 50, 200)
    drawn = quantiles(cdf, 50, np.random.default_rng(1).random(20_000))
    assert (drawn.min(), drawn.max()) == (50, 200)
    assert np.mean(drawn == 50) == pytest.approx(stats.norm.cdf(np.log(0.505)), abs=0.01)
    assert np.mean(drawn == 200) == pytest.approx(stats.norm.sf(np.log(1.995)), abs=0.01)


@given(st.floats(0, 1))
def test_a_quantile_is_the_smallest_length_that_reaches_it(share):
    cdf = rounded_cdf(MIXTURE, 10, 900)
    length = int(quantiles(cdf, 10, share))
    assert cdf[length - 10] >= share
    assert length == 10 or cdf[length - 11] < share


@pytest.mark.parametrize("spearman", [-1.0, -0.4, 0.0, 0.07, 0.8, 1.0])
def test_the_rank_correlation_is_the_one_asked_for(spearman):
    u, v = coupled_uniforms(np.random.default_rng(2), 20_000, spearman)
    assert stats.spearmanr(u, v).statistic == pytest.approx(spearman, abs=0.025)
    for margin in (u, v):
        assert stats.kstest(margin, "uniform").pvalue > 1e-3


def test_fewer_pairs_begin_more_pairs():
    few = coupled_uniforms(np.random.default_rng(3), 5, 0.5)
    many = coupled_uniforms(np.random.default_rng(3), 50, 0.5)
    for short, long in zip(few, many, strict=True):
        assert short.tolist() == long[:5].tolist()
