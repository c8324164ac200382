"""Readers of request logs: each becomes rows of when, how much in, how much out.

A reader never guesses: a line it cannot read is an error that names file, line, column and value, and rows
it has to leave out are counted. Zero-token rows are kept as logged (a request that gave no output still
cost its prefill); a schedule raises them to 1, which is the least that an engine accepts.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from protocol.records import GatewayRecord, read_lines

_NS_PER_S = 1_000_000_000


class TraceRow(NamedTuple):
    at_s: float
    """Seconds since the first row of the trace."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Rows of one log in order of time, and what had to be left out."""

    name: str
    sha256: str
    rows: list[TraceRow]
    without_usage: int
    """Requests whose token counts the log does not have: left out."""

    @property
    def zero_rows(self) -> int:
        """Rows with no prompt or no output token: kept here, raised to 1 in a schedule."""
        return sum(not (row.prompt_tokens and row.output_tokens) for row in self.rows)

    def slice(self, start_s: float, duration_s: float) -> list[TraceRow]:
        """Rows with start_s <= at_s < start_s + duration_s, their times counted from `start_s`."""
        end_s = start_s + duration_s
        return [row._replace(at_s=row.at_s - start_s) for row in self.rows if start_s <= row.at_s < end_s]


_Timed = tuple[int, int, int]
"""Time in ns since some epoch, prompt tokens, output tokens."""

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00)?")


def _azure(path: Path) -> Iterator[_Timed | None]:
    """Azure LLM inference traces of 2023 and 2024: UTC time with up to 9 fractional digits, two counts."""
    with path.open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        missing = [column for column in _AZURE_COLUMNS if column not in (table.fieldnames or ())]
        if missing:
            raise ValueError(f"{path}:1: no column {missing[0]}: an Azure trace has {', '.join(_AZURE_COLUMNS)}")
        for row in table:
            place = f"{path}:{table.line_num}"
            time, prompt, output = (row[column] for column in _AZURE_COLUMNS)
            yield (
                _azure_time_ns(time, place),
                _count(prompt, "ContextTokens", place),
                _count(output, "GeneratedTokens", place),
            )


def _azure_time_ns(text: str | None, place: str) -> int:
    """Exact to the last digit: a float of seconds since 1970 would lose the seventh."""
    match = _AZURE_TIME.fullmatch(text or "")
    try:
        if match is None:
            raise ValueError
        seconds = datetime.fromisoformat(match[1] + "+00:00").timestamp()
    except ValueError:
        raise ValueError(f"{place}: TIMESTAMP {text!r}: expected YYYY-MM-DD HH:MM:SS.fffffff") from None
    return int(seconds) * _NS_PER_S + int((match[2] or "0").ljust(9, "0"))


def _count(text: str | None, column: str, place: str) -> int:
    if text is None or not (text.isascii() and text.isdigit()):
        raise ValueError(f"{place}: {column} {text!r}: expected a count of tokens")
    return int(text)


def _weir(path: Path) -> Iterator[_Timed | None]:
    """The gateway's own records; None for a request whose usage the engine never reported."""
    for record in read_lines(path, GatewayRecord):
        if record.prompt_tokens is None or record.completion_tokens is None:
            yield None
        else:
            yield record.received_unix_ns, record.prompt_tokens, record.completion_tokens


FORMATS: dict[str, Callable[[Path], Iterator[_Timed | None]]] = {"azure": _azure, "weir": _weir}


def read_trace(path: Path, format: str) -> Trace:
    """Reads a log in one of `FORMATS`, sorted by time (records are logged as requests end).

    Raises ValueError for a line that cannot be read or a log without a single usable row, OSError when the
    file cannot be opened.
    """
    if format not in FORMATS:
        raise ValueError(f"trace format {format!r}: one of {', '.join(FORMATS)}")
    logged = list(FORMATS[format](path))
    timed = sorted((row for row in logged if row is not None), key=lambda row: row[0])
    if not timed:
        raise ValueError(f"{path}: no usable row among {len(logged)}: nothing to replay or fit")
    first_ns = timed[0][0]
    return Trace(
        name=path.stem,
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        rows=[TraceRow((at_ns - first_ns) / _NS_PER_S, prompt, output) for at_ns, prompt, output in timed],
        without_usage=len(logged) - len(timed),
    )
