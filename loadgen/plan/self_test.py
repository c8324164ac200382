"""The self-test of arrivals: do the times of a schedule follow the law that they were drawn from?

Hides the statistics. Each check gives a value and a band, and a check with too little to go by is not judged. It
knows the law only as formulas, so a generator that repeats gaps, drifts, aligns to the clock or fixes its count is
found out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
from scipy.special import kolmogi

from loadgen.plan.arrivals import Law
from loadgen.plan.rates import RateCurve
from loadgen.plan.renewal_law import (
    count_variance,
    distinct_share,
    excess_kurtosis,
    gap_probability,
    spectrum,
    sum_band,
)
from loadgen.workload.traffic import Floats
from protocol.records import ArrivalCheck

_ALPHA = 1e-5
"""Probability that one check fails a right schedule, as far as its statistic's law is exact."""

_LEAST = 20
"""Requests, gaps or windows that a check needs to say anything."""

_WINDOWS_S = (1.0, 10.0, 60.0, 300.0)
_PHASES_S = {"1s": 1.0, "1ms": 0.001}
_HARMONICS = 16
_CELL_S = 1e-9
_MAY_REPEAT = 0.01
"""Share of gaps that may repeat beside what the law expects."""
_DISTINCT_WITHOUT_LAW = 0.75
"""Two workers that repeat each other's gaps leave a half."""
_NEARLY_EVEN = 0.02
_TINY = 1e-6
"""In mean gaps."""
_EVEN_S = 2e-9
"""Even gaps may differ by what rounding to nanoseconds does."""


def self_test(at_s: Floats, law: Law) -> tuple[ArrivalCheck, ...]:
    """Every check of these times in [0, duration of the law's curve)."""
    return tuple(_even(at_s, law) if law.cv == 0 else _random(at_s, law))


def lawless_test(at_s: Floats, duration_s: float, *, judged: bool) -> tuple[ArrivalCheck, ...]:
    """What can be said of times in [0, duration_s) without a law: repeated gaps, special moments, and dispersions.

    Times of a log are as they are: `judged` is False for them, and the values only describe. So it is for gaps that
    are nearly even, which repeat and keep their phase.
    """
    law = _constant_rate(max(1, len(at_s)) / duration_s, duration_s)
    dispersion = [c.value for c in _dispersion(law.curve.expected(at_s), law)]
    # Clumps of requests share a phase by chance: their dispersion is what that adds to the power.
    clumped = max([1.0, *dispersion])
    checks = [
        _edges(at_s, law.curve),
        _distinct_without_law(at_s, duration_s),
        *(_phase(name, at_s, period_s, law, clumped) for name, period_s in _PHASES_S.items()),
    ]
    judged = judged and len(at_s) >= _LEAST and _local_variation(at_s) >= _NEARLY_EVEN
    described = zip(_WINDOWS_S, dispersion, strict=False)
    return (
        *(msgspec.structs.replace(check, judged=judged) for check in checks),
        *(_check(f"dispersion_{window_s:g}s", value, (0.0, 0.0), judged=False) for window_s, value in described),
    )


def _local_variation(at_s: Floats) -> float:
    """How much neighbouring gaps differ, whatever the rate does: 1 for Poisson, 0 for even gaps (Shinomoto 2003)."""
    gaps = np.diff(at_s)
    both = np.maximum(gaps[1:] + gaps[:-1], np.finfo(np.float64).tiny)
    return float(3 * np.square(np.diff(gaps) / both).mean())


def _constant_rate(rate_per_s: float, duration_s: float) -> Law:
    return Law(curve=RateCurve.steps([0.0, duration_s], [rate_per_s]), cv=1.0)


def _distinct_without_law(at_s: Floats, duration_s: float) -> ArrivalCheck:
    """Against Poisson arrivals at the rate of the busiest of 1,000 stretches; clumps make some gaps very short."""
    most = np.bincount((at_s / duration_s * 1000).astype(np.int64), minlength=1).max(initial=1)
    found = _distinct(at_s, _constant_rate(most * 1000 / duration_s, duration_s))
    return msgspec.structs.replace(found, low=_DISTINCT_WITHOUT_LAW * found.low)


