"""Intervals within one run: blocks of neighbouring requests are drawn again, so that shared queues stay shared.

They say how well one run tells its own percentile. They hold for that run only: another run of the same system has
been seen outside of them two times in five at utilisation 0.8 (bench-methods §0.4).
"""

import math
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.analyze.stats import CONFIDENCE, Values, order_statistic, required_n

LABEL = "within-run only: block bootstrap of one run's requests, 95 %"
RESAMPLES = 500
_AUTOCORRELATION_LIMIT = 2.0
"""Autocorrelations below 2·sqrt(log10(n)/n) count as none (Politis & White 2004, §3.2)."""


class Within(msgspec.Struct, frozen=True, kw_only=True):
    """A percentile of one run; `block` is how many neighbouring requests were drawn together."""

    value: float
    low: float
    high: float
    block: int


def block_length(series: Values) -> int:
    """Length of blocks for the mean of `series` in the order of time: Politis & White 2004, corrected 2009.

    For the circular block bootstrap: (2ĝ²/D)^(1/3)·n^(1/3) with D = 4/3·spectrum(0)². At least 1, at most a third of n.
    """
    n = len(series)
    centred = series - series.mean()
    variance = float(centred @ centred) / n
    if n < 4 or variance == 0:
        return 1
    reach = _last_lag(centred / math.sqrt(variance))
    lags = np.arange(1, min(2 * reach, n - 1) + 1)
    covariances = np.array([float(centred[:-lag] @ centred[lag:]) / n for lag in lags])
    weights = np.clip(2 * (1 - lags / (2 * reach)), 0, 1)
    slope = 2 * float((weights * lags * covariances).sum())
    spectrum = variance + 2 * float((weights * covariances).sum())
    if spectrum <= 0:
        return 1
    length = (2 * slope**2 / (4 / 3 * spectrum**2) * n) ** (1 / 3)
    return int(np.clip(math.ceil(length), 1, max(n // 3, 1)))


def _last_lag(standard: Values) -> int:
    """The lag after which a run of autocorrelations is negligible; at least 1."""
    n = len(standard)
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    limit = _AUTOCORRELATION_LIMIT * math.sqrt(math.log10(n) / n)
    most = min(math.ceil(math.sqrt(n)) + quiet, n - 1)
    loud = [lag for lag in range(1, most + 1) if abs(float(standard[:-lag] @ standard[lag:]) / n) > limit]
    last = 0
    for lag in loud:
        if lag - last > quiet:
            break
        last = lag
    return max(last, 1)


def quantile_within(values: Values, q: float, rng: np.random.Generator) -> Within | None:
    """Percentile `q` of values in the order of time; None where it is refused.

    The block suits what the percentile depends on: the series of whether each value lies above it.
    """
    if len(values) < required_n(q):
        return None
    value = order_statistic(np.sort(values), q)
    block = block_length((values > value).astype(np.float64))
    drawn = np.array([order_statistic(np.sort(values[at]), q) for at in _resamples(len(values), block, rng)])
    low, high = np.quantile(drawn, ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)).tolist()
    return Within(value=value, low=low, high=high, block=block)


def _resamples(n: int, block: int, rng: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """Positions of each resample: blocks from anywhere, round the end (Politis & Romano 1992)."""
    steps = np.arange(block)
    for _ in range(RESAMPLES):
        starts = rng.integers(0, n, (math.ceil(n / block), 1))
        yield (starts + steps).ravel()[:n] % n
