"""The table of a report: a row for every figure of every scenario, a column for every contestant, medians in the cells.

Ratios and added latencies are taken within one repeat, against the reference and the baseline of that repeat, and
only then summarised. Failed and altered answers are always shown. Pure: a report in, text out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.contestants import BASELINE, REFERENCE
from benchmarks.results import (
    RESUME_LIMIT_S,
    IdleResult,
    IdleScenario,
    LoadResult,
    LoadScenario,
    Quantiles,
    Report,
    Scenario,
    StalledResult,
    StalledScenario,
    Window,
)

_TRUSTED_RESOLUTION = 0.02
_QUIET_CORES = 0.1
"""On two cores, other work of a tenth of a core has been seen to move P99s of streams by tens of ms."""

Windows = dict[str, Window]
"""The windows of one scenario and repeat, by contestant."""

Figure = Callable[[Window], float | bool | None]
"""A figure of one window; None when it cannot be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    title: str
    digits: int = 0
    value: Callable[[str, Windows], float | bool | None]
    """Of one contestant in one repeat."""


def _own(figure: Figure) -> Callable[[str, Windows], float | bool | None]:
    return lambda name, windows: figure(windows[name])


def _ratio(figure: Figure) -> Callable[[str, Windows], float | None]:
    """To the reference's."""

    def value(name: str, windows: Windows) -> float | None:
        own, reference = figure(windows[name]), figure(windows[REFERENCE]) if REFERENCE in windows else None
        return own / reference if own is not None and reference else None

    return value


def _over(other: str, figure: Figure) -> Callable[[str, Windows], float | None]:
    """The difference to that of `other`, a contestant."""

    def value(name: str, windows: Windows) -> float | None:
        own, less = figure(windows[name]), figure(windows[other]) if other in windows else None
        return own - less if own is not None and less is not None and name != other else None

    return value


def cost_us(window: Window) -> float | None:
    """CPU µs per small answer or per relayed chunk; None without CPU time or without a complete answer."""
    load = window.result
    units = load.chunks or load.completed if isinstance(load, LoadResult) else 0
    return window.cpu_s * 1e6 / units if window.cpu_s is not None and units else None


def _cost_ms(window: Window) -> float | None:
    cost = cost_us(window)
    return None if cost is None else cost / 1e3


def _rate(window: Window) -> float | None:
    load = window.result
    return (load.chunks or load.completed) / load.duration_s if isinstance(load, LoadResult) else None


def _rss_mb(window: Window) -> float | None:
    return None if window.rss_peak_bytes is None else window.rss_peak_bytes / 1e6


def _quantile(of: Callable[[LoadResult], Quantiles | None], pick: Callable[[Quantiles], float]) -> Figure:
    def figure(window: Window) -> float | None:
        quantiles = of(window.result) if isinstance(window.result, LoadResult) else None
        return None if quantiles is None else pick(quantiles)

    return figure


def _latency(title: str, of: Callable[[LoadResult], Quantiles | None]) -> tuple[_Row, ...]:
    p50, p99 = _quantile(of, lambda quantiles: quantiles.p50), _quantile(of, lambda quantiles: quantiles.p99)
    return (
        _Row(title=f"{title} P50, ms over {BASELINE}", digits=2, value=_over(BASELINE, p50)),
        _Row(title=f"{title} P99, ms over {BASELINE}", digits=2, value=_over(BASELINE, p99)),
        _Row(title=f"{title} P99, ms over {REFERENCE}", digits=2, value=_over(REFERENCE, p99)),
    )


def _growth_bytes(window: Window) -> float | None:
    held = window.result
    if isinstance(held, LoadResult) or held.rss_before_bytes is None or held.rss_after_bytes is None:
        return None
    return held.rss_after_bytes - held.rss_before_bytes


def _client_kb(window: Window) -> float | None:
    growth_bytes = _growth_bytes(window)
    if growth_bytes is None or not isinstance(window.result, StalledResult):
        return None
    return growth_bytes / window.result.clients / 1e3


