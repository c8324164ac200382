"""The table of a comparison of load generators, for the terminal and for docs/measurement.md, and weir's promises.

A row for every figure, a column for every client, medians of the repeats in the cells. Pure: a report in, text out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.clients.results import Accuracy, Cell, Level, Must, Report
from benchmarks.table import aligned

JUDGED = "weir"
_MARKS = ("<!-- clients -->", "<!-- /clients -->")

Figure = Callable[[Cell], float | None]
"""Of one cell; None when it cannot be said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    title: str
    digits: int
    figure: Figure
    signed: bool = False


def _arrival(pick: str) -> Figure:
    def figure(cell: Cell) -> float | None:
        error = cell.accuracy.arrival_error_ms
        return None if error is None else float(getattr(error, pick))

    return figure


def _of(name: str) -> Figure:
    def figure(cell: Cell) -> float | None:
        value: float | None = getattr(cell.accuracy, name)
        return value

    return figure


_ROWS = (
    _Row(title="rate, achieved / asked for", digits=4, figure=_of("rate_ratio")),
    _Row(title="arrivals: CV of gaps", digits=2, figure=_of("cv")),
    _Row(title="arrivals: IDC(1 s)", digits=2, figure=_of("idc")),
    _Row(title="arrival error P50, ms", digits=2, figure=_arrival("p50")),
    _Row(title="arrival error P99, ms", digits=2, figure=_arrival("p99")),
    _Row(title="arrival error max, ms", digits=2, figure=_arrival("max")),
    _Row(title="TTFT bias at P50, ms", digits=2, figure=_of("ttft_bias_ms"), signed=True),
    _Row(title="TTFT error P99, ms", digits=2, figure=_of("ttft_error_p99_ms")),
    _Row(title="gap error P99, ms", digits=2, figure=_of("gap_error_p99_ms")),
    _Row(title="CPU, ms per 1,000 chunks", digits=1, figure=lambda cell: cell.cost.cpu_ms_per_1000_chunks),
    _Row(title="peak RSS before the load, MB", digits=0, figure=lambda cell: cell.cost.rss_start_bytes / 1e6),
    _Row(title="peak RSS under load, MB", digits=0, figure=lambda cell: cell.cost.rss_load_bytes / 1e6),
    _Row(title="start to first request, s", digits=2, figure=lambda cell: cell.cost.start_s),
    _Row(title="whole run, s", digits=1, figure=lambda cell: cell.cost.wall_s),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    name: str
    limit: float
    figure: Figure


def _share(part: Callable[[Accuracy], int | None]) -> Figure:
    """How much of the load is missing, in percent."""

    def figure(cell: Cell) -> float | None:
        whole, found = cell.accuracy.scheduled, part(cell.accuracy)
        return None if whole is None or found is None else 100 * (1 - found / whole)

    return figure


PROMISES = (
    _Promise(name="rate off the schedule, %", limit=0.5, figure=lambda cell: 100 * abs(cell.accuracy.rate_ratio - 1)),
    _Promise(name="requests not sent, %", limit=0, figure=_share(lambda accuracy: accuracy.requests)),
    _Promise(name="requests without every mark, %", limit=0, figure=_share(lambda accuracy: accuracy.marked)),
    _Promise(name="arrival error P99, ms", limit=1, figure=_arrival("p99")),
    _Promise(name="TTFT error P99, ms", limit=0.5, figure=_of("ttft_error_p99_ms")),
    _Promise(name="gap error P99, ms", limit=0.5, figure=_of("gap_error_p99_ms")),
    _Promise(name="CPU, ms per 1,000 chunks", limit=22, figure=lambda cell: cell.cost.cpu_ms_per_1000_chunks),
    _Promise(name="peak RSS, MB", limit=60, figure=lambda cell: cell.cost.rss_peak_bytes / 1e6),
    _Promise(name="start to first request, s", limit=1, figure=lambda cell: cell.cost.start_s),
)
"""What weir must keep at every level."""


def judge(cells: Sequence[Cell], levels: Sequence[Level]) -> list[Must]:
    """Every promise at every level at which weir was measured; a figure that is missing breaks its promise."""
    found = []
    for level in levels:
        measured = [cell for cell in cells if cell.client == JUDGED and cell.level == level]
        for promise in PROMISES if measured else ():
            value = _median(promise.figure, measured)
            found.append(
                Must(
                    name=promise.name,
                    rate_per_s=level.rate_per_s,
                    value=float("inf") if value is None else value,
                    limit=promise.limit,
                    passed=value is not None and value <= promise.limit,
                )
            )
    return found


def _median(figure: Figure, cells: Sequence[Cell]) -> float | None:
    """Over those that nothing disturbed, if there are any."""
    quiet = [cell for cell in cells if cell.disturbed is None]
    values = [value for value in map(figure, quiet or cells) if value is not None]
    return statistics.median(values) if values else None


def _cell_text(row: _Row, cells: Sequence[Cell]) -> str:
    value = _median(row.figure, cells)
    if value is None:
        return "–"
    return f"{value:+,.{row.digits}f}" if row.signed else f"{value:,.{row.digits}f}"


def _blocks(report: Report) -> list[tuple[Level, list[list[str]]]]:
    """The rows of each level, titles first."""
    names = list(report.versions)
    blocks = []
    for level in report.levels:
        cells = {name: [c for c in report.cells if c.client == name and c.level == level] for name in names}
        blocks.append((level, [[row.title, *(_cell_text(row, cells[name]) for name in names)] for row in _ROWS]))
    return blocks


def table(report: Report) -> str:
    """For the terminal: head, table, weir's promises, and what to know before quoting a figure."""
    repeats = len({cell.repeat for cell in report.cells})
    machine = report.machine
    head = [
        f"{report.date}, commit {report.commit}, median of {repeats}",
        f"  {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}",
        *(f"  {name}: {version}" for name, version in report.versions.items()),
    ]
    rows = [["", *report.versions]]
    for level, block in _blocks(report):
        rows.append([_describe(level)])
        rows += [[f"  {title}", *cells] for title, *cells in block]
    parts = [head, aligned(rows), _judgement(report), _notes(report)]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _describe(level: Level) -> str:
    return f"{level.rate_per_s:g} requests/s for {level.seconds:g} s, 100 chunks each, one every 10 ms"


def _judgement(report: Report) -> list[str]:
    return [
        f"{'kept  ' if must.passed else 'BROKEN'}  {must.rate_per_s:g}/s  {must.name}: {must.value:.2f}, at most"
        f" {must.limit:g}"
        for must in report.musts
    ]


def _notes(report: Report) -> list[str]:
    notes = [
        f"disturbed, quote nothing of it: {cell.client} at {cell.level.rate_per_s:g}/s, repeat {cell.repeat + 1}:"
        f" {cell.disturbed}"
        for cell in report.cells
        if cell.disturbed
    ]
    if report.rejected:
        notes.append(f"{len(report.rejected)} runs did not count, since something disturbed them or they failed")
    if not all(cell.truth.real_time for cell in report.cells):
        notes.append("the server had no real-time priority")
    notes += report.missing
    notes += [f"not measured: {reason.splitlines()[0]}" for reason in report.unmeasured]
    return notes


def progress(cell: Cell) -> str:
    """One line on a run that has just ended."""
    accuracy, cost = cell.accuracy, cell.cost
    figures = [
        f"rate {accuracy.rate_ratio:.4f}",
        *(f"{row.title} {_cell_text(row, [cell])}" for row in _ROWS if row.title.endswith(("P99, ms", "chunks"))),
        f"foreign {cost.foreign_cores:.2f} cores, server {cell.truth.late_ms.p99:.1f} ms late at P99",
    ]
    return f"repeat {cell.repeat + 1} {cell.level.rate_per_s:g}/s {cell.client}: " + ", ".join(figures)


def render_into(text: str, report: Report, source: str) -> str:
    """`text` with what is between the marks made anew from the report. Raises ValueError when they are not there."""
    start, end = _MARKS
    before, found, rest = text.partition(f"{start}\n")
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"no {start} … {end} in the page: put both where the table belongs")
    return before + found + "\n" + "\n".join(_markdown(report, source)) + "\n\n" + end + after


