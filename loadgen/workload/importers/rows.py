"""What every reader of a log gives, row by row, and the columns that become of it.

A reader never guesses: what it cannot read is an error that names file, line, column and value; a row that has no place
in a schedule is left out with its reason.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, NamedTuple, TextIO, TypeVar, cast

import numpy as np

from loadgen.workload.traffic import Ints, Requests

Segment = tuple[int, int]
"""Id of a piece of text, and its tokens."""


class Row(NamedTuple):
    """One request. Without segments, its prompt has nothing in common with any other."""

    at_ns: int | None
    """Since any epoch; None in a log without times."""
    prompt_tokens: int
    output_tokens: int
    session: str | None = None
    """Requests of one conversation have the same."""
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A row that cannot be used, and why, in words that are the same for every row like it."""

    reason: str


class BadRow(ValueError):
    """A line that is not what its format says; the message names file, line, column, value and what was expected."""


Rows = Iterable[Row | LeftOut | BadRow]
_Raw = TypeVar("_Raw")


def each(raws: Iterable[tuple[str, _Raw]], read: Callable[[_Raw, str], Rows]) -> Rows:
    """What `read` makes of each raw row, with its place; one that it cannot read is given as its error."""
    for place, raw in raws:
        try:
            yield from read(raw, place)
        except BadRow as error:
            yield error


PACKINGS = (".gz", ".zst")


@contextmanager
def open_log(path: Path) -> Iterator[TextIO]:
    """A log as text, unpacked when its name ends in `.gz` or `.zst`. Raises ValueError for another or broken packing.

    Bytes that are no UTF-8 spoil the row that they are in, not the file.
    """
    try:
        with io.TextIOWrapper(_unpacked(path), "utf-8-sig", "surrogateescape", newline="") as file:
            yield file
    except (EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{path}: cannot be read to its end: {error}") from None


def _unpacked(path: Path) -> BinaryIO:
    if path.suffix in (".xz", ".bz2"):
        raise ValueError(f"{path}: packed as {path.suffix}: unpack it, or pack it with gzip")
    if path.suffix == ".gz":
        return cast("BinaryIO", gzip.open(path))
    if path.suffix == ".zst":
        import pyarrow

        return cast("BinaryIO", pyarrow.input_stream(str(path), compression="zstd"))
    return path.open("rb")


_MOST_TOKENS = 2**31 - 1
"""More than any model takes, and what a schedule holds."""


def tokens(value: object, column: str, place: str) -> int:
    """A count of tokens, as text or as a number. Raises BadRow."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= len(str(_MOST_TOKENS)):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS:
        return value
    raise BadRow(f"{place}: {column} {shown(value)}: expected a count of tokens")


NS_PER_S = 1_000_000_000
LATEST_S = 2**33
"""In the year 2242: times up to here are exact in 64 bits of nanoseconds."""


def milliseconds_ns(value: object, column: str, place: str) -> int:
    """Since a log's own origin. Raises BadRow."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < LATEST_S * 1000:
        return round(value * 1_000_000)
    raise BadRow(f"{place}: {column} {shown(value)}: expected milliseconds")


def calendar_ns(whole: str, fraction: str | None, zone: str = "+00:00") -> int:
    """Since 1970, exact to the last of up to nine digits, which a float would not be. Raises ValueError."""
    seconds = int(datetime.fromisoformat(whole + zone).timestamp())
    if not 0 <= seconds < LATEST_S:
        raise ValueError(f"{whole} is before 1970 or after 2242")
    return seconds * NS_PER_S + int((fraction or "0").ljust(9, "0"))


def shown(value: object) -> str:
    """A value in a message, cut where it would fill the screen."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_SHOWN = 80


_BAD_SHOWN = 3


class Columns:
    """Collects rows; holds 8 bytes for each figure and nothing else.

    Up to the share `bad_rows` of all rows may be bad.
    """

    def __init__(self, bad_rows: float = 0.0) -> None:
        if not 0 <= bad_rows < 1:
            raise ValueError(f"a share of {bad_rows:g} bad rows: give one from 0 to below 1, as 0.01")
        self._bad_rows = bad_rows
        self._bad: list[BadRow] = []
        self.left_out: Counter[str] = Counter()
        self.untimed = 0
        self._sessions: dict[str, int] = {}
        self._at_ns, self._prompt, self._output = array("q"), array("q"), array("q")
        self._session, self._offsets = array("q"), array("q", [0])
        self._ids, self._tokens = array("q"), array("q")

    def __len__(self) -> int:
        return len(self._prompt)

    def extend(self, rows: Rows) -> None:
        """Takes rows in any order. Raises BadRow for the first bad one when none is allowed."""
        for row in rows:
            if isinstance(row, Row):
                self._add(row)
            elif isinstance(row, LeftOut):
                self.left_out[row.reason] += 1
            elif self._bad_rows:
                self.left_out["not readable"] += 1
                self._bad = [*self._bad, row][:_BAD_SHOWN]
            else:
                raise row

    def check(self) -> None:
        """To be called after the last row. Raises BadRow, with the first of them, for more bad rows than allowed."""
        bad, whole = self.left_out["not readable"], len(self) + self.left_out.total()
        if bad > self._bad_rows * whole:
            shown = "; ".join(map(str, self._bad))
            raise BadRow(f"{bad} of {whole} rows are not readable, more than {self._bad_rows:.2%}: {shown}")

    def _add(self, row: Row) -> None:
        self.untimed += row.at_ns is None
        self._at_ns.append(row.at_ns or 0)
        self._prompt.append(row.prompt_tokens)
        self._output.append(row.output_tokens)
        known = self._sessions
        self._session.append(-1 if row.session is None else known.setdefault(row.session, len(known)))
        for identity, length in row.segments or ((-1, row.prompt_tokens),):
            self._ids.append(identity)
            self._tokens.append(length)
        self._offsets.append(len(self._ids))

    def requests(self) -> Requests:
        """In order of time, equal times as they were read; times count from the first."""
        at_ns = np.asarray(self._at_ns, dtype=np.int64)
        order = np.argsort(at_ns, kind="stable")
        offsets, picked = _reordered(np.asarray(self._offsets, dtype=np.int64), order)
        return Requests(
            at_s=(at_ns[order] - at_ns[order[0]]) / 1e9 if len(order) else np.zeros(0),
            prompt_tokens=np.asarray(self._prompt, dtype=np.int64)[order],
            output_tokens=np.asarray(self._output, dtype=np.int64)[order],
            session=np.asarray(self._session, dtype=np.int64)[order],
            segment_offsets=offsets,
            segment_ids=np.asarray(self._ids, dtype=np.int64)[picked],
            segment_tokens=np.asarray(self._tokens, dtype=np.int64)[picked],
        )


def _reordered(offsets: Ints, order: Ints) -> tuple[Ints, Ints]:
    """Offsets of rows put into another order, and where each of their segments was before."""
    sizes = np.diff(offsets)[order]
    moved = np.concatenate(([0], np.cumsum(sizes)))
    starts = np.repeat(offsets[:-1][order] - moved[:-1], sizes)
    return moved, starts + np.arange(moved[-1])