def _stream_kb(window: Window) -> float | None:
    growth_bytes, streams = _growth_bytes(window), _streams(window)
    return growth_bytes / streams / 1e3 if growth_bytes is not None and streams else None


def _streams(window: Window) -> float | None:
    return window.result.streams if isinstance(window.result, IdleResult) else None


def _taken_mb(window: Window) -> float | None:
    return window.result.taken_bytes[-1] / 1e6 if isinstance(window.result, StalledResult) else None


def _held_back(window: Window) -> bool | None:
    return window.result.held_back if isinstance(window.result, StalledResult) else None


def _resumed(window: Window) -> bool | None:
    return window.result.resumed if isinstance(window.result, StalledResult) else None


def _failed(window: Window) -> float:
    return 0 if isinstance(window.result, StalledResult) else sum(window.result.failed.values())


def _altered(window: Window) -> float | None:
    return window.result.altered if isinstance(window.result, LoadResult) else None


_TOTAL = _quantile(lambda load: load.total_ms, lambda quantiles: quantiles.p50)
_RSS = _Row(title="peak RSS, MB", value=_own(_rss_mb))
_COUNTS = (_Row(title="failed", value=_own(_failed)), _Row(title="altered", value=_own(_altered)))
_CHUNK = (
    _Row(title="CPU, µs per chunk", digits=2, value=_own(cost_us)),
    _Row(title=f"CPU, ×{REFERENCE}", digits=2, value=_ratio(cost_us)),
    _Row(title="chunks/s", value=_own(_rate)),
)
_PACED = (*_CHUNK, *_latency("TTFT", lambda load: load.ttft_ms), *_latency("chunk delay", lambda load: load.delay_ms))
_REQUEST = (
    _Row(title="CPU, ms per request", digits=4, value=_own(_cost_ms)),
    _Row(title=f"CPU, ×{REFERENCE}", digits=2, value=_ratio(_cost_ms)),
)
_LARGE = (
    _Row(title="time P50, ms", digits=2, value=_own(_TOTAL)),
    _Row(title=f"time P50, ×{REFERENCE}", digits=2, value=_ratio(_TOTAL)),
    *_REQUEST,
)
_IDLE = (
    _Row(title="RSS per stream, kB", digits=1, value=_own(_stream_kb)),
    _Row(title=f"RSS per stream, ×{REFERENCE}", digits=2, value=_ratio(_stream_kb)),
    _Row(title="streams held", value=_own(_streams)),
    _COUNTS[0],
)
_STALLED = (
    _Row(title="engine held back", value=_own(_held_back)),
    _Row(title="taken from the engine, MB", digits=1, value=_own(_taken_mb)),
    _Row(title="RSS growth, kB per client", digits=0, value=_own(_client_kb)),
    _Row(title=f"fresh chunks {RESUME_LIMIT_S:g} s later", value=_own(_resumed)),
)


def _rows(scenario: Scenario) -> tuple[_Row, ...]:
    if isinstance(scenario, LoadScenario):
        shape = scenario.shape
        if scenario.prompt_bytes or shape.pad_bytes:
            return (*_LARGE, _RSS, *_COUNTS)
        if not shape.chunks:
            return (*_REQUEST, _Row(title="max requests/s", value=_own(_rate)), _RSS, *_COUNTS)
        return (*(_PACED if shape.gap_ms else _CHUNK), _RSS, *_COUNTS)
    return _IDLE if isinstance(scenario, IdleScenario) else _STALLED


def render(report: Report, *, ranges: bool = False) -> str:
    """The table and what to know before quoting it; with `ranges` each figure as `median (min–max)` of the repeats."""
    repeats = len({window.repeat for window in report.windows})
    machine, names = report.machine, list(report.versions)
    head = [
        f"{report.date}, commit {report.commit}, median of {repeats}" + (" (min–max)" if ranges else ""),
        f"  {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}",
        *(f"  {name}: {version}" for name, version in report.versions.items()),
    ]
    table = [["", *names]]
    for scenario in report.scenarios:
        table.append([describe(scenario)])
        table += _block(report, scenario, names, ranges=ranges)
    return "\n\n".join("\n".join(lines) for lines in (head, aligned(table), _notes(report)) if lines)


