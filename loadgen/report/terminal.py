"""A summary as plain text for a terminal 100 columns wide: no colour, no cursor movement, safe in a log.

Renders only; arms that do not fit side by side continue in a further block.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace

from loadgen.analyze.summary import Summary
from loadgen.report.numbers import load, number
from loadgen.report.tables import (
    Cell,
    Section,
    Table,
    bucket_table,
    counts_table,
    failure_table,
    latency_table,
    phase_table,
)

WIDTH = 100
MAX_COLUMN = 40


def tables(summary: Summary) -> str:
    """The whole report as text, ending in a newline."""
    shown = [counts_table(summary), latency_table(summary), bucket_table(summary)]
    if summary.phases:
        shown.append(phase_table(summary.phases))
    if summary.failures:
        shown.append(failure_table(summary))
    parts = [_facts(summary), *(table_text(table) for table in shown), _verdict(summary)]
    return "\n\n".join(parts) + "\n"


def _facts(summary: Summary) -> str:
    schedule = f"Schedule {summary.source}, seed {summary.seed}, {number(summary.schedule_s)} s"
    run, model, url = (summary.run_id or "without a manifest", summary.model or "unknown", summary.url or "unknown")
    return "\n".join(
        (
            wrapped(f"Run {run}, {summary.status}: model {model} at {url}"),
            wrapped(f"{schedule}: {load(summary)}"),
            f"In flight: {number(summary.in_flight_mean)} on average, {summary.in_flight_max:,} at most",
        )
    )


def _verdict(summary: Summary) -> str:
    lines: list[str] = [summary.validity.verdict]
    for reason in summary.validity.reasons:
        lines.append(wrapped(f"{reason.severity} {reason.kind}: {reason.text}", indent="  "))
        lines.append(wrapped(f"→ {reason.remedy}", indent="    "))
    return "\n".join(lines)


def wrapped(text: str, indent: str = "") -> str:
    """A paragraph within the width, without control characters."""
    return textwrap.fill(_plain(text), WIDTH, initial_indent=indent, subsequent_indent=indent)


def _plain(text: str) -> str:
    """Without control characters: names and errors come from servers and must not drive the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def table_text(table: Table) -> str:
    """One table with its title and note, without a newline at the end."""
    blocks = [line for block in _blocks(table) for line in (*_lines(block), "")]
    note = [wrapped(table.note)] if table.note else []
    return "\n".join([table.title, "=" * len(table.title), *blocks[:-1], *note])


def _blocks(table: Table) -> Iterator[Table]:
    """The table cut between columns so that each block fits; every block repeats the label columns."""
    widths = _widths(table)
    first = table.labels
    while first < len(widths):
        last = first + 1
        while last < len(widths) and _total([*widths[: table.labels], *widths[first : last + 1]]) <= WIDTH:
            last += 1
        yield _cut(table, first, last)
        first = last


def _cut(table: Table, first: int, last: int) -> Table:
    def kept(row: Sequence[Cell]) -> list[Cell]:
        return [*row[: table.labels], *row[first:last]]

    return replace(
        table,
        head=[*table.head[: table.labels], *table.head[first:last]],
        sections=[Section(heading=s.heading, rows=[kept(row) for row in s.rows]) for s in table.sections],
    )


def _lines(table: Table) -> Iterator[str]:
    widths = _widths(table)
    yield _line([Cell(name) for name in table.head], widths, table.labels)
    yield "-" * _total(widths)
    for section in table.sections:
        if section.heading:
            yield section.heading
        for row in section.rows:
            yield _line(row, widths, table.labels, indent=bool(section.heading))


def _line(row: Sequence[Cell], widths: Sequence[int], labels: int, *, indent: bool = False) -> str:
    texts = [_clipped(cell.text) for cell in row]
    if indent:
        texts[0] = f"  {texts[0]}"
    parts = [
        text.ljust(width) if column < labels else text.rjust(width)
        for column, (text, width) in enumerate(zip(texts, widths, strict=True))
    ]
    return "  ".join(parts).rstrip()


def _widths(table: Table) -> list[int]:
    rows = [list(table.head), *([cell.text for cell in row] for s in table.sections for row in s.rows)]
    widths = [max(len(_clipped(text)) for text in column) for column in zip(*rows, strict=True)]
    # Rows under a heading are indented by two.
    return [widths[0] + 2, *widths[1:]]


def _clipped(text: str) -> str:
    plain = _plain(text)
    return plain if len(plain) <= MAX_COLUMN else plain[: MAX_COLUMN - 1] + "…"


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 2 * (len(widths) - 1)
