"""How two sides of few runs differ: an estimate, its interval, and exact tests that assume no distribution.

Sides are compared in pairs (position by position) or as two groups. Works on differences: who wants ratios hands in
logarithms. Never sees a request: one value per run.
"""

import math
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from scipy.stats import permutation_test

from loadgen.analyze.stats import CONFIDENCE, Values

MOST_ARRANGEMENTS = 2**16
"""Up to so many the permutation test is exact; beyond, so many are drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """One value per run of each side; equally many, in matching order, when `paired`."""

    a: Values
    b: Values
    paired: bool

    def differences(self) -> Values:
        """b - a of each pair. Shape (n,)."""
        return self.b - self.a

    def spread(self) -> float:
        """Standard deviation of the pairs' differences; unpaired, of one side's runs (pooled). nan if unknown."""
        if self.paired:
            return float(self.differences().std(ddof=1)) if len(self.a) > 1 else math.nan
        freedom = len(self.a) + len(self.b) - 2
        squares = sum(float(((side - side.mean()) ** 2).sum()) for side in (self.a, self.b))
        return math.sqrt(squares / freedom) if freedom > 0 else math.nan


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A difference b - a; `confidence` of the interval is below 95 % where the runs are too few for that."""

    value: float
    low: float
    high: float
    confidence: float


def hodges_lehmann(sides: Sides) -> Estimate:
    """The median of all differences, and the interval that inverts the rank test (Hodges & Lehmann 1963).

    Paired: averages of every two differences, and the signed-rank law. Unpaired: every b less every a, and the law of
    Mann and Whitney. The laws are exact (Hollander, Wolfe & Chicken, Nonparametric Statistical Methods, §3.3, §4.3).
    """
    if sides.paired:
        differences = sides.differences()
        rows, columns = np.triu_indices(len(differences))
        candidates = np.sort((differences[rows] + differences[columns]) / 2)
        law = _signed_rank_law(len(differences))
    else:
        candidates = np.sort(np.subtract.outer(sides.b, sides.a).ravel())
        law = _mann_whitney_law(len(sides.a), len(sides.b))
    below = np.cumsum(law)
    rank = max(int(np.searchsorted(below, (1 - CONFIDENCE) / 2, side="right")), 1)
    return Estimate(
        value=float(np.median(candidates)),
        low=float(candidates[rank - 1]),
        high=float(candidates[-rank]),
        confidence=float(1 - 2 * below[rank - 1]),
    )


def _signed_rank_law(n: int) -> Values:
    """P(W = w): each rank 1…n counts with probability 1/2. Shape (n(n+1)/2 + 1,)."""
    law = np.ones(1)
    for rank in range(1, n + 1):
        law = (np.append(law, np.zeros(rank)) + np.append(np.zeros(rank), law)) / 2
    return law


def _mann_whitney_law(m: int, n: int) -> Values:
    """P(U = u) for m against n values. Shape (mn + 1,).

    Ranks are taken up one after another; `ways[k]` counts the sets of k ranks by their sum.
    """
    most = m * (m + 2 * n + 1) // 2
    ways = np.zeros((m + 1, most + 1))
    ways[0, 0] = 1
    for rank in range(1, m + n + 1):
        for size in range(min(rank, m), 0, -1):
            ways[size, rank:] += ways[size - 1, : most + 1 - rank]
    sums: Values = ways[m, m * (m + 1) // 2 :] / math.comb(m + n, m)
    return sums


def difference_p(sides: Sides, rng: np.random.Generator) -> float:
    """Two-sided p of the permutation test that the sides do not differ: signs of pairs, or labels of runs."""
    return _permuted_p(sides, "two-sided", rng)


def equivalence_p(sides: Sides, margin: float, rng: np.random.Generator) -> float:
    """p of "the difference is not within ±margin": the larger of two one-sided tests (Schuirmann 1987)."""
    above = Sides(a=sides.a - margin, b=sides.b, paired=sides.paired)
    under = Sides(a=sides.a + margin, b=sides.b, paired=sides.paired)
    return max(_permuted_p(above, "greater", rng), _permuted_p(under, "less", rng))


def _permuted_p(sides: Sides, alternative: Literal["two-sided", "greater", "less"], rng: np.random.Generator) -> float:
    found = permutation_test(
        (sides.b, sides.a),
        lambda b, a, axis: b.mean(axis=axis) - a.mean(axis=axis),
        permutation_type="samples" if sides.paired else "independent",
        vectorized=True,
        n_resamples=MOST_ARRANGEMENTS,
        alternative=alternative,
        rng=rng,
    )
    return float(found.pvalue)


def holm(p_values: list[float]) -> list[float]:
    """Adjusted p of each test of a family, in the order given (Holm 1979)."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for step, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - step) * p_values[at]))
        adjusted[at] = highest
    return adjusted