def progress(window: Window) -> str:
    """One line on a window that has just ended."""
    result = window.result
    if isinstance(result, IdleResult):
        text = f"{result.streams} streams held, opened in {result.opened_s:.1f} s"
    elif isinstance(result, StalledResult):
        text = f"{result.taken_bytes[-1] / 1e6:.1f} MB taken, engine {'' if result.held_back else 'not '}held back"
    else:
        text = f"{result.completed} ok, {_failed(window)} failed in {result.duration_s:.1f} s"
        cost = cost_us(window)
        if cost is not None:
            text += f", {cost:.1f} µs CPU per {'chunk' if result.chunks else 'request'}"
    return f"repeat {window.repeat + 1} {window.scenario} {window.contestant}: {text}"


def _block(report: Report, scenario: Scenario, names: list[str], *, ranges: bool) -> list[list[str]]:
    by_repeat: dict[int, Windows] = {}
    for window in report.windows:
        if window.scenario == scenario.name:
            by_repeat.setdefault(window.repeat, {})[window.contestant] = window
    return [
        [
            f"  {row.title}",
            *(
                _summary([row.value(name, each) for each in by_repeat.values() if name in each], row.digits, ranges)
                for name in names
            ),
        ]
        for row in _rows(scenario)
    ]


def describe(scenario: Scenario) -> str:
    """What happens in it, as the heading of its rows."""
    if isinstance(scenario, IdleScenario):
        return f"{scenario.name}: {scenario.streams} open streams, silent after their first chunk"
    if isinstance(scenario, StalledScenario):
        stall = f"{scenario.clients} clients that do not read for {scenario.seconds:g} s"
        return f"{scenario.name}: {stall}, the engine at full speed"
    shape = scenario.shape
    clients = "one connection" if scenario.connections == 1 else f"{scenario.connections} connections"
    prompts = f", prompts of {scenario.prompt_bytes / 2**20:g} MiB" if scenario.prompt_bytes else ""
    if not shape.chunks:
        answers = "small JSON answers"
    elif shape.pad_bytes:
        answers = f"streams of one line of {shape.pad_bytes / 2**20:g} MiB"
    else:
        pace = f"one every {shape.gap_ms} ms, first after {shape.ttft_ms} ms" if shape.gap_ms else "no delay"
        answers = f"streams of {shape.chunks} chunks, {pace}"
    return f"{scenario.name}: {clients}{prompts}, {answers}"


def _summary(values: Iterable[float | bool | None], digits: int, ranges: bool) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    if isinstance(known[0], bool):
        return {len(known): "yes", 0: "no"}.get(int(sum(known)), f"{sum(known)} of {len(known)}")
    median = f"{statistics.median(known):,.{digits}f}"
    return f"{median} ({min(known):,.{digits}f}–{max(known):,.{digits}f})" if ranges and len(known) > 1 else median


def aligned(rows: list[list[str]]) -> list[str]:
    """Lines of a table in columns; a row of one cell is a heading and may be longer than its column."""
    first, *others = (max(map(len, column)) for column in zip(*(row for row in rows if len(row) > 1), strict=True))
    return [
        "  ".join([row[0].ljust(first), *(cell.rjust(width) for cell, width in zip(row[1:], others, strict=True))])
        if len(row) > 1
        else row[0]
        for row in rows
    ]


def _notes(report: Report) -> list[str]:
    """What a reader must know before quoting a figure: failures by reason, coarse CPU times, a busy machine."""
    notes = [
        f"{window.scenario} {window.contestant} repeat {window.repeat + 1}: {count} failed: {reason}"
        for window in report.windows
        if not isinstance(window.result, StalledResult)
        for reason, count in window.result.failed.items()
    ]
    notes += report.missing
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
