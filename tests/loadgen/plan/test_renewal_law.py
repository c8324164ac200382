import numpy as np
import pytest

from loadgen.plan.renewal_law import (
    count_variance,
    distinct_share,
    excess_kurtosis,
    gap_probability,
    spectrum,
    sum_band,
)


def counts(cv, span, windows, seed=1):
    """Renewals counted in windows far from the first one, so that the process is stationary."""
    rng = np.random.default_rng(seed)
    gaps = rng.gamma(cv**-2, cv**2, size=int(1.3 * span * windows) + 5000)
    marks = np.cumsum(gaps) - 1000
    marks = marks[marks >= 0]
    assert marks[-1] > span * windows
    return np.bincount((marks / span).astype(int))[:windows]


@pytest.mark.parametrize(("cv", "span"), [(0.3, 1.0), (0.3, 10.0), (1.0, 3.0), (2.0, 1.0), (2.0, 30.0), (4.0, 5.0)])
def test_counts_vary_as_the_formula_says(cv, span):
    found = counts(cv, span, 40_000)
    assert found.mean() == pytest.approx(span, rel=0.05)
    assert found.var() == pytest.approx(count_variance(span, cv), rel=0.08)


@pytest.mark.parametrize("cv", [0.3, 2.0, 8.0])
def test_the_asymptote_continues_the_exact_sum(cv):
    border = max(5_000.0, 100 * cv * cv)
    below, above = count_variance(border, cv), count_variance(border * (1 + 1e-12), cv)
    assert above == pytest.approx(below, rel=1e-6)


def test_poisson_counts_and_empty_spans_vary_as_they_must():
    assert count_variance(7.0, 1.0) == 7.0
    assert count_variance(0.0, 3.0) == 0.0
    assert count_variance(1e-6, 3.0) == pytest.approx(1e-6, rel=0.5)


def test_kurtosis_is_that_of_a_poisson_or_a_negative_binomial_law():
    rng = np.random.default_rng(2)
    for drawn in (rng.poisson(4.0, 400_000), rng.negative_binomial(5, 0.5, 400_000)):
        mean, variance = drawn.mean(), drawn.var()
        found = ((drawn - mean) ** 4).mean() / variance**2 - 3
        assert excess_kurtosis(mean, variance) == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_the_spectrum_is_what_simulated_renewals_have(cv):
    rng = np.random.default_rng(3)
    cycles = 0.7
    powers = []
    for _ in range(400):
        marks = np.cumsum(rng.gamma(cv**-2, cv**2, size=6000)) - 300
        marks = marks[(marks >= 0) & (marks < 3000)]
        powers.append(abs(np.exp(2j * np.pi * cycles * marks).sum()) ** 2 / 3000)
    assert np.mean(powers) == pytest.approx(float(spectrum(np.array([cycles]), cv)[0]), rel=0.2)


def test_gaps_have_mean_1_and_their_law():
    rng = np.random.default_rng(4)
    gaps = rng.gamma(0.25, 4.0, size=200_000)
    points = np.array([0.01, 0.5, 1.0, 5.0])
    assert gap_probability(points, 2.0) == pytest.approx([(gaps <= point).mean() for point in points], abs=0.005)


@pytest.mark.parametrize(("cv", "cell"), [(1.0, 1e-4), (1.0, 1e-9), (3.0, 1e-6), (0.2, 1e-4)])
def test_the_share_of_distinct_gaps_is_what_draws_have(cv, cell):
    rng = np.random.default_rng(5)
    gaps = np.rint(rng.gamma(cv**-2, cv**2, size=20_000) / cell)
    assert distinct_share(20_000, cell, cv) == pytest.approx(len(np.unique(gaps)) / 20_000, abs=0.01)


def test_a_band_leaves_out_the_share_that_it_should():
    low, high = sum_band(10.0, 20.0, 0.1)
    drawn = np.random.default_rng(6).gamma(5.0, 2.0, size=100_000)
    assert (drawn < low).mean() == pytest.approx(0.05, abs=0.003)
    assert (drawn > high).mean() == pytest.approx(0.05, abs=0.003)
