"""Fits a workload description to a log and says how well it fits.

The fit is deterministic: equal requests give equal figures. With thousands of rows every p-value is 0, so adequacy is
decided on distances; a law that misses is kept and marked, never hidden.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loadgen.workload import arrivals
from loadgen.workload.description import (
    ArrivalFit,
    Arrivals,
    Dispersion,
    GammaRenewals,
    Lengths,
    Rate,
    Source,
    Switching,
    TableRenewals,
    WeibullRenewals,
    Workload,
)
from loadgen.workload.fitting import columns, rates
from loadgen.workload.fitting.residual import fit_renewals, fit_switching, gap_cdf, gap_table
from loadgen.workload.fitting.shared_text import fit_sharing
from loadgen.workload.traffic import Floats, Requests

_FEWEST_ROWS = 100
_WINDOWS_S = (1.0, 10.0, 60.0, 300.0)
_SIMULATIONS = 40
_DRAWN_TO_COMPARE = 19
_LENGTH_WINDOW_S = 60.0
_MOST_LENGTH_WINDOWS = 400
_LEAST_IN_WINDOW = 20
_SEED = 0
_ADEQUATE_KS = 0.05

Residual = GammaRenewals | WeibullRenewals | TableRenewals | Switching


def fit_workload(requests: Requests, *, name: str, source: Source | None) -> Workload:
    """Fits arrivals, lengths and sharing of requests in order of time, whose times count from the first.

    Raises ValueError for fewer than 100 requests, or for times that say nothing.
    """
    if len(requests) < _FEWEST_ROWS:
        raise ValueError(f"{len(requests)} rows: a fit needs at least {_FEWEST_ROWS}; replay the trace instead")
    if requests.at_s[-1] <= 0:
        raise ValueError(
            "all requests have the same time: there is no rate to fit; give --arrivals to `weir plan` instead"
        )
    prompts, outputs = np.maximum(1, requests.prompt_tokens), np.maximum(1, requests.output_tokens)
    grid = rates.grid_s(requests.at_s)
    # Where a time lies on a grid, only its cell is known; windows of lengths begin with the cell.
    times_s = rates.spread_over_grid(requests.at_s, grid, np.random.default_rng(_SEED)) if grid else requests.at_s
    duration_s = _end_s(times_s, grid)
    fitted = fit_arrivals(times_s, duration_s, grid)
    starts_s = _length_windows(times_s, duration_s, [rate.start_s for rate in fitted.rates])
    return Workload(
        schema="weir.workload/2",
        name=name,
        source=source,
        arrivals=fitted,
        lengths=Lengths(
            windows=columns.windows(times_s, prompts, outputs, starts_s),
            prompt_fit=columns.judge_column(prompts),
            output_fit=columns.judge_column(outputs),
        ),
        sharing=fit_sharing(requests, times_s),
    )


def _end_s(times_s: Floats, grid: float) -> float:
    """One mean gap after the last request, so that its rate is not overstated; whole grid cells on a grid."""
    last = float(times_s[-1])
    if grid:
        return float(np.ceil(last / grid) * grid)
    return round(last * len(times_s) / (len(times_s) - 1), 3)


def _length_windows(times_s: Floats, duration_s: float, steps_s: Sequence[float]) -> Floats:
    """Starts of windows: every minute, longer in a long log, and where the rate changes, since bursts have lengths of
    their own. Each has enough requests for its tables.
    """
    width = max(_LENGTH_WINDOW_S, duration_s / _MOST_LENGTH_WINDOWS)
    least = max(_LEAST_IN_WINDOW, len(times_s) // _MOST_LENGTH_WINDOWS)
    starts = [0.0]
    for start in sorted({*np.arange(width, duration_s, width).tolist(), *steps_s[1:]}):
        since, left = np.searchsorted(times_s, (starts[-1], start))
        if left - since >= least and len(times_s) - left >= least:
            starts.append(start)
    return np.array(starts)


def fit_arrivals(times_s: Floats, duration_s: float, grid: float = 0.0) -> Arrivals:
    """Change points of the rate, and what is left on the scale on which it is 1.

    The rate has few steps, unless the log has more of them than chance: then as many as foretell it best.
    """
    coarse = rates.coarse(duration_s, len(times_s), grid)
    fitted = _arrivals(times_s, duration_s, grid, coarse)
    fine = rates.foretelling(times_s, duration_s, grid)
    return _arrivals(times_s, duration_s, grid, fine) if _has_more(times_s, fitted, coarse, fine) else fitted


def _has_more(times_s: Floats, fitted: Arrivals, coarse: rates.Resolution, fine: rates.Resolution) -> bool:
    """Whether fine steps foretell the log better than anything that is drawn from its coarse description.

    Clusters of a steady process look like steps too, and are the residual's; so are they in what is drawn. The largest
    of 20 is the log's with a chance of 5 % when there is no more to it.
    """

    def gain(of_s: Floats) -> float:
        return rates.foretold(of_s, fitted.duration_s, fine) - rates.foretold(of_s, fitted.duration_s, coarse)

    found = gain(times_s)
    return found > 0 and all(gain(_drawn(fitted, fitted.residual, seed)) < found for seed in range(_DRAWN_TO_COMPARE))


def _drawn(known: Arrivals, residual: Residual, seed: int) -> Floats:
    return arrivals.sample(
        np.random.default_rng(seed),
        known.curve(),
        residual.marks,
        window_s=(0.0, known.duration_s),
        rate_scale=1.0,
    )


def _arrivals(times_s: Floats, duration_s: float, grid: float, resolution: rates.Resolution) -> Arrivals:
    bin_s = resolution.bin_s
    starts, per_s = rates.rate_steps(times_s, duration_s, resolution)
    rounded = [
        Rate(start_s=round(s, 3), per_s=float(f"{r:.6g}")) for s, r in zip(starts.tolist(), per_s.tolist(), strict=True)
    ]
    known = Arrivals(duration_s=duration_s, rates=rounded, residual=GammaRenewals(cv=1.0), fit=None)
    marks = arrivals.rescale(times_s, known.curve())
    gaps = np.diff(marks)
    residual: Residual = fit_renewals(gaps[gaps > 0] if (gaps > 0).any() else np.ones(1))
    if _ks(gaps / gaps.mean(), residual) > _ADEQUATE_KS:
        residual = TableRenewals(gaps=gap_table(gaps))
    found = _compared(times_s, known, residual)
    if any(one.trace > one.high for one in found):
        # More clustered than renewals are: gaps hang together.
        switching = fit_switching(marks)
        if switching is not None:
            switched = _compared(times_s, known, switching)
            if _misfit(switched) < _misfit(found):
                residual, found = switching, switched
    ks = _ks(gaps / gaps.mean(), residual)
    bins = max(1, int(duration_s / bin_s))
    expected = np.diff(arrivals.rescale(np.arange(bins + 1, dtype=np.float64) * bin_s, known.curve()))
    fit = ArrivalFit(
        gap_ks=round(ks, 4),
        dispersion=found,
        grid_s=grid,
        periods_s=rates.periods_s(times_s, duration_s, expected, bin_s),
        verdict=_verdict(found),
    )
    return Arrivals(duration_s=duration_s, rates=rounded, residual=residual, fit=fit)


def _ks(gaps: Floats, residual: Residual) -> float:
    if residual == GammaRenewals(cv=0.0):
        # Fitted to even gaps only, and a jump has no distance of this kind.
        return 0.0
    ordered = np.sort(gaps)
    model = gap_cdf(residual, ordered)
    steps = np.arange(len(ordered) + 1) / len(ordered)
    return float(max((steps[1:] - model).max(), (model - steps[:-1]).max()))


def _compared(times_s: Floats, known: Arrivals, residual: Residual) -> list[Dispersion]:
    runs = [_drawn(known, residual, seed) for seed in range(_SIMULATIONS)]
    found = []
    for window_s in _WINDOWS_S:
        if known.duration_s >= 4 * window_s:
            model = [arrivals.dispersion(run, window_s, known.duration_s) for run in runs]
            low, middle, high = np.nanquantile(model, (0.05, 0.5, 0.95)).tolist()
            trace = arrivals.dispersion(times_s, window_s, known.duration_s)
            found.append(
                Dispersion(
                    window_s=window_s,
                    trace=round(trace, 3),
                    model=round(middle, 3),
                    low=round(low, 3),
                    high=round(high, 3),
                )
            )
    return found


def _misfit(found: list[Dispersion]) -> float:
    """Mean absolute difference of the indices' logarithms."""
    return float(np.mean([abs(np.log(max(one.trace, 1e-3) / max(one.model, 1e-3))) for one in found])) if found else 0.0


def _verdict(found: list[Dispersion]) -> str:
    off = [one for one in found if not 0.8 * one.low <= one.trace <= 1.25 * one.high]
    if not off:
        return "adequate"
    worst = max(off, key=lambda one: abs(np.log(max(one.trace, 1e-3) / max(one.model, 1e-3))))
    return (
        f"use empirical: counts in {worst.window_s:g} s vary {worst.trace:g} times as much as a Poisson process',"
        f" and {worst.low:g} to {worst.high:g} times in what is drawn"
    )
