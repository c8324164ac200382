"""From the raw reads of a window to its verdict: which answers are complete and unaltered, and how late.

Runs after the load has ended, so that judging costs the measurement nothing. Pure: no clock, no sockets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks import wire
from benchmarks.results import LoadResult, Quantiles

Times = NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Exchange:
    """One request and the reads of its answer's body, on one monotonic clock."""

    sent_ns: int
    status: int = 0
    reads: list[bytes] = field(default_factory=list)
    reads_ns: list[int] = field(default_factory=list)
    error: str | None = "unfinished"
    """Why there is no whole answer; None once the answer's framing came to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    altered: bool
    ttft_ns: int
    total_ns: int
    gaps_ns: Times
    delays_ns: Times


def tally(exchanges: list[Exchange], shape: wire.Shape, *, duration_s: float) -> LoadResult:
    """Verdict on all exchanges of a window, all of which asked for `shape`."""
    failed: Counter[str] = Counter()
    answers: list[Answer] = []
    for exchange in exchanges:
        verdict = judge(exchange, shape)
        if isinstance(verdict, Answer):
            answers.append(verdict)
        else:
            failed[verdict] += 1
    return LoadResult(
        completed=len(answers),
        altered=sum(answer.altered for answer in answers),
        failed=dict(failed),
        chunks=len(answers) * shape.chunks,
        duration_s=duration_s,
        ttft_ms=_quantiles_ms([np.array([answer.ttft_ns for answer in answers], np.int64)]),
        total_ms=_quantiles_ms([np.array([answer.total_ns for answer in answers], np.int64)]),
        gap_ms=_quantiles_ms([answer.gaps_ns for answer in answers]),
        delay_ms=_quantiles_ms([answer.delays_ns for answer in answers]),
    )


def judge(exchange: Exchange, shape: wire.Shape) -> Answer | str:
    """The answer's timings, or why the request counts as failed."""
    if exchange.error:
        return exchange.error
    if exchange.status != 200:
        return f"status {exchange.status}"
    if not exchange.reads:
        return "empty body"
    body = b"".join(exchange.reads)
    return _judge_stream(exchange, body, shape) if shape.chunks else _judge_small(exchange, body)


def _judge_small(exchange: Exchange, body: bytes) -> Answer | str:
    if b'"choices"' not in body:
        return "not a chat completion"
    none = np.empty(0, np.int64)
    return Answer(
        altered=body != wire.SMALL_ANSWER,
        ttft_ns=exchange.reads_ns[0] - exchange.sent_ns,
        total_ns=exchange.reads_ns[-1] - exchange.sent_ns,
        gaps_ns=none,
        delays_ns=none,
    )


def _judge_stream(exchange: Exchange, body: bytes, shape: wire.Shape) -> Answer | str:
    stamps = list(wire.STAMP.finditer(body))
    if len(stamps) != shape.chunks or not body.rstrip().endswith(wire.DONE.strip()):
        return "incomplete stream"
    written_ns = np.array([int(stamp[1]) for stamp in stamps], np.int64)
    ends = np.cumsum([len(read) for read in exchange.reads])
    read_ns = np.array(exchange.reads_ns, np.int64)[np.searchsorted(ends, [stamp.end() for stamp in stamps])]
    delays_ns = read_ns - written_ns
    if np.any(np.diff(written_ns) < 0) or np.any(delays_ns < 0):
        return "chunks out of order"
    return Answer(
        altered=wire.blanked(body) != wire.blank_stream(shape.chunks, shape.pad_bytes),
        ttft_ns=exchange.reads_ns[0] - exchange.sent_ns,
        total_ns=exchange.reads_ns[-1] - exchange.sent_ns,
        gaps_ns=np.diff(read_ns),
        delays_ns=delays_ns,
    )


def _quantiles_ms(parts: list[Times]) -> Quantiles | None:
    values_ns = np.concatenate([np.empty(0, np.int64), *parts])
    if values_ns.size == 0:
        return None
    p50, p99 = np.quantile(values_ns, (0.5, 0.99)) / 1e6
    return Quantiles(p50=float(p50), p99=float(p99))