def _markdown(report: Report, source: str) -> list[str]:
    machine, names = report.machine, list(report.versions)
    repeats = len({cell.repeat for cell in report.cells})
    lines = [
        f"`{source}`, {report.date}, commit {report.commit}: medians of {repeats} interleaved repeats.",
        f"{machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, Python {machine.python}.",
        "",
        *(f"* {name}: {version}" for name, version in report.versions.items()),
    ]
    for level, block in _blocks(report):
        lines += ["", f"**{_describe(level)}**", ""]
        lines += [_piped(["", *names]), _piped(["---", *("---:" for _ in names)]), *map(_piped, block)]
    if report.musts:
        lines += ["", f"What {JUDGED} must keep at every rate, and whether it did:", ""]
        lines += [*map(_piped, _promises(report))]
    notes = _notes(report)
    return [*lines, *([""] if notes else []), *(f"* {note}" for note in notes)]


def _promises(report: Report) -> list[list[str]]:
    rates = list(dict.fromkeys(must.rate_per_s for must in report.musts))
    by_name: dict[str, dict[float, Must]] = {}
    for must in report.musts:
        by_name.setdefault(must.name, {})[must.rate_per_s] = must
    rows = [["", "at most", *(f"{rate:g}/s" for rate in rates)], ["---", *("---:" for _ in range(len(rates) + 1))]]
    for name, musts in by_name.items():
        limit = next(iter(musts.values())).limit
        values = [f"{must.value:.2f}{'' if must.passed else ' **broken**'}" for must in musts.values()]
        rows.append([name, f"{limit:g}", *values])
    return rows


def _piped(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
