"""ServeGen's clients: not a log but a description of each client, from which a day of requests is drawn.

A folder has `chunk-N-trace.csv`, with a row for each 600 s (start, rate, cv, family of the gaps, its two parameters),
and `chunk-N-dataset.json`, with distributions of prompt and output tokens for each six hours. Drawn with one fixed
seed, so that the folder gives the same trace every time; rates are kept, the shape is that of the fitted family.
"""

from __future__ import annotations

import ast
import csv
import math
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from loadgen.workload.importers.rows import BadRow, LeftOut, Row, Rows, each
from loadgen.workload.traffic import Floats, Ints

_WINDOW_S = 600.0
_SEED = 0
_NUMBER = re.compile(r"chunk-(\d+)-trace\.csv")

Lengths = dict[float, tuple[tuple[Ints, Floats], tuple[Ints, Floats]]]
"""From second on: values and cumulated shares, of prompts and of outputs."""


def trace_files(folder: Path) -> list[Path]:
    """Those of its clients, in order of their number."""
    numbered = [(int(match[1]), path) for path in folder.glob("*.csv") if (match := _NUMBER.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def read_servegen(folder: Path) -> Rows:
    """Every request of every client."""
    for path in trace_files(folder):
        number = int(_NUMBER.fullmatch(path.name)[1])  # type: ignore[index]  # `trace_files` matched it
        rng = np.random.default_rng([_SEED, number])
        lengths = _lengths(path.with_name(path.name.replace("-trace.csv", "-dataset.json")))
        yield from each(_table(path), partial(_window, rng=rng, lengths=lengths))


def _table(path: Path) -> Iterator[tuple[str, list[str]]]:
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.reader(file), start=1):
            yield f"{path}:{line}", row


def _window(row: list[str], place: str, rng: np.random.Generator, lengths: Lengths) -> Rows:
    try:
        start_s, rate = float(row[0]), float(row[1])
        shape = float(row[4]) if row[3] == "Weibull" else float(row[2])
    except (ValueError, IndexError):
        raise BadRow(f"{place}: {','.join(row)!r}: expected start,rate,cv,family,parameter,parameter") from None
    if rate == 0:
        return
    if row[3] not in ("Gamma", "Weibull"):
        raise BadRow(f"{place}: family {row[3]!r}: expected Gamma or Weibull")
    if not (0 < rate < math.inf and 0 < shape < math.inf):
        raise BadRow(f"{place}: rate {row[1]} at a shape of {shape:g}: expected numbers above 0")
    times = _renewals(rng, row[3], shape, rate)
    known = [begin for begin in lengths if begin <= start_s]
    if not known:
        for _ in times:
            yield LeftOut("no lengths for this time")
        return
    (prompts, prompt_shares), (outputs, output_shares) = lengths[max(known)]
    which = rng.random((2, len(times)))
    prompt = prompts[np.searchsorted(prompt_shares, which[0])].tolist()
    output = outputs[np.searchsorted(output_shares, which[1])].tolist()
    for at_s, prompt_tokens, output_tokens in zip(times.tolist(), prompt, output, strict=True):
        yield Row(round((start_s + at_s) * 1e9), prompt_tokens, output_tokens)


def _renewals(rng: np.random.Generator, family: str, shape: float, rate: float) -> Floats:
    """Times within the window at gaps of mean 1 / rate; `shape` is a Gamma's cv, or a Weibull's own parameter.

    The window begins somewhere in a gap, in a long one the likelier, so that the rate holds however bursty it is.
    """
    size = int(rate * _WINDOW_S) + 50
    if family == "Gamma":
        order, scale = shape**-2, shape**2 / rate
        around = rng.gamma(order + 1, scale)
    else:
        scale = 1 / (rate * math.gamma(1 + 1 / shape))
        around = scale * rng.gamma(1 + 1 / shape) ** (1 / shape)
    times = np.array([around * rng.random()])
    while times[-1] < _WINDOW_S:
        gaps = rng.gamma(order, scale, size) if family == "Gamma" else scale * rng.weibull(shape, size)
        times = np.concatenate((times, times[-1] + np.cumsum(gaps)))
    return times[times < _WINDOW_S]


def _lengths(path: Path) -> Lengths:
    try:
        content = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
        return {
            float(begin): (_distribution(of["input_tokens"]), _distribution(of["output_tokens"]))
            for begin, of in content.items()
            if ast.literal_eval(of["input_tokens"]) and ast.literal_eval(of["output_tokens"])
        }
    except (msgspec.MsgspecError, KeyError, ValueError, SyntaxError, OSError) as error:
        raise BadRow(f"{path}: expected distributions of input_tokens and output_tokens by second: {error}") from None


def _distribution(text: str) -> tuple[Ints, Floats]:
    shares: dict[float, float] = ast.literal_eval(text)
    values = sorted(shares)
    cumulated = np.cumsum([shares[value] for value in values])
    return np.array([round(value) for value in values], dtype=np.int64), cumulated / cumulated[-1]
