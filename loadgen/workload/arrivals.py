"""When requests come: gamma renewals on time rescaled by a piecewise constant rate.

The rate curve carries the slow changes and `cv` the burstiness that is left; one number for both would miss
either (the Azure conversation trace has a cv of 1.09, yet its counts in 300 s vary 56 times as much as a
Poisson process'). Pure functions; the generator is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Curve = tuple[Floats, Floats]
"""Edges of equally wide bins in s, and the expected number of requests up to each edge."""


_EVEN_CV = 1e-3
"""Gaps that vary less are taken as even."""


def cumulative(rates_per_s: Sequence[float], bin_s: float) -> Curve:
    """The cumulative rate curve of one rate per bin."""
    edges_s: Floats = np.arange(len(rates_per_s) + 1, dtype=np.float64) * bin_s
    expected: Floats = np.concatenate(([0.0], np.cumsum(rates_per_s) * bin_s))
    return edges_s, expected


def rescale(times_s: Floats, curve: Curve) -> Floats:
    """Times on the scale on which the mean rate is 1 (time-rescaling theorem, Brown et al. 2002)."""
    edges_s, expected = curve
    return np.interp(times_s, edges_s, expected)


def sample(
    rng: np.random.Generator, curve: Curve, *, cv: float, window_s: tuple[float, float], rate_scale: float
) -> Floats:
    """Ascending arrival times in s, counted from the start of the window, which lies within the curve.

    Their number is random: nothing is conditioned on the mean. Bins without a rate get no arrival.
    """
    edges_s, expected = curve
    start, end = rescale(np.array(window_s), curve)
    marks = start + renewals(rng, cv, (end - start) * rate_scale) / rate_scale
    marks = np.minimum(marks, np.nextafter(end, start))
    # The last edge at or below a mark opens a bin with a rate: across an empty bin the curve stays level.
    opening = np.searchsorted(expected, marks, side="right") - 1
    rates_per_s = np.diff(expected) / np.diff(edges_s)
    times_s: Floats = edges_s[opening] + (marks - expected[opening]) / rates_per_s[opening]
    return times_s - window_s[0]


def renewals(rng: np.random.Generator, cv: float, span: float) -> Floats:
    """Ascending marks in [0, span) with independent gamma gaps of mean 1 and the given cv.

    Stationary: the first gap is what remains of one already under way (uniform share of a length-biased gap,
    Cox 1962), so that 0 is no special moment. `cv` 1 gives a Poisson process, 0 even spacing.
    """
    if cv < _EVEN_CV:
        return np.arange(rng.random(), span, 1.0)
    shape = cv**-2
    marks = np.array([rng.random() * rng.gamma(shape + 1, 1 / shape)])
    while marks[-1] < span:
        gaps = rng.gamma(shape, 1 / shape, size=int(span - marks[-1]) + 64)
        marks = np.concatenate((marks, marks[-1] + np.cumsum(gaps)))
    return marks[marks < span]


def dispersion(times_s: Floats, window_s: float, duration_s: float) -> float:
    """Index of dispersion of counts, Var N / E N, over whole windows from 0 on (Gusella 1991).

    NaN with less than two windows or no arrival in them.
    """
    windows = int(duration_s / window_s)
    counts, _ = np.histogram(times_s, bins=windows or 1, range=(0, (windows or 1) * window_s))
    if windows < 2 or not counts.any():
        return float("nan")
    return float(counts.var(ddof=1) / counts.mean())
