"""What is left of randomness on rescaled time: gamma or Weibull renewals, or switching where gaps hang together."""

from __future__ import annotations

import math

import numpy as np
from scipy import optimize, special, stats

from loadgen.workload.arrivals import dispersion
from loadgen.workload.description import GammaRenewals, Switching, TableRenewals, WeibullRenewals
from loadgen.workload.traffic import Floats

_LEAST_GAP = 1e-9
"""On the scale of the mean gap: simultaneous requests have no likelihood under a continuous law."""

_EVEN_CV = 1e-3
"""Gaps that vary less are even."""

_TELLING = 4.0
"""By how much the logarithm of a likelihood has to be larger to prefer the Weibull; less is chance."""

_LEAST_VARIANCE = 1e-3
"""Of the rate: with less, both states are the same."""


def fit_renewals(gaps: Floats) -> GammaRenewals | WeibullRenewals:
    """The likelier of both families, at a mean gap of 1. Poisson is a gamma of cv 1."""
    scaled = np.maximum(gaps / gaps.mean(), _LEAST_GAP)
    if scaled.std() < _EVEN_CV:
        return GammaRenewals(cv=0.0)
    gamma_shape = _gamma_shape(scaled)
    weibull_shape = _weibull_shape(scaled)
    gamma = float(stats.gamma.logpdf(scaled, gamma_shape, scale=1 / gamma_shape).sum())
    weibull_scale = 1 / math.gamma(1 + 1 / weibull_shape)
    weibull = float(stats.weibull_min.logpdf(scaled, weibull_shape, scale=weibull_scale).sum())
    if gamma >= weibull - _TELLING:
        return GammaRenewals(cv=round(gamma_shape**-0.5, 4))
    return WeibullRenewals(shape=round(weibull_shape, 4))


def _gamma_shape(scaled: Floats) -> float:
    """Maximum likelihood at mean 1: ln k - digamma(k) = -mean ln x."""
    spread = -float(np.log(scaled).mean())
    return float(optimize.brentq(lambda k: math.log(k) - special.digamma(k) - spread, 1e-3, 1e7))


def _weibull_shape(scaled: Floats) -> float:
    """Maximum likelihood with the scale that gives mean 1."""

    def negative(shape: float) -> float:
        return -float(stats.weibull_min.logpdf(scaled, shape, scale=1 / math.gamma(1 + 1 / shape)).mean())

    return float(optimize.minimize_scalar(negative, bounds=(0.05, 20.0), method="bounded").x)


def gap_cdf(residual: GammaRenewals | WeibullRenewals | TableRenewals | Switching, gaps: Floats) -> Floats:
    """Distribution of a gap of mean 1. That of switching is the mixture of both rates' gaps, by their requests."""
    if isinstance(residual, GammaRenewals):
        if residual.cv == 0:
            return (gaps >= 1).astype(np.float64)
        values: Floats = stats.gamma.cdf(gaps, residual.cv**-2, scale=residual.cv**2)
        return values
    if isinstance(residual, WeibullRenewals):
        weibull: Floats = stats.weibull_min.cdf(gaps, residual.shape, scale=1 / math.gamma(1 + 1 / residual.shape))
        return weibull
    if isinstance(residual, TableRenewals):
        return np.interp(gaps, residual.gaps, np.linspace(0, 1, len(residual.gaps)))
    busy = residual.busy_rate * residual.busy_stay / (residual.busy_stay + residual.quiet_stay)
    return busy * -np.expm1(-residual.busy_rate * gaps) + (1 - busy) * -np.expm1(-residual.quiet_rate * gaps)


def gap_table(gaps: Floats) -> list[float]:
    """Gaps at 401 even steps of their share, scaled to a mean of 1."""
    table = np.quantile(gaps / gaps.mean(), np.linspace(0, 1, 401))
    table /= np.trapezoid(table) / (len(table) - 1)
    return [float(f"{gap:.4g}") for gap in table.tolist()]


def fit_switching(marks: Floats) -> Switching | None:
    """A Markov-modulated Poisson process of two states by moments of the counts (Heffes and Lucantoni 1986).

    The index of dispersion at long windows, the way it rises to there, and the skewness of counts; None when counts do
    not stay dispersed.
    """
    span = float(marks[-1])
    windows = np.geomspace(2, max(2.0, span / 20), 12)
    indices = np.array([dispersion(marks, window, span) for window in windows.tolist()])
    if span < 80 or not indices.max() > 1.5:
        return None
    # An index of n windows has a variance of about 2 / n times its square.
    weights = 1 / (windows * indices**2)

    # IDC(t) - 1 rises to its limit as 1 - (1 - exp(-st)) / st, where s is the sum of the rates of switching.
    def closest(speed: float) -> tuple[float, float]:
        """The limit, and how far off it is."""
        rise = 1 + np.expm1(-speed * windows) / (speed * windows)
        limit = float((weights * rise * (indices - 1)).sum() / (weights * rise * rise).sum())
        return limit, float((weights * (indices - 1 - limit * rise) ** 2).sum())

    bounds = (math.log(1e-4), math.log(10.0))
    best = optimize.minimize_scalar(lambda log_speed: closest(math.exp(log_speed))[1], bounds=bounds, method="bounded")
    speed = math.exp(float(best.x))
    limit, _ = closest(speed)
    # The limit is 2 V / s, where V is the variance of the rate.
    variance = limit * speed / 2
    if variance < _LEAST_VARIANCE:
        return None
    # More of the time busy than this, and the quiet rate would be negative.
    busy = min(_busy_share(marks, speed), 0.999 / (1 + variance))
    return Switching(
        quiet_rate=round(1 - math.sqrt(variance * busy / (1 - busy)), 4),
        busy_rate=round(1 + math.sqrt(variance * (1 - busy) / busy), 4),
        quiet_stay=round(1 / (speed * busy), 3),
        busy_stay=round(1 / (speed * (1 - busy)), 3),
    )


def _busy_share(marks: Floats, speed: float) -> float:
    """The share of time in the busy state, by the skewness of the rate: (1 - 2p) / sqrt(p (1 - p)).

    The rate's cumulants are the counts' factorial ones, in windows that are short beside the stays.
    """
    span = float(marks[-1])
    windows = max(3, int(span / max(2.0, 0.5 / speed)))
    counts, _ = np.histogram(marks, bins=windows, range=(0, span))
    off = counts - counts.mean()
    second = float((off**2).mean() - counts.mean())
    third = float((off**3).mean()) - 3 * float((off**2).mean()) + 2 * float(counts.mean())
    if second <= 0:
        return 0.5
    skewness: float = third / second**1.5
    return min(max(0.5 - skewness / (2 * math.sqrt(4 + skewness**2)), 0.005), 0.995)
