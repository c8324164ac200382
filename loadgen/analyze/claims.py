"""What matched runs say of one metric after another: how far apart the sides are, and whether that is a claim.

A family of metrics is tested together, its p values adjusted by Holm. Below `MIN_RUNS` a side nothing is claimed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from loadgen.analyze import repeats
from loadgen.analyze.effects import Estimate, Sides, difference_p, equivalence_p, hodges_lehmann, holm
from loadgen.analyze.repeats import MIN_RUNS, Between, Design, between_runs
from loadgen.analyze.run_figures import Metric, RunFigures
from loadgen.analyze.stats import CONFIDENCE

Verdict = Literal["better", "worse", "equivalent", "undecided", "no claim"]


class Margins(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as no difference: a share for ratios, and for the error rate a difference of shares."""

    ratio: float = 0.05
    error_rate: float = 0.005

    def of(self, metric: Metric) -> float:
        """On the scale on which the metric is tested: a logarithm for ratios."""
        return math.log1p(self.ratio) if metric.scale == "ratio" else self.error_rate


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs say of B against A. A ratio is B / A; a difference, of the error rate, B - A."""

    estimate: Estimate
    """Hodges-Lehmann."""
    p: float
    """That there is no difference: exact permutation test."""
    p_holm: float
    equivalence_p: float
    """That the difference is not within the margin: two one-sided tests."""
    equivalence_p_holm: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One metric."""

    metric: str
    label: str
    scale: Literal["ratio", "difference"]
    unit: str
    a: list[float | None]
    """Per run; in pairs these are in matching order."""
    b: list[float | None]
    between_a: Between | None
    between_b: Between | None
    claim: Claim | None
    detectable: float | None
    """Smallest effect that so many runs find with 90 %, as `scale` says: 1.08, or 0.01."""
    repeats_needed: int | None
    """Of each side, to find an effect of the size of the margin with 90 %; None: spread unknown, or over 10,000."""
    verdict: Verdict
    why: str


Value = Callable[[RunFigures], float | None]
"""A figure of a run; None where the run is too short for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """Makes the rows of a family of metrics from matched runs."""

    runs_a: Sequence[RunFigures]
    runs_b: Sequence[RunFigures]
    paired: bool
    margins: Margins
    rng: np.random.Generator

    @property
    def few(self) -> bool:
        """Whether there are too few runs for any claim."""
        return min(len(self.runs_a), len(self.runs_b)) < MIN_RUNS

    def rows(self, family: Sequence[tuple[Metric, Value]]) -> list[Row]:
        """One row per metric; p values are adjusted over those that can be tested."""
        sides = [self._sides(metric, value) for metric, value in family]
        testable = [at for at, found in enumerate(sides) if isinstance(found, Sides) and not self.few]
        claims = self._claims([(family[at][0], sides[at]) for at in testable])
        by_position = dict(zip(testable, claims, strict=True))
        design = Design(paired=self.paired, tests=max(len(testable) if testable else len(family), 1))
        return [
            self._row(metric, value, sides[at], by_position.get(at), design)
            for at, (metric, value) in enumerate(family)
        ]

    def _sides(self, metric: Metric, value: Value) -> Sides | str:
        """The values on the scale of the test, or why there are none."""
        a, b = [value(run) for run in self.runs_a], [value(run) for run in self.runs_b]
        known_a, known_b = [v for v in a if v is not None], [v for v in b if v is not None]
        missing = len(a) + len(b) - len(known_a) - len(known_b)
        if missing:
            return f"{missing} of {len(a) + len(b)} runs have too few values for it"
        if metric.scale == "difference":
            return Sides(a=np.array(known_a), b=np.array(known_b), paired=self.paired)
        if min(*known_a, *known_b) <= 0:
            return "a run has a value of 0: there is no ratio"
        return Sides(a=np.log(known_a), b=np.log(known_b), paired=self.paired)

    def _claims(self, family: Sequence[tuple[Metric, Sides | str]]) -> list[Claim]:
        tested = [(metric, sides) for metric, sides in family if isinstance(sides, Sides)]
        p = [difference_p(sides, self.rng) for _, sides in tested]
        equal_p = [equivalence_p(sides, self.margins.of(metric), self.rng) for metric, sides in tested]
        return [
            Claim(
                estimate=as_shown(metric, hodges_lehmann(sides)),
                p=p[at],
                p_holm=adjusted,
                equivalence_p=equal_p[at],
                equivalence_p_holm=equal_adjusted,
            )
            for at, ((metric, sides), adjusted, equal_adjusted) in enumerate(
                zip(tested, holm(p), holm(equal_p), strict=True)
            )
        ]

    def _row(self, metric: Metric, value: Value, sides: Sides | str, claim: Claim | None, design: Design) -> Row:
        a, b = [value(run) for run in self.runs_a], [value(run) for run in self.runs_b]
        found, needed = (None, None) if isinstance(sides, str) else self._reach(metric, sides, design)
        verdict, why = self._verdict(metric, sides, claim)
        return Row(
            metric=metric.name,
            label=metric.label,
            scale=metric.scale,
            unit=metric.unit,
            a=a,
            b=b,
            between_a=_between(metric, a),
            between_b=_between(metric, b),
            claim=claim,
            detectable=None if self.few else found,
            repeats_needed=needed,
            verdict=verdict,
            why=why,
        )

    def _reach(self, metric: Metric, sides: Sides, design: Design) -> tuple[float | None, int | None]:
        """The smallest effect that is found, as shown, and the repeats that the margin takes."""
        spread, n = sides.spread(), min(len(sides.a), len(sides.b))
        if math.isnan(spread):
            return None, None
        freedom = len(sides.a) - 1 if sides.paired else len(sides.a) + len(sides.b) - 2
        bound = repeats.spread_bound(spread, freedom)
        smallest = repeats.detectable(spread, n, design) if n >= design.fewest() else math.inf
        return _scaled(metric, smallest), repeats.needed(bound, self.margins.of(metric), design)

    def _verdict(self, metric: Metric, sides: Sides | str, claim: Claim | None) -> tuple[Verdict, str]:
        if isinstance(sides, str):
            return "no claim", sides
        if claim is None:
            return "no claim", f"{min(len(self.runs_a), len(self.runs_b))} runs a side, {MIN_RUNS} are needed"
        alpha = 1 - CONFIDENCE
        differs, equal = claim.p_holm <= alpha, claim.equivalence_p_holm <= alpha
        higher = claim.estimate.value > (1 if metric.scale == "ratio" else 0)
        what = f"B is {'higher' if higher else 'lower'}"
        if equal:
            return (
                "equivalent",
                f"{what}, by less than the margin" if differs else "any difference is within the margin",
            )
        if differs:
            return ("better" if higher == (metric.better == "higher") else "worse"), what
        return "undecided", "neither a difference nor its absence is shown"


def _between(metric: Metric, values: Sequence[float | None]) -> Between | None:
    known = [value for value in values if value is not None and value > 0]
    if metric.scale == "difference" or len(known) < len(values):
        return None
    return between_runs(np.array(known))


def _scaled(metric: Metric, effect: float) -> float | None:
    """A difference of logarithms as a ratio; None for one that is no number."""
    if not math.isfinite(effect):
        return None
    return math.exp(effect) if metric.scale == "ratio" else effect


def as_shown(metric: Metric, estimate: Estimate) -> Estimate:
    """A difference of logarithms as a ratio."""
    if metric.scale == "difference":
        return estimate
    value, low, high = (math.exp(at) for at in (estimate.value, estimate.low, estimate.high))
    return msgspec.structs.replace(estimate, value=value, low=low, high=high)
