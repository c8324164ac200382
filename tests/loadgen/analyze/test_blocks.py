"""The block bootstrap on series whose dependence is known."""

import numpy as np
import pytest

from loadgen.analyze.blocks import block_length, quantile_within


def autoregressive(n, phi, seed):
    rng = np.random.default_rng(seed)
    values = np.empty(n)
    values[0] = rng.normal() / np.sqrt(1 - phi**2)
    for at in range(1, n):
        values[at] = phi * values[at - 1] + rng.normal()
    return values


def test_independent_values_are_drawn_nearly_one_by_one():
    assert np.median([block_length(np.random.default_rng(s).normal(size=2000)) for s in range(20)]) <= 3


def test_blocks_are_as_long_as_theory_says():
    phi, n = 0.7, 2000
    lags = np.arange(1, 200)
    covariances = phi**lags / (1 - phi**2)
    slope = 2 * (lags * covariances).sum()
    spectrum = 1 / (1 - phi**2) + 2 * covariances.sum()
    expected = (2 * slope**2 / (4 / 3 * spectrum**2) * n) ** (1 / 3)
    found = np.median([block_length(autoregressive(n, phi, seed)) for seed in range(20)])
    assert found == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("series", [np.ones(100), np.array([1.0, 2.0]), np.tile([1.0, -1.0], 50)])
def test_series_without_a_usable_spectrum_have_blocks_of_one(series):
    assert block_length(series) == 1


def test_the_median_of_dependent_values_is_covered():
    rng, hits = np.random.default_rng(1), 0
    for seed in range(60):
        found = quantile_within(autoregressive(1500, 0.7, seed), 0.5, rng)
        hits += found.low <= 0 <= found.high
    assert hits >= 51


def test_a_percentile_that_the_run_is_too_short_for_is_refused():
    assert quantile_within(np.arange(298.0), 0.99, np.random.default_rng(1)) is None
