"""Where a system stops keeping up: two straight lines through throughput over load, and the universal scalability law.

The lines locate the knee, with an interval. The law only diagnoses why, and is not believed far beyond its data. Pure.
"""

import math
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import curve_fit
from scipy.stats import f

from loadgen.analyze.stats import CONFIDENCE, Values

MIN_LEVELS = 7
"""Fewest distinct loads from which a knee is located (bench-methods §C, "knee")."""
_EACH_SIDE = 2
"""Distinct loads at or beyond the knee on either side, without which one of the lines is not there."""
_CANDIDATES = 400
BENT = 0.5
"""The second line is at most so steep as a share of the first; else there is no knee."""
USL_REACH = 1.5
"""How far beyond the most requests in flight that were measured the law may be read (bench-methods §C, "knee")."""


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """The load at which the lines meet, and how steep they are; loads and throughput in requests/s."""

    load: float
    low: float
    high: float
    """Interval of 95 %; `open_low`, `open_high`: it goes on beyond the loads that were measured."""
    open_low: bool
    open_high: bool
    slope_before: float
    slope_after: float


class Scalability(msgspec.Struct, frozen=True, kw_only=True):
    """X(N) = λN / (1 + σ(N-1) + κN(N-1)), Gunther 2007: throughput X with N requests in flight."""

    rate: float
    """λ: throughput of one request at a time."""
    contention: float
    """σ: the share that waits for its turn."""
    coherency: float
    """κ: what each pair of requests costs on top; above 0 throughput falls again."""
    r_squared: float
    peak_in_flight: float | None
    """N of the highest throughput; None where there is none within 1.5 times the data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    at: float
    before: float
    bend: float
    squares: float


def find_knee(load: Values, throughput: Values, levels: Values) -> Knee | str:
    """Fits a continuous pair of lines (Muggeo, Stat. in Medicine 22, 2003) to one point per run, or says why not.

    `levels` are the loads that the runs were planned for, ascending; a random schedule misses its level a little.

    The interval is the profile's: every knee at which the sum of squares is not significantly above the least one, by F
    with 1 and n-4 degrees of freedom (Seber & Wild, Nonlinear Regression, §5.9).
    """
    if len(levels) < MIN_LEVELS:
        return f"{len(levels)} loads were measured, a knee needs {MIN_LEVELS}"
    candidates = np.linspace(levels[_EACH_SIDE - 1], levels[-_EACH_SIDE], _CANDIDATES)
    fits = [_lines(load, throughput, float(at)) for at in candidates]
    best = min(fits, key=lambda fit: fit.squares)
    after = best.before + best.bend
    if best.before <= 0 or after > BENT * best.before:
        return "throughput does not level off: there is no knee among these loads"
    freedom = len(load) - 4
    limit = best.squares * (1 + float(f.ppf(CONFIDENCE, 1, freedom)) / freedom)
    inside = [fit.at for fit in fits if fit.squares <= limit]
    step = float(candidates[1] - candidates[0])
    return Knee(
        load=best.at,
        low=inside[0],
        high=inside[-1],
        open_low=bool(inside[0] - step < candidates[0]),
        open_high=bool(inside[-1] + step > candidates[-1]),
        slope_before=best.before,
        slope_after=after,
    )


def _lines(load: Values, throughput: Values, at: float) -> _Lines:
    """Least squares with the knee at `at`."""
    terms = np.column_stack((np.ones(len(load)), load, np.maximum(load - at, 0)))
    found, *_ = np.linalg.lstsq(terms, throughput, rcond=None)
    residuals = throughput - terms @ found
    return _Lines(at=at, before=float(found[1]), bend=float(found[2]), squares=float(residuals @ residuals))


def scalability(in_flight: Values, throughput: Values) -> Scalability | str:
    """Fits the law, or says why it cannot be."""
    if len(np.unique(in_flight)) < MIN_LEVELS:
        return f"fewer than {MIN_LEVELS} different numbers of requests in flight"
    first = float((throughput / in_flight).max())
    try:
        (rate, contention, coherency), _ = curve_fit(
            _law, in_flight, throughput, p0=(first, 0.01, 1e-5), bounds=((0, 0, 0), (np.inf, 1, np.inf)), max_nfev=5000
        )
    except RuntimeError as error:
        return f"the law does not fit: {error}"
    off = throughput - _law(in_flight, rate, contention, coherency)
    total = throughput - throughput.mean()
    peak = math.sqrt((1 - contention) / coherency) if coherency > 0 else math.inf
    return Scalability(
        rate=float(rate),
        contention=float(contention),
        coherency=float(coherency),
        r_squared=float(1 - off @ off / (total @ total)) if total.any() else 0.0,
        peak_in_flight=peak if peak <= USL_REACH * float(in_flight.max()) else None,
    )


def _law(n: npt.NDArray[np.float64], rate: float, contention: float, coherency: float) -> Values:
    throughput: Values = rate * n / (1 + contention * (n - 1) + coherency * n * (n - 1))
    return throughput
