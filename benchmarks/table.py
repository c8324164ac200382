"""The tables of a report: per scenario and contestant the median over repeats, with its range.

Ratios and added latencies are taken within one repeat, against the reference and the baseline of that repeat, and
only then summarised. Failed and altered answers are always shown. Pure: a report in, text out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.contestants import BASELINE, REFERENCE
from benchmarks.results import LoadResult, Quantiles, Report, Scenario, Window

_TRUSTED_RESOLUTION = 0.02
_QUIET_CORES = 0.1
"""On two cores, other work of a tenth of a core has been seen to move P99s of streams by tens of ms."""

Windows = dict[str, Window]
"""The windows of one scenario and repeat, by contestant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    title: str
    digits: int
    value: Callable[[str, Windows], float | None]
    """Of one contestant in one repeat; None when it cannot be said."""


def cost(window: Window) -> float | None:
    """CPU seconds per small answer or per relayed chunk; None without CPU time or without a complete answer."""
    units = window.load.chunks or window.load.completed
    return window.cpu_s / units if window.cpu_s is not None and units else None


def _cost_ratio(name: str, windows: Windows) -> float | None:
    reference = cost(windows[REFERENCE]) if REFERENCE in windows else None
    own = cost(windows[name])
    return own / reference if own is not None and reference else None


def _cost_in(scale: float) -> Callable[[str, Windows], float | None]:
    def value(name: str, windows: Windows) -> float | None:
        own = cost(windows[name])
        return None if own is None else own * scale

    return value


def _rate(name: str, windows: Windows) -> float:
    load = windows[name].load
    return (load.chunks or load.completed) / load.duration_s


def _rss_mb(name: str, windows: Windows) -> float | None:
    peak_bytes = windows[name].rss_peak_bytes
    return None if peak_bytes is None else peak_bytes / 1e6


def _ttft(load: LoadResult) -> Quantiles | None:
    return load.ttft_ms


def _delay(load: LoadResult) -> Quantiles | None:
    return load.delay_ms


def _added(
    quantiles: Callable[[LoadResult], Quantiles | None], pick: Callable[[Quantiles], float]
) -> Callable[[str, Windows], float | None]:
    """Difference to the baseline's same quantile, in ms."""

    def value(name: str, windows: Windows) -> float | None:
        if name == BASELINE or BASELINE not in windows:
            return None
        own, baseline = quantiles(windows[name].load), quantiles(windows[BASELINE].load)
        return pick(own) - pick(baseline) if own and baseline else None

    return value


def _p50(quantiles: Quantiles) -> float:
    return quantiles.p50


def _p99(quantiles: Quantiles) -> float:
    return quantiles.p99


_RATIO = _Column(title=f"×{REFERENCE}", digits=2, value=_cost_ratio)
_RSS = _Column(title="RSS MB", digits=0, value=_rss_mb)
_SMALL = (
    _Column(title="CPU ms/request", digits=4, value=_cost_in(1e3)),
    _RATIO,
    _Column(title="max requests/s", digits=0, value=_rate),
    _RSS,
)
_UNPACED = (
    _Column(title="CPU µs/chunk", digits=2, value=_cost_in(1e6)),
    _RATIO,
    _Column(title="chunks/s", digits=0, value=_rate),
    _RSS,
)
_PACED = (
    *_UNPACED[:-1],
    _Column(title="added TTFT p50 ms", digits=2, value=_added(_ttft, _p50)),
    _Column(title="p99", digits=2, value=_added(_ttft, _p99)),
    _Column(title="added chunk delay p50 ms", digits=2, value=_added(_delay, _p50)),
    _Column(title="p99", digits=2, value=_added(_delay, _p99)),
    _RSS,
)


def render(report: Report) -> str:
    """All tables as text, each figure as `median (min–max)` over the repeats."""
    repeats = len({window.repeat for window in report.windows})
    machine = report.machine
    head = [
        f"{report.date}, commit {report.commit}, repeats: {repeats}",
        f"  {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}",
        *(f"  {name}: {version}" for name, version in report.versions.items()),
    ]
    blocks = [_block(report, scenario) for scenario in report.scenarios]
    return "\n\n".join("\n".join(lines) for lines in (head, *blocks, _notes(report)) if lines)


def progress(window: Window) -> str:
    """One line on a window that has just ended."""
    unit_cost = cost(window)
    load = window.load
    spent = "" if unit_cost is None else f", {unit_cost * 1e6:.1f} µs CPU per {'chunk' if load.chunks else 'request'}"
    return (
        f"repeat {window.repeat + 1} {window.scenario} {window.contestant}: "
        f"{load.completed} ok, {sum(load.failed.values())} failed in {load.duration_s:.1f} s{spent}"
    )


def _block(report: Report, scenario: Scenario) -> list[str]:
    windows = [window for window in report.windows if window.scenario == scenario.name]
    by_repeat: dict[int, Windows] = {}
    for window in windows:
        by_repeat.setdefault(window.repeat, {})[window.contestant] = window
    columns = _columns(scenario)
    rows = [["contestant", *(column.title for column in columns), "failed", "altered"]]
    for name in report.versions:
        own = [window.load for window in windows if window.contestant == name]
        rows.append(
            [
                name,
                *(
                    _spread([column.value(name, each) for each in by_repeat.values() if name in each], column.digits)
                    for column in columns
                ),
                str(sum(sum(load.failed.values()) for load in own)),
                str(sum(load.altered for load in own)),
            ]
        )
    return [_title(scenario), *_aligned(rows)]


def _columns(scenario: Scenario) -> tuple[_Column, ...]:
    if not scenario.chunks:
        return _SMALL
    return _PACED if scenario.gap_ms else _UNPACED


def _title(scenario: Scenario) -> str:
    clients = f"{scenario.name}: {scenario.connections} connections"
    if not scenario.chunks:
        return f"{clients}, small JSON answers"
    pace = f"one every {scenario.gap_ms} ms, first after {scenario.ttft_ms} ms" if scenario.gap_ms else "no delay"
    return f"{clients}, streams of {scenario.chunks} chunks, {pace}"


def _spread(values: list[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    median = f"{statistics.median(known):,.{digits}f}"
    return median if len(known) == 1 else f"{median} ({min(known):,.{digits}f}–{max(known):,.{digits}f})"


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def _notes(report: Report) -> list[str]:
    """What a reader must know before quoting a figure: failures by reason, coarse CPU times, a busy machine."""
    notes = [
        f"{window.scenario} {window.contestant} repeat {window.repeat + 1}: {count} failed: {reason}"
        for window in report.windows
        for reason, count in window.load.failed.items()
    ]
    notes += [f"not measured: {reason.splitlines()[0]}" for reason in report.unmeasured]
    if report.sources_changed:
        notes.append("the gateway's sources changed during the run: quote nothing of weir from this report")
    total = len(report.windows)
    coarse = [each.cpu_resolution for each in report.windows if (each.cpu_resolution or 0) > _TRUSTED_RESOLUTION]
    if coarse:
        notes.append(f"CPU time is coarser than {_TRUSTED_RESOLUTION:.0%} in {len(coarse)} of {total} windows")
    busy = [each.foreign_cores for each in report.windows if each.foreign_cores > _QUIET_CORES]
    if busy:
        notes.append(
            f"other processes used up to {max(busy):.2f} cores, in {len(busy)} of {total} windows more than "
            f"{_QUIET_CORES:g}: quote no P99 and no absolute figure from this report"
        )
    return notes
