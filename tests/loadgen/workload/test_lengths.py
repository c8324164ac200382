import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.lengths import coupled_uniforms, rounded_cdf

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
    assert cdf[0] == pytest.approx(stats.norm.cdf(np.log(0.505)))
    assert 1 - cdf[-2] == pytest.approx(stats.norm.sf(np.log(1.995)))


@pytest.mark.parametrize("spearman", [-1.0, -0.4, 0.0, 0.07, 0.8, 1.0])
def test_the_rank_correlation_is_the_one_asked_for(spearman):
    u, v = coupled_uniforms(np.random.default_rng(2).standard_normal((20_000, 2)), spearman)
    assert stats.spearmanr(u, v).statistic == pytest.approx(spearman, abs=0.025)
    for margin in (u, v):
        assert stats.kstest(margin, "uniform").pvalue > 1e-3
