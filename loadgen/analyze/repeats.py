"""What repeats of a run carry: intervals between runs, and how many repeats an effect takes to be seen.

The unit is the run, never the request: requests of one run share queues and say nothing about the next run. Pure;
values carry whatever unit they came in.
"""

import math

import msgspec
import numpy as np
from scipy.stats import chi2, t

from loadgen.analyze.stats import CONFIDENCE, Values

MIN_RUNS = 5
"""Fewest runs from which anything is claimed beyond them (bench-methods §C, "between-run CI")."""
POWER = 0.9
"""Chance with which an effect of the size that is asked for shall be found."""
SPREAD_ASSURANCE = 0.8
"""Repeats are recommended for the upper bound of the spread that holds this often: few runs tell their spread badly,
and a recommendation from the spread as seen would fall short every second time (Browne, Stat. in Medicine 14, 1995)."""
MAX_REPEATS = 10_000


class Between(msgspec.Struct, frozen=True, kw_only=True):
    """A figure over independent runs; the interval is None below `MIN_RUNS`."""

    n: int
    value: float
    """Geometric mean of the runs' values."""
    low: float | None
    high: float | None


def between_runs(values: Values) -> Between:
    """t-interval of 95 % on the logarithms of one value per run (Kalibera & Jones 2013).

    On logarithms, since percentiles of latency are skewed and vary in proportion to their size. `values` are above 0.
    """
    logs = np.log(values)
    n, centre = len(logs), float(logs.mean())
    if n < MIN_RUNS:
        return Between(n=n, value=math.exp(centre), low=None, high=None)
    half = float(t.ppf((1 + CONFIDENCE) / 2, n - 1) * logs.std(ddof=1) / math.sqrt(n))
    return Between(n=n, value=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half))


class Design(msgspec.Struct, frozen=True, kw_only=True):
    """How two sides are compared: run by run in pairs, or as two groups; and at which level one test must pass."""

    paired: bool
    tests: int
    """In Holm's family: the first of them must reach 5 % divided by it."""

    @property
    def alpha(self) -> float:
        return (1 - CONFIDENCE) / self.tests

    def freedom(self, repeats: int) -> int:
        """Degrees of freedom of the spread, with so many runs a side."""
        return repeats - 1 if self.paired else 2 * repeats - 2

    def fewest(self) -> int:
        """Repeats below which an exact permutation test cannot reach the level, however large the effect."""
        return next(n for n in range(2, MAX_REPEATS) if self.alpha * self._arrangements(n) >= 2)

    def _arrangements(self, repeats: int) -> int:
        return 2**repeats if self.paired else math.comb(2 * repeats, repeats)


def detectable(spread: float, repeats: int, design: Design) -> float:
    """Smallest effect that is found with 90 %: a difference of logarithms, or of values, as `spread` is.

    `spread` is the standard deviation of the pairs' differences or, unpaired, of the runs of one side.
    (t(1-α/2) + t(power)) · standard error: Cohen, Statistical Power Analysis, §2.3. inf below two runs a side.
    """
    freedom = design.freedom(repeats)
    if freedom < 1:
        return math.inf
    error = spread * math.sqrt((1 if design.paired else 2) / repeats)
    return float(t.ppf(1 - design.alpha / 2, freedom) + t.ppf(POWER, freedom)) * error


def spread_bound(spread: float, freedom: int) -> float:
    """Upper bound of the true spread behind one that was seen, with `SPREAD_ASSURANCE`."""
    return spread * math.sqrt(freedom / float(chi2.ppf(1 - SPREAD_ASSURANCE, freedom)))


def needed(spread: float, effect: float, design: Design) -> int | None:
    """Repeats of each side with which an effect of this size is found; None when it takes more than 10,000."""
    low, high = design.fewest(), MAX_REPEATS
    if detectable(spread, high, design) > effect:
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if detectable(spread, middle, design) <= effect else (middle + 1, high)
    return low
