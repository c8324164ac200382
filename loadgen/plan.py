"""Turns traffic into a schedule: every request with its absolute time, lengths and prompt seed.

A schedule is made before the run, from a seed, and written as JSON lines; the SHA-256 of that file is the
identity of the offered load, equal for every arm of a comparison. Nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from protocol.records import ScheduledRequest, ScheduleHeader, encode_line

Schedule = tuple[ScheduleHeader, list[ScheduledRequest]]

_NS_PER_S = 1_000_000_000
_Line = TypeVar("_Line", bound=msgspec.Struct)


class Row(Protocol):
    """One request of some traffic; `at_s` counts from an origin that all rows share."""

    @property
    def at_s(self) -> float: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def output_tokens(self) -> int: ...


class Traffic(Protocol):
    """A description that can be sampled; `loadgen.workload.description.Workload` is one."""

    @property
    def name(self) -> str: ...

    def digest(self) -> str:
        """SHA-256 (hex) of what is described."""
        ...

    def draw(self, rng: np.random.Generator, *, start_s: float, duration_s: float, rate_scale: float) -> Sequence[Row]:
        """Requests of [start_s, start_s + duration_s) at `rate_scale` times the described rate.

        `at_s` of the rows counts from `start_s`.
        """
        ...


def schedule_from_workload(
    workload: Traffic, *, seed: int, duration_s: float, rate_scale: float = 1.0, start_s: float = 0.0
) -> Schedule:
    """Samples `workload`: equal arguments give equal schedules.

    The rate curve is read from `start_s` on, at its own pace; `rate_scale` multiplies it. The number of
    requests is random, as it is in the traffic: nothing conditions the draw on its mean.
    """
    _check_slice(duration_s, rate_scale, start_s)
    traffic, prompts = _generators(seed)
    rows = workload.draw(traffic, start_s=start_s, duration_s=duration_s, rate_scale=rate_scale)
    header = ScheduleHeader(
        source=_slice_name(workload.name, start_s, duration_s, rate_scale),
        source_sha256=workload.digest(),
        seed=seed,
        requests=len(rows),
        duration_ns=round(duration_s * _NS_PER_S),
    )
    return header, _materialise(rows, prompts)


def schedule_from_rows(
    rows: Iterable[Row],
    *,
    source: str,
    source_sha256: str,
    seed: int,
    duration_s: float,
    rate_scale: float = 1.0,
    start_s: float = 0.0,
) -> Schedule:
    """Replays rows of a trace from `start_s` (trace time) for `duration_s` (run time).

    `rate_scale` 2 plays the trace at twice its speed, so twice `duration_s` of trace is used and gaps halve.
    The seed only decides the prompts' text.
    """
    _check_slice(duration_s, rate_scale, start_s)
    _, prompts = _generators(seed)
    end_s = start_s + duration_s * rate_scale
    played = [
        _Played((row.at_s - start_s) / rate_scale, row.prompt_tokens, row.output_tokens)
        for row in rows
        if start_s <= row.at_s < end_s
    ]
    header = ScheduleHeader(
        source=_slice_name(source, start_s, duration_s, rate_scale),
        source_sha256=source_sha256,
        seed=seed,
        requests=len(played),
        duration_ns=round(duration_s * _NS_PER_S),
    )
    return header, _materialise(played, prompts)


class _Played(msgspec.Struct, frozen=True):
    at_s: float
    prompt_tokens: int
    output_tokens: int


def _check_slice(duration_s: float, rate_scale: float, start_s: float) -> None:
    for name, value in (("duration_s", duration_s), ("rate_scale", rate_scale)):
        if not 0 < value < float("inf"):
            raise ValueError(f"{name} is {value}: give a number above 0")
    if not 0 <= start_s < float("inf"):
        raise ValueError(f"start_s is {start_s}: give a number of at least 0")


def _generators(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Independent streams for traffic and prompts, so that more requests never change earlier ones."""
    if seed < 0:
        raise ValueError(f"seed is {seed}: give an integer of at least 0")
    traffic, prompts = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(traffic), np.random.default_rng(prompts)


def _slice_name(source: str, start_s: float, duration_s: float, rate_scale: float) -> str:
    return f"{source}[{start_s:g}s+{duration_s:g}s]x{rate_scale:g}"


def _materialise(rows: Sequence[Row], prompts: np.random.Generator) -> list[ScheduledRequest]:
    """No engine takes an empty prompt or `max_tokens: 0`, so traced zeros become 1: the load stays."""
    seeds = prompts.integers(2**63, size=len(rows)).tolist()
    requests = [
        ScheduledRequest(
            index=index,
            at_ns=int(row.at_s * _NS_PER_S),
            prompt_tokens=max(1, row.prompt_tokens),
            output_tokens=max(1, row.output_tokens),
            prompt_seed=prompt_seed,
        )
        for index, (row, prompt_seed) in enumerate(zip(rows, seeds, strict=True))
    ]
    _check(requests)
    return requests


def encode_schedule(header: ScheduleHeader, requests: Iterable[ScheduledRequest]) -> bytes:
    """The schedule as the bytes of its file."""
    return encode_line(header) + b"".join(map(encode_line, requests))


def decode_schedule(content: bytes) -> Schedule:
    """The reverse of `encode_schedule`.

    Raises ValueError naming the line when one is not what it must be, when times are negative or go back,
    when lengths are below 1, or when the header counts differently.
    """
    lines = content.splitlines()
    header = _decode_line(lines[0] if lines else b"", 1, msgspec.json.Decoder(ScheduleHeader))
    decoder = msgspec.json.Decoder(ScheduledRequest)
    requests = [_decode_line(line, number, decoder) for number, line in enumerate(lines[1:], start=2)]
    if len(requests) != header.requests:
        raise ValueError(f"the header promises {header.requests} requests, the file has {len(requests)}")
    _check(requests)
    return header, requests


def _decode_line(line: bytes, number: int, decoder: msgspec.json.Decoder[_Line]) -> _Line:
    try:
        return decoder.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"line {number}: {error}") from error


def _check(requests: Sequence[ScheduledRequest]) -> None:
    for index, request in enumerate(requests):
        if request.index != index:
            raise ValueError(f"request {index} says it is {request.index}: number requests from 0, in order")
        if request.at_ns < 0:
            raise ValueError(f"request {index}: at_ns is {request.at_ns}, before the start of the run")
        if min(request.prompt_tokens, request.output_tokens) < 1:
            raise ValueError(f"request {index}: prompt_tokens and output_tokens must be at least 1")
    for earlier, later in pairwise(requests):
        if later.at_ns < earlier.at_ns:
            raise ValueError(f"request {later.index}: at_ns goes back by {earlier.at_ns - later.at_ns} ns")