def refusal(checks: Sequence[ArrivalCheck]) -> str | None:
    """Why a schedule with these results must not be used; None when it may."""
    failed = [f"{c.name} is {c.value:.6g}, expected {c.low:.6g} to {c.high:.6g}" for c in checks if not c.passed]
    return "the arrivals do not follow their law: " + "; ".join(failed) if failed else None


def _even(at_s: Floats, law: Law) -> Iterator[ArrivalCheck]:
    yield _edges(at_s, law.curve)
    expected = law.curve.total()
    yield _check("count", len(at_s), (math.floor(expected), math.ceil(expected)))
    marks = law.curve.expected(at_s)
    off = np.abs(np.diff(marks) - 1).max(initial=0.0)
    yield _check("gap_deviation", off, (0.0, _EVEN_S * law.curve.peak_per_s + 1e-9), judged=len(at_s) > 1)


def _random(at_s: Floats, law: Law) -> Iterator[ArrivalCheck]:
    marks, expected = law.curve.expected(at_s), law.curve.total()
    enough = expected >= _LEAST
    yield _edges(at_s, law.curve)
    yield _check("count", len(at_s), _count_band(expected, law.cv), judged=enough)
    yield from _dispersion(marks, law)
    yield _gap_law(marks, law.cv)
    yield _distinct(at_s, law)
    for name, period_s in _PHASES_S.items():
        yield _phase(name, at_s, period_s, law)
    if law.occupancy is not None:
        at = law.occupancy
        band = at.mean - 5 * at.deviation, at.mean + 5 * at.deviation
        yield _check("time_at_high_rate", at.share, band, judged=at.switches >= 2 * _LEAST)


def _check(name: str, value: float, band: tuple[float, float], *, judged: bool = True) -> ArrivalCheck:
    return ArrivalCheck(name=name, value=float(value), low=float(band[0]), high=float(band[1]), judged=judged)


def _edges(at_s: Floats, curve: RateCurve) -> ArrivalCheck:
    """The least distance, in mean gaps, from the ends of the schedule: nothing happens exactly at them."""
    ends = (at_s[0], curve.duration_s - at_s[-1]) if len(at_s) else (0.0, 0.0)
    gaps = min(ends) * len(at_s) / curve.duration_s
    return _check("distance_from_ends", gaps, (1e-7, max(1.0, len(at_s))), judged=len(at_s) > 0)


def _count_band(expected: float, cv: float) -> tuple[float, float]:
    low, high = sum_band(expected, count_variance(expected, cv), _ALPHA)
    return math.floor(low), math.ceil(high)


def _dispersion(marks: Floats, law: Law) -> Iterator[ArrivalCheck]:
    """Index of dispersion of counts, E(N - m)²/m, in windows of equal expectation m; named by their mean length."""
    expected, duration_s = law.curve.total(), law.curve.duration_s
    for window_s in _WINDOWS_S:
        windows = int(duration_s / window_s)
        if windows < _LEAST:
            return
        mean = expected * window_s / duration_s
        counts = np.bincount((marks / mean).astype(np.int64), minlength=windows)[:windows]
        variance = count_variance(mean, law.cv)
        # A mean of squares varies with the fourth moment: a chi² of fewer degrees than windows (Satterthwaite 1946).
        # Where gaps are nearly even, what one window has too much its neighbours have too little: they count as one.
        moved = 3 if law.cv < 1 else 1
        spread = (2 + moved * excess_kurtosis(mean, variance)) / windows
        low, high = sum_band(1.0, spread, _ALPHA)
        value = float(np.square(counts - mean).mean()) / mean
        band = low * variance / mean, high * variance / mean
        yield _check(f"dispersion_{window_s:g}s", value, band, judged=expected >= _LEAST and spread < 1)


