"""weir, and the bare client that it is measured against: how they are started, and what their files say.

Also what a `Contestant` is. Adding a load generator is adding one: a command, and a reader of what it leaves behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.clients import lean
from benchmarks.clients.results import Level
from benchmarks.clients.score import Account, Sight, rate_per_s
from benchmarks.clients.server import MODEL
from benchmarks.contestants import package_versions
from loadgen.plan.schedule_file import read_schedule
from loadgen.record import read_chunks, read_manifest, read_requests
from protocol.records import ChunkRecord, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one client."""

    port: int
    """Where the server is."""
    level: Level
    seed: int
    schedule: Path
    """For those that take one: the level's, the same for all of them."""
    directory: Path
    """For whatever the client writes."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def times_ns(self) -> list[int]:
        """Of the schedule."""
        return [int(at_ns) for at_ns in read_schedule(self.schedule).at_ns]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One load generator."""

    name: str
    version: tuple[str, ...]
    """Command that prints the version; its failure means that the client is not installed."""
    install: str
    command: Callable[[Task], list[str]]
    """May write files into the task's directory first."""
    read: Callable[[Task, int], Account]
    """What it says, from the files it left; the second argument is CLOCK_REALTIME less CLOCK_MONOTONIC, in ns."""
    environment: Mapping[str, str] = field(default_factory=dict)


def _weir_command(task: Task) -> list[str]:
    target = ["--url", task.url, "--model", MODEL]
    return [sys.executable, "-m", "weir", "run", *target, "--schedule", str(task.schedule), "--out", _run(task)]


def _run(task: Task) -> str:
    return str(task.directory / "run")


def _read_weir(task: Task, wall_less_monotonic_ns: int) -> Account:
    run = Path(_run(task))
    origin_ns = read_manifest(run).started_unix_ns - wall_less_monotonic_ns
    chunks = {record.index: record for record in read_chunks(run)}
    records = sorted(read_requests(run), key=lambda record: record.index)
    return Account(
        sights=[_weir_sight(record, chunks.get(record.index), origin_ns) for record in records],
        rate_per_s=rate_per_s(np.array(task.times_ns(), np.float64)),
        scheduled=len(records),
        marked=sum(_marked(record, chunks.get(record.index)) for record in records),
    )


def _weir_sight(record: RequestRecord, chunks: ChunkRecord | None, origin_ns: int) -> Sight:
    intended_ns = origin_ns + record.intended_ns
    if record.sent_ns is None or record.first_token_ns is None or chunks is None:
        return Sight(request_id=record.request_id, intended_ns=intended_ns)
    return Sight(
        request_id=record.request_id,
        intended_ns=intended_ns,
        ttft_ns=record.first_token_ns - record.sent_ns,
        gaps_ns=np.diff(np.repeat(np.array(chunks.t_ns, np.float64), chunks.content_events)).tolist(),
    )


def _marked(record: RequestRecord, chunks: ChunkRecord | None) -> bool:
    """Every mark that a plain HTTP connection has; whether it was opened for the request is one of them."""
    marks = [record.dequeued_ns, record.sent_ns, record.first_byte_ns, record.headers_ns, record.first_token_ns]
    marks += [record.first_answer_ns, record.last_token_ns, record.end_ns]
    if record.new_connection:
        marks.append(record.connected_ns)
    return chunks is not None and sum(chunks.content_events) == record.output_tokens and None not in marks


def _lean_command(task: Task) -> list[str]:
    times = task.directory / "times"
    times.write_text("".join(f"{at_ns}\n" for at_ns in task.times_ns()), encoding="ascii")
    return [sys.executable, "-m", "benchmarks.clients.lean", str(task.port), str(times), str(task.directory / "seen")]


def _read_lean(task: Task, _: int) -> Account:
    seen = msgspec.json.decode((task.directory / "seen").read_bytes(), type=lean.Seen)
    times_ns = task.times_ns()
    return Account(
        sights=[
            Sight(
                request_id=str(index),
                intended_ns=seen.origin_ns + at_ns,
                ttft_ns=marks.tokens_ns[0] - marks.sent_ns,
                gaps_ns=np.diff(marks.tokens_ns).tolist(),
            )
            for index, (at_ns, marks) in enumerate(zip(times_ns, seen.requests, strict=True))
        ],
        rate_per_s=rate_per_s(np.array(times_ns, np.float64)),
        scheduled=len(times_ns),
    )


WEIR = Contestant(
    name="weir",
    version=package_versions("weir-llm", "httptools", "uvloop"),
    install="install this project: make install",
    command=_weir_command,
    read=_read_weir,
)
LEAN = Contestant(
    name="lean",
    version=package_versions("uvloop"),
    install="install this project's requirements: make install",
    command=_lean_command,
    read=_read_lean,
)
