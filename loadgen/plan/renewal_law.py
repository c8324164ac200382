"""What stationary renewals with gamma gaps of mean 1 do: their counts, their spectrum, their gaps' law.

Closed forms, written without a look at how such renewals are drawn, so that the one can be checked by the other.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammainc, gammaincinv

from loadgen.workload.traffic import Floats

_EXACT_UP_TO = 5_000.0


def count_variance(span: float, cv: float) -> float:
    """Variance of the number of renewals in a span (Cox 1962, section 4.5).

    span + 2 ∫(H(u) - u)du over the span, where H, the renewal function, is the sum over n of the probability that n
    gaps fit; each of its terms has a closed integral. Long spans take the asymptote cv²·span + (1 - cv⁴)/6.
    """
    if cv == 1 or span == 0:
        return span
    if span > max(_EXACT_UP_TO, 100 * cv * cv):
        return cv * cv * span + (1 - cv**4) / 6
    shape = cv**-2
    n = np.arange(1, 20 + math.ceil(span + 10 * cv * math.sqrt(span) + 20 * cv * cv))
    integrals = span * gammainc(shape * n, shape * span) - n * gammainc(shape * n + 1, shape * span)
    return float(span + 2 * (integrals.sum() - span * span / 2))


def excess_kurtosis(mean: float, variance: float) -> float:
    """Of a count, by the negative binomial law of this mean and variance, or the Poisson law where it varies less."""
    over = max(0.0, variance / mean - 1)
    return 6 * over / mean + 1 / variance


def spectrum(cycles_per_gap: Floats, cv: float) -> Floats:
    """Spectral density of the renewals relative to that of a Poisson process (Bartlett 1963).

    The real part of (1 + f)/(1 - f), where f is the characteristic function of the gaps at that frequency.
    """
    shape = cv**-2
    f = (1 - 2j * np.pi * cycles_per_gap / shape) ** -shape
    density: Floats = np.real((1 + f) / (1 - f))
    return density


def gap_probability(gaps: Floats, cv: float) -> Floats:
    """Probability of a gap up to each of these."""
    probability: Floats = gammainc(cv**-2, gaps * cv**-2)
    return probability


def distinct_share(gaps: int, cell: float, cv: float) -> float:
    """Expected share of distinct values among so many gaps that are told apart by cells of this width."""
    edges = np.concatenate([np.arange(1000.0), np.geomspace(1000.0, 1e18, 2000)]) * cell
    cells = np.diff(edges) / cell
    each = np.diff(gap_probability(edges, cv)) / cells
    return float((cells * -np.expm1(-gaps * each)).sum()) / gaps


def sum_band(mean: float, variance: float, alpha: float) -> tuple[float, float]:
    """Where a sum that cannot be negative lies but for a share `alpha`: the gamma law of this mean and variance."""
    shape, scale = mean * mean / variance, variance / mean
    low, high = scale * gammaincinv(shape, [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)