def _gap_law(marks: Floats, cv: float) -> ArrivalCheck:
    """Distance of Kolmogorov and Smirnov between the gaps and their law, times √n.

    Gaps too short to be told from 0 on the scale of the times count as one group.
    """
    gaps = np.sort(np.diff(marks))
    n, tiny = len(gaps), int(np.searchsorted(gaps, _TINY, side="right"))
    law = gap_probability(gaps[tiny:], cv)
    steps = np.arange(tiny, n + 1) / max(1, n)
    group = abs(float(gap_probability(np.array([_TINY]), cv)[0]) - tiny / max(1, n))
    distance = max((steps[1:] - law).max(initial=0.0), (law - steps[:-1]).max(initial=0.0), group)
    return _check("gap_law", distance * math.sqrt(n), (0.0, float(kolmogi(_ALPHA))), judged=n >= _LEAST)


def _distinct(at_s: Floats, law: Law) -> ArrivalCheck:
    """Share of gaps that differ from all others, in whole nanoseconds: each draw is used once."""
    gaps = np.rint(np.diff(at_s) / _CELL_S)
    n = len(gaps)
    value = len(np.unique(gaps)) / max(1, n)
    expected = distinct_share(n, _CELL_S * law.curve.peak_per_s, law.cv) if n else 0.0
    chance = 5 * math.sqrt(max(0.0, expected * (1 - expected)) / max(1, n))
    return _check("distinct_gaps", value, (expected - _MAY_REPEAT - chance, 1.0), judged=n >= _LEAST)


def _phase(name: str, at_s: Floats, period_s: float, law: Law, clumped: float = 1.0) -> ArrivalCheck:
    """Power at the first harmonics of a period, relative to what the law has there: 1 when no phase is special.

    Each harmonic of n random arrivals has an exponential power (Bartlett 1963), so their mean follows a gamma law.
    """
    turn = np.exp(2j * np.pi * np.mod(at_s, period_s) / period_s)
    harmonic, power = np.ones_like(turn), 0.0
    for number in range(1, _HARMONICS + 1):
        harmonic = harmonic * turn
        per_s = number / period_s
        excess = harmonic.sum() - _coefficient(law.curve, per_s)
        power += float(abs(excess) ** 2) / (clumped * _phase_variance(law, per_s))
    band = 0.0, sum_band(1.0, 1 / _HARMONICS, _ALPHA)[1]
    return _check(f"phase_{name}", power / _HARMONICS, band, judged=law.curve.total() >= _LEAST)


def _coefficient(curve: RateCurve, per_s: float) -> complex:
    """∫ rate(t)·e^(2πi·per_s·t) dt over the curve: what the arrivals' harmonic is expected to be."""
    omega = 2j * np.pi * per_s
    begins, ends = np.exp(omega * curve.knots_s[:-1]), np.exp(omega * curve.knots_s[1:])
    slopes = (curve.ends_per_s - curve.begins_per_s) / np.diff(curve.knots_s)
    parts = (curve.ends_per_s * ends - curve.begins_per_s * begins) / omega - slopes * (ends - begins) / omega**2
    return complex(parts.sum())


def _phase_variance(law: Law, per_s: float) -> float:
    curve = law.curve
    expected = np.diff(curve.knots_s) * (curve.begins_per_s + curve.ends_per_s) / 2
    rates = (curve.begins_per_s + curve.ends_per_s) / 2
    some = rates > 0
    return float((expected[some] * spectrum(per_s / rates[some], law.cv)).sum())


def counts_check(counts: Sequence[int], laws: Sequence[Law]) -> ArrivalCheck:
    """Do the counts of independent schedules vary as their law says, neither more nor less?

    A generator that fixes its count passes every check of one schedule, but not this one of several. Not judged while
    random counts may well agree: few of them, or small ones.
    """
    expected = [law.curve.total() for law in laws]
    variances = [count_variance(law.curve.total(), law.cv) for law in laws]
    scores = [(n - mean) ** 2 / variance for n, mean, variance in zip(counts, expected, variances, strict=True)]
    low, high = sum_band(1.0, 2 / len(scores), _ALPHA)
    agree = math.prod((2 * math.pi * variance) ** -0.5 for variance in variances)
    return _check("count_variance", sum(scores) / len(scores), (low, high), judged=agree < _ALPHA)
