"""Request logs as requests: which formats there are, how one is recognised, and what a log becomes.

Read in one pass, with nothing kept but the columns. What cannot be read is an error unless some bad rows are allowed;
what has no place in a schedule is left out and counted. Zero-token rows are kept as logged (a request that gave no
output still cost its prefill); a schedule raises them to 1, which is the least that an engine accepts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from loadgen.workload.importers import csv_logs, json_logs, prompt_files, servegen
from loadgen.workload.importers.prompt_files import Count
from loadgen.workload.importers.rows import Columns, Rows, open_log
from loadgen.workload.traffic import Requests

_TIMED: dict[str, Callable[[Path], Rows]] = {
    "azure": csv_logs.read_azure,
    "burstgpt": csv_logs.read_burstgpt,
    "mooncake": json_logs.read_mooncake,
    "openai": json_logs.read_openai,
    "servegen": servegen.read_servegen,
    "weir": json_logs.read_weir,
}
_TEXTS: dict[str, Callable[[Count | None], Callable[[Path], Rows]]] = {
    "aiperf": lambda count: prompt_files.Aiperf(count).read,
    "guidellm": lambda count: partial(prompt_files.read_guidellm, counted=count),
    "vllm": lambda count: partial(prompt_files.read_vllm, counted=count),
}
FORMATS = sorted([*_TIMED, *_TEXTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a log says, and what had to be left out of it."""

    name: str
    sha256: str
    """Of the file; of several, that of their digests in order."""
    format: str
    requests: Requests
    timed: bool
    """False when the log has no times: `at_s` means nothing then."""
    left_out: Mapping[str, int]
    """Rows that are not here, by reason."""

    @property
    def zero_rows(self) -> int:
        """Rows with no prompt or no output token: kept here, raised to 1 in a schedule."""
        return int(np.count_nonzero((self.requests.prompt_tokens == 0) | (self.requests.output_tokens == 0)))


def detect_format(path: Path) -> str:
    """The format of a log, by its first lines. Raises ValueError when it is none of `FORMATS`."""
    if path.is_dir():
        if servegen.trace_files(path):
            return "servegen"
        raise ValueError(f"{path} is a folder without chunk-N-trace.csv: name a file")
    with open_log(path) as file:
        for number, line in enumerate(islice(file, _FIRST_LINES)):
            format = (_format_of_columns(line) if number == 0 else None) or _format_of_object(line)
            if format is not None:
                return format
    raise ValueError(f"{path}: of no format that is known: give --format, one of {', '.join(FORMATS)}")


def _format_of_columns(line: str) -> str | None:
    columns = {cell.strip().strip('"') for cell in line.split(",")}
    return next((format for expected, format in _COLUMNS if columns.issuperset(expected)), None)


def _format_of_object(line: str) -> str | None:
    return next((format for marks, format in _MARKS if all(f'"{mark}"' in line for mark in marks)), None)


_FIRST_LINES = 20
"""The first requests of a log may have failed, and say less than others."""

_COLUMNS = (
    (csv_logs.AZURE_COLUMNS, "azure"),
    (csv_logs.BURSTGPT_COLUMNS, "burstgpt"),
    (("prompt", "output_tokens_count"), "guidellm"),
)

_MARKS = (
    (("weir.gateway-record/1",), "weir"),
    (("turns",), "aiperf"),
    (("session_id", "output_length"), "aiperf"),
    (("text_input", "output_length"), "aiperf"),
    (("input_length", "output_length"), "mooncake"),
    (("usage",), "openai"),
    (("prompt", "output_tokens_count"), "guidellm"),
    (("prompt", "output_tokens"), "vllm"),
    (("text", "output_length"), "aiperf"),
    (("texts", "output_length"), "aiperf"),
    (("conversations",), "vllm"),
)
"""What a line of a log has in it, most telling first."""


def read_trace(*paths: Path, format: str | None = None, count: Count | None = None, bad_rows: float = 0.0) -> Trace:
    """Reads a log, or several that are one (rotated, or of several gateways), sorted by time.

    A path that names no file may be a pattern (`records-*.jsonl.gz`). `format` is one of `FORMATS`, found by
    `detect_format` when None; `count` counts the tokens of prompts that are text. Up to the share `bad_rows` of the
    rows may be unreadable and are left out. Raises ValueError for a line that cannot be read or a log without a single
    usable row, OSError when a file cannot be opened.
    """
    paths = tuple(path for pattern in paths for path in _matching(pattern))
    format = format or detect_format(paths[0])
    if format not in FORMATS:
        raise ValueError(f"trace format {format!r}: one of {', '.join(FORMATS)}")
    read = _TEXTS[format](count) if format in _TEXTS else _TIMED[format]
    columns = Columns(bad_rows)
    for path in paths:
        columns.extend(read(path))
    columns.check()
    if not len(columns):
        reasons = ", ".join(f"{number} {reason}" for reason, number in columns.left_out.items()) or "it is empty"
        raise ValueError(f"{paths[0]}: no usable row ({reasons}): nothing to replay or fit")
    if 0 < columns.untimed < len(columns):
        raise ValueError(
            f"{paths[0]}: {columns.untimed} of {len(columns)} rows have no time: give all of them one, or none"
        )
    return Trace(
        name=paths[0].name.split(".")[0],
        sha256=_digest(paths),
        format=format,
        requests=columns.requests(),
        timed=not columns.untimed,
        left_out=dict(columns.left_out),
    )


def _matching(pattern: Path) -> list[Path]:
    """In order of their names. Raises ValueError when nothing matches."""
    if pattern.exists() or not set("*?[") & set(pattern.name):
        return [pattern]
    found = sorted(pattern.parent.glob(pattern.name))
    if not found:
        raise ValueError(f"{pattern}: no file has such a name")
    return found


def _digest(paths: Sequence[Path]) -> str:
    digests = [_file_digest(part) for path in paths for part in _parts(path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def _parts(path: Path) -> list[Path]:
    return sorted(part for part in path.iterdir() if part.is_file()) if path.is_dir() else [path]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
