"""Logs as tables: the Azure LLM inference traces of 2023 and 2024, and BurstGPT."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from loadgen.workload.importers.rows import (
    NS_PER_S,
    BadRow,
    LeftOut,
    Row,
    Rows,
    calendar_ns,
    each,
    open_log,
    shown,
    tokens,
)

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT_COLUMNS = ("Timestamp", "Model", "Request tokens", "Response tokens", "Log Type")

_AZURE_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(?:\+00:00)?")
_SECONDS = re.compile(r"(\d{1,9})(?:\.(\d{1,9})\d*)?")

_Cells = dict[str, str | None]


def read_azure(path: Path) -> Rows:
    """UTC time with up to 9 fractional digits, two counts."""
    return each(_table(path, AZURE_COLUMNS, "an Azure trace"), _azure)


def _azure(cells: _Cells, place: str) -> Rows:
    yield Row(
        _azure_time_ns(cells["TIMESTAMP"], place),
        tokens(cells["ContextTokens"], "ContextTokens", place),
        tokens(cells["GeneratedTokens"], "GeneratedTokens", place),
    )


def read_burstgpt(path: Path) -> Rows:
    """Seconds since the first day's midnight; a request that failed has no response token, and is left out.

    Release 2 has `Session ID` as well: only conversations have one.
    """
    return each(_table(path, BURSTGPT_COLUMNS, "a BurstGPT trace"), _burstgpt)


def _burstgpt(cells: _Cells, place: str) -> Rows:
    at_ns = _seconds_ns(cells["Timestamp"], place)
    prompt = tokens(cells["Request tokens"], "Request tokens", place)
    output = tokens(cells["Response tokens"], "Response tokens", place)
    if output == 0:
        yield LeftOut("failed: 0 response tokens")
    else:
        yield Row(at_ns, prompt, output, cells.get("Session ID") or None)


def _table(path: Path, columns: tuple[str, ...], what: str) -> Iterator[tuple[str, _Cells]]:
    with open_log(path) as file:
        table = csv.DictReader(file)
        missing = [column for column in columns if column not in (table.fieldnames or ())]
        if missing:
            raise BadRow(f"{path}:1: no column {missing[0]}: {what} has {', '.join(columns)}")
        for row in table:
            yield f"{path}:{table.line_num}", row


def _azure_time_ns(text: str | None, place: str) -> int:
    match = _AZURE_TIME.fullmatch(text or "")
    try:
        if match is None:
            raise ValueError
        return calendar_ns(match[1], match[2])
    except ValueError:
        raise BadRow(f"{place}: TIMESTAMP {shown(text)}: expected YYYY-MM-DD HH:MM:SS.fffffff") from None


def _seconds_ns(text: str | None, place: str) -> int:
    match = _SECONDS.fullmatch(text or "")
    if match is None:
        raise BadRow(f"{place}: Timestamp {shown(text)}: expected seconds")
    return int(match[1]) * NS_PER_S + int((match[2] or "0").ljust(9, "0"))
