"""The rate over time: change points of the counts, the grid that times lie on, and swings that come back.

Pure and deterministic: equal times give equal figures.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from loadgen.workload.traffic import Floats, Ints

_MOST_BINS = 3000
_MOST_PERIODS = 3
_ON_GRID = 0.999
"""Share of times that have to lie on a grid to call it one."""
_STAMP_ERROR_S = 0.004
"""Mooncake's stamps are off their 3 s grid by up to 3 ms."""
_GRIDS_S = (60.0, 30.0, 15.0, 10.0, 5.0, 3.0, 2.0, 1.0)
_FALSE_ALARM = 0.001
_PENALTIES = (8.0, 6.0, 4.0, 3.0, 2.0, 1.5, 1.0)
"""The first of equally good ones is taken."""
_SEED = 0


def bin_width_s(duration_s: float, requests: int) -> float:
    """For change points: some ten requests a bin at the mean rate, at least 1 s, and no more than 3,000 bins."""
    return max(1.0, 10 * duration_s / requests, duration_s / _MOST_BINS)


def change_points(counts: Ints, penalty: float) -> list[int]:
    """Where each stretch of equal rate begins, the first at 0.

    Optimal partitioning with the Poisson likelihood (Jackson et al. 2005; PELT prunes it, Killick et al. 2012): the
    least of the sum of costs and a penalty for each stretch. O(n^2) for n counts, each step a vector.
    """
    total = np.concatenate(([0], np.cumsum(counts))).astype(np.float64)
    best = np.empty(len(counts) + 1)
    best[0] = -penalty
    previous = np.zeros(len(counts) + 1, dtype=np.int64)
    positions = np.arange(len(counts) + 1)
    for end in range(1, len(counts) + 1):
        requests = total[end] - total[:end]
        lengths = end - positions[:end]
        # The part of the negative log-likelihood that depends on where the cuts are, at the mean of each stretch.
        cost = requests - requests * np.log(np.maximum(requests, 1) / lengths)
        candidates = best[:end] + cost + penalty
        previous[end] = int(np.argmin(candidates))
        best[end] = candidates[previous[end]]
    starts = []
    end = len(counts)
    while end > 0:
        end = int(previous[end])
        starts.append(end)
    return starts[::-1]


class Resolution(NamedTuple):
    """How closely a rate follows the counts."""

    bin_s: float
    penalty: float
    """Of a step, in units of log-likelihood."""


def coarse(duration_s: float, requests: int, grid: float) -> Resolution:
    """Steps that nobody would dispute: the penalty is twice what the Bayesian information criterion asks for."""
    bin_s = max(bin_width_s(duration_s, requests), grid)
    return Resolution(bin_s, 2 * math.log(max(2, round(duration_s / bin_s))))


def foretelling(times_s: Floats, duration_s: float, grid: float) -> Resolution:
    """Of narrow bins and small penalties, those whose steps foretell the other half of the requests best."""
    bin_s = max(1.0, duration_s / _MOST_BINS, grid)
    return max(
        (Resolution(bin_s, penalty) for penalty in _PENALTIES),
        key=lambda resolution: foretold(times_s, duration_s, resolution),
    )


def foretold(times_s: Floats, duration_s: float, resolution: Resolution) -> float:
    """Log-likelihood of each random half of the requests under the steps of the other one, mean of both.

    Halves of a Poisson process are independent of each other (thinning), so steps that only follow chance foretell
    worse than fewer would.
    """
    chosen = np.random.default_rng(_SEED).random(len(times_s)) < 0.5
    halves = times_s[chosen], times_s[~chosen]
    return sum(_likelihood(*pair, duration_s, resolution) for pair in (halves, halves[::-1])) / 2


def _likelihood(seen_s: Floats, times_s: Floats, duration_s: float, resolution: Resolution) -> float:
    starts, per_s = rate_steps(seen_s, duration_s, resolution)
    edges = np.append(starts, duration_s)
    counts, _ = np.histogram(times_s, bins=edges)
    # Half a request more, so that nothing is impossible where none was seen.
    per_s = per_s + 0.5 / np.diff(edges)
    return float((counts * np.log(per_s) - per_s * np.diff(edges)).sum())


def rate_steps(times_s: Floats, duration_s: float, resolution: Resolution) -> tuple[Floats, Floats]:
    """Starts in s and rates per s of stretches of equal rate that cover `duration_s`.

    Bursts that last some bins become steps of their own, which is what a queue behind them feels.
    """
    bins = max(1, round(duration_s / resolution.bin_s))
    edges = np.linspace(0, duration_s, bins + 1)
    counts, _ = np.histogram(times_s, bins=edges)
    starts = change_points(counts, resolution.penalty)
    sums = np.add.reduceat(counts, starts)
    lengths_s = np.diff(np.append(edges[starts], duration_s))
    return edges[starts], sums / lengths_s


def grid_s(times_s: Floats) -> float:
    """The coarsest grid of whole seconds that the times lie on; 0 when they lie on none.

    Times of fewer than 10 steps are on none: they say nothing.
    """
    for step in _GRIDS_S:
        off_s = np.abs(times_s - np.rint(times_s / step) * step)
        if np.mean(off_s <= _STAMP_ERROR_S) >= _ON_GRID and times_s[-1] >= 10 * step:
            return step
    return 0.0


def spread_over_grid(times_s: Floats, step_s: float, rng: np.random.Generator) -> Floats:
    """Each time at an even random place of its grid cell, ascending: where it was within the cell is lost."""
    cells = np.rint(times_s / step_s)
    return np.sort((cells + rng.random(len(times_s))) * step_s)


def periods_s(times_s: Floats, duration_s: float, curve_at: Floats, bin_s: float) -> list[float]:
    """Periods of swings that stand out of what the rate over time explains, the strongest first.

    `curve_at` is the expected number in each bin. Fisher's test on the periodogram of the standardised residuals.
    """
    bins = len(curve_at)
    counts, _ = np.histogram(times_s, bins=bins, range=(0, bins * bin_s))
    residual = (counts - curve_at) / np.sqrt(np.maximum(curve_at, 1e-9))
    residual[curve_at < 1e-9] = 0.0
    power = np.abs(np.fft.rfft(residual - residual.mean())[1:]) ** 2
    found = []
    for _ in range(_MOST_PERIODS):
        share = float(power.max() / power.sum()) if power.size and power.sum() > 0 else 0.0
        # P(largest share > g) <= n (1 - g)^(n - 1) (Fisher 1929).
        if share == 0.0 or len(power) * (1 - share) ** (len(power) - 1) > _FALSE_ALARM:
            break
        at = int(power.argmax())
        found.append(round(bins * bin_s / (at + 1), 1))
        power[at] = 0.0
    return found
