"""Traffic for tests, written as rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from loadgen.workload.traffic import Requests


class TraceRow(NamedTuple):
    at_s: float
    prompt_tokens: int
    output_tokens: int


def columns(rows: Iterable[tuple[float, int, int]]) -> Requests:
    """Requests of rows of time in s, prompt and output tokens, that share no text."""
    at_s, prompt, output = np.array(list(rows), dtype=np.float64).reshape(-1, 3).T
    return Requests.unshared(at_s, prompt.astype(np.int64), output.astype(np.int64))


def rows(requests: Requests) -> list[TraceRow]:
    """The other way."""
    table = zip(requests.at_s.tolist(), requests.prompt_tokens.tolist(), requests.output_tokens.tolist(), strict=True)
    return [TraceRow(*row) for row in table]
