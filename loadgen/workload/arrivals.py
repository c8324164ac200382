"""When requests come: what is left of randomness on a scale on which the rate is 1, stretched by the rate over time.

The rate carries the slow changes and the residual the burstiness that is left; one number for both would miss either
(the Azure conversation trace has a cv of 1.09, yet its counts in 300 s vary 56 times as much as a Poisson process').
Pure functions; the generator is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from loadgen.workload.traffic import Floats

Curve = tuple[Floats, Floats]
"""Times in s at which the rate changes, the end last, and the expected number of requests up to each."""

Marks = Callable[[np.random.Generator, float], Floats]
"""Ascending marks in [0, span) at a mean rate of 1."""

_EVEN_CV = 1e-3
"""Gaps that vary less are taken as even."""


def cumulative(starts_s: Floats, rates_per_s: Floats, end_s: float) -> Curve:
    """The curve of rates that hold from each start to the next; the first start is 0."""
    edges_s = np.append(starts_s, end_s)
    return edges_s, np.concatenate(([0.0], np.cumsum(rates_per_s * np.diff(edges_s))))


def rescale(times_s: Floats, curve: Curve) -> Floats:
    """Times on the scale on which the mean rate is 1 (time-rescaling theorem, Brown et al. 2002)."""
    edges_s, expected = curve
    return np.interp(times_s, edges_s, expected)


def sample(
    rng: np.random.Generator, curve: Curve, marks: Marks, *, window_s: tuple[float, float], rate_scale: float
) -> Floats:
    """Ascending arrival times in s, counted from the start of the window, which lies within the curve.

    Their number is random: nothing is conditioned on the mean. Stretches without a rate get no arrival.
    """
    edges_s, expected = curve
    start, end = rescale(np.array(window_s), curve)
    drawn = start + marks(rng, float(end - start) * rate_scale) / rate_scale
    drawn = np.minimum(drawn, np.nextafter(end, start))
    # The last edge at or below a mark opens a stretch with a rate: across an empty one the curve stays level.
    opening = np.searchsorted(expected, drawn, side="right") - 1
    rates_per_s = np.diff(expected) / np.diff(edges_s)
    times_s: Floats = edges_s[opening] + (drawn - expected[opening]) / rates_per_s[opening]
    return times_s - window_s[0]


def renewals(rng: np.random.Generator, cv: float, span: float) -> Floats:
    """Ascending marks in [0, span) with independent gamma gaps of mean 1 and the given cv.

    Stationary: the first gap is what remains of one already under way (uniform share of a length-biased gap,
    Cox 1962), so that 0 is no special moment. `cv` 1 gives a Poisson process, 0 even spacing.
    """
    if cv < _EVEN_CV:
        return np.arange(rng.random(), span, 1.0)
    shape = cv**-2
    first = rng.random() * rng.gamma(shape + 1, 1 / shape)
    return _renewed(first, span, lambda size: rng.gamma(shape, 1 / shape, size=size))


def weibull_renewals(rng: np.random.Generator, shape: float, span: float) -> Floats:
    """The same with Weibull gaps of mean 1; a length-biased Weibull gap is a gamma variable's power."""
    scale = 1 / math.gamma(1 + 1 / shape)
    first = rng.random() * scale * rng.gamma(1 + 1 / shape) ** (1 / shape)
    return _renewed(first, span, lambda size: scale * rng.weibull(shape, size=size))


def table_renewals(rng: np.random.Generator, gaps: Sequence[float], span: float) -> Floats:
    """The same with gaps as they were seen: a table of them at even steps of their share, of mean 1."""
    shares = np.linspace(0, 1, len(gaps))
    seen = np.array(gaps)
    # The gap that a random moment falls into is one of many, by its length.
    some = np.interp(rng.random(1000), shares, seen)
    first = rng.random() * float(rng.choice(some, p=some / some.sum()))
    return _renewed(first, span, lambda size: np.interp(rng.random(size), shares, seen))


def _renewed(first: float, span: float, gaps: Callable[[int], Floats]) -> Floats:
    marks = np.array([first])
    while marks[-1] < span:
        marks = np.concatenate((marks, marks[-1] + np.cumsum(gaps(int(span - marks[-1]) + 64))))
    return marks[marks < span]


def mmpp_marks(rng: np.random.Generator, rates: tuple[float, float], stays: tuple[float, float], span: float) -> Floats:
    """A Poisson process whose rate switches between two, after exponential stays; all on the scale of the mean rate.

    Begins in the state that a random moment finds it in (Fischer and Meier-Hellstern 1993).
    """
    state = int(rng.random() * (stays[0] + stays[1]) >= stays[0])
    starts, paces, expected, now = [], [], [0.0], 0.0
    while now < span:
        stay = rng.exponential(stays[state])
        starts.append(now)
        paces.append(rates[state])
        expected.append(expected[-1] + min(stay, span - now) * rates[state])
        now += stay
        state = 1 - state
    drawn = renewals(rng, 1.0, expected[-1])
    opening = np.searchsorted(expected, drawn, side="right") - 1
    marks: Floats = np.array(starts)[opening] + (drawn - np.array(expected)[opening]) / np.array(paces)[opening]
    return marks


def dispersion(times_s: Floats, window_s: float, duration_s: float) -> float:
    """Index of dispersion of counts, Var N / E N, over whole windows from 0 on (Gusella 1991).

    NaN with less than two windows or no arrival in them.
    """
    windows = int(duration_s / window_s)
    counts, _ = np.histogram(times_s, bins=windows or 1, range=(0, (windows or 1) * window_s))
    if windows < 2 or not counts.any():
        return float("nan")
    return float(counts.var(ddof=1) / counts.mean())
