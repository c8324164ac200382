"""Whether a run came to rest, and when: a percentile over a queue that still grows says how long the run was.

MSER-5 finds where a start-up transient ends (White, Simulation 69(6), 1997). It is known to cut at random where
there is nothing to cut, so a cut counts only when a second test, of another kind, agrees. Pure; times in seconds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import linregress, t

from loadgen.analyze.latency import NS_PER_S, ContentReads, ttft_ns
from loadgen.analyze.series import series
from loadgen.analyze.stats import Values
from protocol.records import RequestRecord

BATCH = 5
MIN_BATCHES = 10
"""Below it no part of a run is told from another."""
SIGNIFICANCE = 0.01
MATERIAL = 0.2
"""Smallest change over the run, as a share of its mean, that is worth a reason."""
OUTLYING = 3.0
"""Standard deviations from which on a start is unlike the rest."""
STATIONARY = ("constant", "poisson", "gamma", "mmpp", "closed")
"""Families whose load does not change with time; in any other the system is not expected to come to rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """What one series says. `settled_s` is where MSER-5 ends the transient, from the start of the run."""

    name: str
    settled_s: float
    run_s: float
    change: float
    """By a straight line through the whole run: from its start to its end, as a share of the mean."""
    trend_p: float
    start_change: float
    """Mean before `settled_s` less the mean after it, as a share of the latter."""
    start_off: float
    """The same in standard deviations of the batches after it."""

    @property
    def never(self) -> bool:
        """More than half would have to be cut, and there is a trend."""
        trend = self.trend_p < SIGNIFICANCE and abs(self.change) > MATERIAL
        return trend and self.settled_s > self.run_s / 2

    @property
    def late(self) -> bool:
        """There is a start, and it is unlike the rest."""
        return not self.never and abs(self.start_change) > MATERIAL and abs(self.start_off) > OUTLYING


def is_stationary(arrivals: str) -> bool:
    """Whether this load, as the header of a schedule names it, is the same at all times."""
    return arrivals.partition(":")[0] in STATIONARY


def steadiness(requests: Sequence[RequestRecord], reads: Mapping[int, ContentReads], until_ns: int) -> list[Steadiness]:
    """Requests in flight, TTFT and output tokens/s of a run up to its last send; empty for one of under 50 bins.

    Bins are of 1 s, or wider in runs of over half an hour. After `until_ns` the load ebbs away, which is no transient.
    """
    load = series({"": requests}, reads, until_ns)
    bins = len(load.t_s) - 1
    if bins < BATCH * MIN_BATCHES:
        return []
    found = {
        "requests in flight": np.array(load.arms[""].in_flight[:bins]),
        "TTFT": _ttft_medians(requests, load.bin_s, bins),
        "output tokens/s": np.array(load.arms[""].output_tokens_per_s[:bins]),
    }
    return [_judged(name, values, float(load.bin_s)) for name, values in found.items() if values.any()]


def _ttft_medians(requests: Sequence[RequestRecord], bin_s: int, bins: int) -> Values:
    """Median of each bin by intended time; a bin without a request has that of the one before."""
    waits = [(r.intended_ns / NS_PER_S, wait / NS_PER_S) for r in requests if (wait := ttft_ns(r)) is not None]
    at_s, ttft_s = np.array(waits, dtype=np.float64).reshape(-1, 2).T
    member = (at_s / bin_s).astype(np.int64)
    medians, last = np.zeros(bins), float(np.median(ttft_s)) if len(ttft_s) else 0.0
    for at in range(bins):
        of_bin = ttft_s[member == at]
        last = medians[at] = float(np.median(of_bin)) if len(of_bin) else last
    return medians


def _judged(name: str, values: Values, bin_s: float) -> Steadiness:
    batches = _batches(values)
    cut = mser(batches)
    change, trend_p = trend(batches)
    rest = batches[cut:]
    spread, mean = float(rest.std(ddof=1)), float(rest.mean())
    off = float(batches[:cut].mean()) - mean if cut else 0.0
    return Steadiness(
        name=name,
        settled_s=cut * BATCH * bin_s,
        run_s=len(batches) * BATCH * bin_s,
        change=change,
        trend_p=trend_p,
        start_change=_over(off, mean),
        start_off=_over(off, spread),
    )


def _over(difference: float, size: float) -> float:
    """Infinite where a difference is measured against nothing."""
    if difference == 0:
        return 0.0
    return difference / size if size else math.copysign(math.inf, difference)


def _batches(values: Values) -> Values:
    """Means of every `BATCH` values; what is left at the end is dropped."""
    count = len(values) // BATCH
    means: Values = values[: count * BATCH].reshape(count, BATCH).mean(axis=1)
    return means


def mser(batches: Values) -> int:
    """How many batches to cut from the start: where the standard error of the rest's mean is least.

    The last `BATCH` batches cannot be cut: their variance, of so few, is no measure.
    """
    errors = [float(batches[cut:].var()) / (len(batches) - cut) for cut in range(len(batches) - BATCH + 1)]
    return int(np.argmin(errors))


def trend(batches: Values) -> tuple[float, float]:
    """Change along a straight line over all batches, as a share of their mean, and its two-sided p.

    Neighbouring batches of a queue are alike, so the test counts only as many as their correlation leaves:
    n(1-r)/(1+r) for autocorrelation r at lag 1 (Bayley & Hammersley 1946).
    """
    n, mean = len(batches), float(batches.mean())
    if mean == 0 or np.ptp(batches) == 0:
        return 0.0, 1.0
    fit = linregress(np.arange(n), batches)
    residuals = batches - (fit.intercept + fit.slope * np.arange(n))
    power = float(residuals @ residuals)
    # Residuals of float dust belong to a straight line, whose correlation means nothing.
    r = max(float(residuals[1:] @ residuals[:-1]) / power, 0.0) if power > 1e-18 * n * mean**2 else 0.0
    left = max(n * (1 - r) / (1 + r), 3.0)
    error = float(fit.stderr) * math.sqrt((n - 2) / (left - 2))
    p = 2 * float(t.sf(abs(fit.slope) / error, left - 2)) if error > 0 else 0.0
    return float(fit.slope) * (n - 1) / mean, p
