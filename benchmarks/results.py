"""The data of one comparison: scenarios, what each window of load measured, the machine; saved as JSON.

A report holds every window of every repeat, so tables can be made again from it. Computes no statistics.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks import wire

ROOT = Path(__file__).parents[1]
"""The checkout: where child processes run, so that `-m weir` and `-m benchmarks.engine` are this tree's."""


RESUME_LIMIT_S = 15.0
"""After a stall, reading on must come to fresh chunks within that time: time for what was held to be delivered."""


class LoadScenario(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """A closed loop of `connections` clients, until `requests` were sent or `limit_s` has passed."""

    name: str
    connections: int
    requests: int
    limit_s: float
    """Only contestants too slow for `requests` meet it; requests under way then still finish."""
    shape: wire.Shape = wire.SMALL
    prompt_bytes: int = 0


class IdleScenario(msgspec.Struct, frozen=True, kw_only=True, tag="idle"):
    """`streams` streams at once, each silent after its first chunk: what does the memory of one cost?"""

    name: str
    streams: int
    limit_s: float
    """For opening them; the memory is divided by those that are open by then."""
    settle_s: float
    """From the last stream's first chunk, and before the first one is opened, to reading the memory."""


class StalledScenario(msgspec.Struct, frozen=True, kw_only=True, tag="stalled"):
    """Clients that stop reading for `seconds`, then read on, while the engine writes as fast as it can.

    Several, so that what is held for each of them shows against what any first request costs.
    """

    name: str
    clients: int
    seconds: float


Scenario = LoadScenario | IdleScenario | StalledScenario


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    p50: float
    p99: float


class LoadResult(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """What the clients of one window saw."""

    completed: int
    """Answers with status 200 and every chunk, in order."""
    altered: int
    """Of these, how many bodies were not byte for byte what the engine sent."""
    failed: dict[str, int]
    """Requests without a complete answer, by reason."""
    chunks: int
    duration_s: float
    ttft_ms: Quantiles | None
    """From writing the request to the first body byte; None when nothing completed."""
    total_ms: Quantiles | None
    """From writing the request to the last body byte."""
    gap_ms: Quantiles | None
    """Between the arrivals of neighbouring chunks of a stream."""
    delay_ms: Quantiles | None
    """One way: from the engine's write to the client's read of each chunk."""


class IdleResult(msgspec.Struct, frozen=True, kw_only=True, tag="idle"):
    """RSS of the contestant's processes without and with the open streams; what the kernel holds is not in it."""

    streams: int
    failed: dict[str, int]
    """Streams that did not open, by reason."""
    opened_s: float
    """How long opening them took."""
    rss_before_bytes: int | None
    rss_after_bytes: int | None


class StalledResult(msgspec.Struct, frozen=True, kw_only=True, tag="stalled"):
    clients: int
    taken_bytes: list[int]
    """How much of all streams the engine had got rid of, at equal intervals over the stall."""
    rss_before_bytes: int | None
    rss_after_bytes: int | None
    resumed: bool
    """Whether the first client, reading on, came within RESUME_LIMIT_S to a chunk written after the stall."""

    @property
    def held_back(self) -> bool:
        """The engine had to wait: the stream was there, and not a byte was taken in the last third of the stall."""
        return 0 < self.taken_bytes[-1] == self.taken_bytes[len(self.taken_bytes) * 2 // 3 - 1]


Result = LoadResult | IdleResult | StalledResult


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario against one contestant, once."""

    repeat: int
    scenario: str
    contestant: str
    result: Result
    cpu_s: float | None
    """User and system time of the contestant's process tree over the window; None for `direct`."""
    cpu_resolution: float | None
    """Largest relative error of `cpu_s` that the kernel's tick can cause."""
    rss_peak_bytes: int | None
    """Sum over the tree of each process's peak within the window."""
    foreign_cores: float
    """CPU that processes outside this comparison used meanwhile, as a share of one core."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    cpu: str
    cores: int
    kernel: str
    memory_bytes: int
    python: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["weir.overhead/2"] = "weir.overhead/2"
    date: str
    command: list[str]
    commit: str
    """Of the tree at the start, with `+dirty` when files differ from it; `unknown` outside a checkout."""
    sources_sha256: str
    """Of the gateway's sources at the start: what `weir` was, whatever `commit` says of a dirty tree."""
    sources_changed: bool
    """Whether they were others at the end: then the windows of `weir` are not of one program."""
    machine: Machine
    versions: dict[str, str]
    scenarios: list[Scenario]
    windows: list[Window]
    missing: list[str]
    """Contestants that did not take part because they are not installed, each with what installs it."""
    unmeasured: list[str]
    """Windows that are missing because their contestant did not start or its load broke down, and why."""


def describe_machine() -> Machine:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return Machine(
        cpu=models[0] if models else platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        kernel=platform.release(),
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        python=platform.python_version(),
    )


def describe_commit() -> str:
    head = _git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return "unknown"
    return f"{head}+dirty" if _git("status", "--porcelain") else head


def digest_sources() -> str:
    """SHA-256 over the paths and contents of every Python file that `weir serve` may import."""
    digest = hashlib.sha256()
    for package in ("gateway", "protocol", "weir"):
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def save(report: msgspec.Struct, path: Path) -> None:
    """As JSON, a field per line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
