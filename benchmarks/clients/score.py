"""From what the server saw and what a client said to how wrong the client was. Pure: no clock, no files.

Every time is in nanoseconds on CLOCK_MONOTONIC, which the server and the clients share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.clients.results import Accuracy, Spread, Truth
from benchmarks.clients.server import GAP_MS, Log, Stream

Values = NDArray[np.float64]

_MS = 1e6
_WINDOW_NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One request as its client reports it."""

    request_id: str | None = None
    """None where the client's report cannot be joined by it."""
    intended_ns: float | None = None
    ttft_ns: float | None = None
    gaps_ns: Sequence[float] | None = None
    """Between neighbouring tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a client reports of one run."""

    sights: list[Sight]
    """In the order in which they were sent; requests before the load are not among them."""
    rate_per_s: float
    """What it was asked for."""
    scheduled: int | None
    marked: int | None = None


Joined = Literal["id", "order", "no"]
Pair = tuple[Stream, Sight]


def accuracy(log: Log, account: Account) -> Accuracy:
    """Raises ValueError when the server saw fewer than three requests of the load."""
    streams, pairs, joined = _join(log.streams, account.sights)
    if len(streams) < 3:
        raise ValueError(f"only {len(streams)} requests arrived")
    arrived = np.array([stream.arrived_ns for stream in streams], np.float64)
    bias_ms, error_ms = _ttft_ms(streams, account.sights, pairs)
    return Accuracy(
        requests=len(streams),
        scheduled=account.scheduled,
        unanswered=sum(len(stream.written_ns) < stream.chunks for stream in streams),
        rate_ratio=rate_per_s(arrived) / account.rate_per_s,
        cv=_cv(arrived),
        idc=_idc(arrived),
        joined=joined,
        arrival_error_ms=_arrival_ms(streams, account.sights, pairs),
        ttft_bias_ms=bias_ms,
        ttft_error_p99_ms=error_ms,
        gap_error_p99_ms=_gap_ms(pairs),
        marked=account.marked,
    )


def truth(log: Log) -> Truth:
    """How late the server wrote, over all chunks."""
    late = [
        np.array(stream.written_ns, np.float64) - stream.due_ns - np.arange(len(stream.written_ns)) * GAP_MS * _MS
        for stream in log.streams
    ]
    return Truth(real_time=log.real_time, streams=len(log.streams), late_ms=_spread(np.concatenate(late)))


def rate_per_s(times_ns: Values) -> float:
    """Of events at these times, in order: gaps per second between the first and the last."""
    return float((len(times_ns) - 1) / ((times_ns[-1] - times_ns[0]) * 1e-9))


def _join(streams: list[Stream], sights: list[Sight]) -> tuple[list[Stream], list[Pair], Joined]:
    """The streams of the load in order of arrival, and each sight with its stream."""
    ordered = sorted(streams, key=lambda stream: stream.arrived_ns)
    by_id = {stream.request_id: stream for stream in ordered if stream.request_id is not None}
    ids = {sight.request_id: sight for sight in sights if sight.request_id is not None}
    if sights and len(ids) == len(sights) and ids.keys() <= by_id.keys():
        pairs = [(by_id[request_id], sight) for request_id, sight in ids.items()]
        return [stream for stream in ordered if stream.request_id in ids], pairs, "id"
    # What came before the load was the tool trying out the server; what it cut off at the end may never have come.
    load, unsent = ordered[-len(sights) :], sights[len(ordered) :]
    if sights and not ids and all(sight.ttft_ns is None for sight in unsent):
        return load, list(zip(load, sights, strict=False)), "order"
    return ordered, [], "no"


def _true_ttft_ns(stream: Stream) -> float:
    return stream.written_ns[0] - stream.arrived_ns


def _ttft_ms(streams: list[Stream], sights: list[Sight], pairs: list[Pair]) -> tuple[float | None, float | None]:
    said = np.array([sight.ttft_ns for sight in sights if sight.ttft_ns is not None], np.float64)
    true = np.array([_true_ttft_ns(stream) for stream in streams if stream.written_ns], np.float64)
    if not said.size or not true.size:
        return None, None
    bias_ms = float(np.median(said) - np.median(true)) / _MS
    errors = [
        abs(sight.ttft_ns - _true_ttft_ns(stream))
        for stream, sight in pairs
        if sight.ttft_ns is not None and stream.written_ns
    ]
    error_ns = np.quantile(errors, 0.99) if errors else np.quantile(said, 0.99) - np.quantile(true, 0.99)
    return bias_ms, float(error_ns) / _MS


def _gap_ms(pairs: list[Pair]) -> float | None:
    errors = [
        np.abs(np.asarray(sight.gaps_ns, np.float64) - np.diff(stream.written_ns))
        for stream, sight in pairs
        if sight.gaps_ns is not None and len(sight.gaps_ns) == len(stream.written_ns) - 1
    ]
    # A few streams may have been cut; a client of which most cannot be compared gives no figure.
    return float(np.quantile(np.concatenate(errors), 0.99)) / _MS if 2 * len(errors) > len(pairs) else None


def _arrival_ms(streams: list[Stream], sights: list[Sight], pairs: list[Pair]) -> Spread | None:
    if pairs:
        errors = [stream.arrived_ns - sight.intended_ns for stream, sight in pairs if sight.intended_ns is not None]
    else:
        intended = sorted(sight.intended_ns for sight in sights if sight.intended_ns is not None)
        errors = [stream.arrived_ns - at_ns for stream, at_ns in zip(streams, intended, strict=False)]
    return _spread(np.array(errors, np.float64)) if errors else None


def _cv(arrived_ns: Values) -> float:
    gaps = np.diff(arrived_ns)
    return float(np.std(gaps) / np.mean(gaps))


def _idc(arrived_ns: Values) -> float:
    """Over the whole seconds from the first arrival on; at least two, or it is 0."""
    windows = int((arrived_ns[-1] - arrived_ns[0]) // _WINDOW_NS)
    if windows < 2:
        return 0.0
    counts = np.bincount(((arrived_ns - arrived_ns[0]) // _WINDOW_NS).astype(np.int64))[:windows]
    return float(np.var(counts) / np.mean(counts))


def _spread(values_ns: Values) -> Spread:
    p50, p99, most = (float(value) / _MS for value in np.quantile(values_ns, (0.5, 0.99, 1.0)))
    return Spread(p50=p50, p99=p99, max=most)
