"""Order statistics of raw values, with the honesty rules that go with them.

A percentile here is always one of the observed values, is refused when the sample is too small to support
it, and is never averaged or interpolated. Intervals come from the binomial law of order statistics and hold
within one run only. Values carry whatever unit they came in.
"""

import math

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.special import bdtr

Values = npt.NDArray[np.float64]

CONFIDENCE = 0.95
INTERVAL_LABEL = "95 % interval, within-run only"
"""Requests of one run share queues, so the interval is too narrow for a claim beyond this run: measured
coverage 16–58 % at utilisation 0.8 (bench-methods §0.4). Only repeats give a between-run interval."""


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """One percentile. `value` is None when refused, and `refused` then says why.

    `low`/`high` bound it within this run; either is None where no observed value bounds that side.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    refused: str | None = None


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """What a table shows of one metric: `n` values, in the metric's unit."""

    n: int
    mean: float | None
    p50: Quantile
    p90: Quantile
    p99: Quantile
    max: float | None


def required_n(q: float) -> int:
    """Fewest values from which percentile `q` (0 < q < 1) is reported: 5 for P50, 29 for P90, 299 for P99.

    Below it even the largest value is no 95 % upper bound: P(all n values lie below the percentile) = q^n
    must be at most 5 % (bench-methods §C, "n for P99").
    """
    return math.ceil(math.log(1 - CONFIDENCE) / math.log(q))


def order_statistic(ordered: Values, q: float) -> float:
    """The ⌈q·n⌉-th smallest value: inverse of the empirical CDF (Hyndman & Fan 1996, type 1)."""
    # The subtraction undoes float dust: 0.07 * 100 is 7.000000000000001 and must stay rank 7.
    rank = math.ceil(q * len(ordered) - 1e-9)
    return float(ordered[max(rank, 1) - 1])


def interval_ranks(n: int, q: float) -> tuple[int | None, int | None]:
    """Ranks (from 1) of the order statistics that bound percentile `q` with 95 % confidence, 2.5 % a side.

    The number of values below the percentile is Binomial(n, q): David & Nagaraja, Order Statistics, §7.1.
    None on a side where no rank satisfies it; the upper side of P99 needs n >= 368.
    """
    tail = (1 - CONFIDENCE) / 2
    below = bdtr(np.arange(n + 1, dtype=np.float64), n, q)
    low = int(np.searchsorted(below, tail))
    high = int(np.searchsorted(below, 1 - tail)) + 1
    return (low if low >= 1 else None), (high if high <= n else None)


def quantile(ordered: Values, q: float, *, interval: bool) -> Quantile:
    """Percentile `q` of ascending values; without an interval where values are not one per request."""
    n, need = len(ordered), required_n(q)
    if n < need:
        return Quantile(value=None, refused=f"n = {n}, needs {need}")
    low, high = interval_ranks(n, q) if interval else (None, None)
    return Quantile(
        value=order_statistic(ordered, q),
        low=None if low is None else float(ordered[low - 1]),
        high=None if high is None else float(ordered[high - 1]),
    )


def describe(values: Values, *, interval: bool = True) -> Distribution:
    """Count, mean, P50, P90, P99 and maximum of `values` (any order)."""
    ordered = np.sort(values)
    return Distribution(
        n=len(ordered),
        mean=float(ordered.mean()) if len(ordered) else None,
        p50=quantile(ordered, 0.50, interval=interval),
        p90=quantile(ordered, 0.90, interval=interval),
        p99=quantile(ordered, 0.99, interval=interval),
        max=float(ordered[-1]) if len(ordered) else None,
    )
