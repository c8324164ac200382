"""Runs one client against a fresh server, accounts for what it took, and says whether something disturbed it.

Knows the life of the processes. What the figures mean is worked out in `score`, from the files they leave.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, NamedTuple

import msgspec

from benchmarks import contestants, cpu
from benchmarks.children import child, line
from benchmarks.clients import score
from benchmarks.clients.ours import Contestant, Task
from benchmarks.clients.results import Cell, Cost, Level, Truth
from benchmarks.clients.server import Log
from benchmarks.contestants import ContestantError

QUIET_CORES = 0.1
"""On two cores, a tenth of a core of other work has been seen to move P99s by tens of ms."""
LATE_MS = 2.0
"""The server's timers are of a millisecond: more than two late means that the machine did not let it run."""

_START_LIMIT_S = 120.0
_END_LIMIT_S = 90.0
"""After the load: some tools take long over their reports."""
_POLL_S = 0.05


class _Watch:
    """Listens to the server, and takes what everyone has used at the first stream and whenever all have ended."""

    def __init__(self, server: subprocess.Popen[str]) -> None:
        assert server.stdout is not None
        self.pid: int | None = None
        """Of the client, as soon as it is known."""
        self.before: cpu.Usage | None = None
        self.after: cpu.Usage | None = None
        self.rss_start_bytes = self.rss_load_bytes = 0
        self._thread = threading.Thread(target=self._listen, args=(server.stdout,))
        self._thread.start()

    def join(self) -> None:
        """Until the server has written its log or is gone."""
        self._thread.join()

    def _listen(self, said: IO[str]) -> None:
        for text in said:
            word = text.strip()
            if word == "logged":
                return
            if word == "first":
                self.before = cpu.Usage.now(self.pid)
            elif word == "idle":
                self.after = cpu.Usage.now(self.pid)
                self.rss_load_bytes = cpu.peak_rss_bytes(self.pid) if self.pid else 0


class _Ran(NamedTuple):
    """A client that has ended: when, and what it and the children that it waited for took in all."""

    started_ns: int
    ended_ns: int
    cpu_s: float
    rss_peak_bytes: int
    """Of the largest of them."""


def measure(contestant: Contestant, level: Level, schedule: Path, *, repeat: int) -> Cell:
    """One cell. Raises ContestantError when the client failed or nothing of its load arrived."""
    with tempfile.TemporaryDirectory(prefix="weir-client-") as folder:
        file = Path(folder) / "log"
        with child("benchmarks.clients.server", str(file)) as server:
            port = int(line(server))
            task = Task(port=port, level=level, seed=7 + repeat, schedule=schedule, directory=Path(folder) / "client")
            task.directory.mkdir()
            watch = _Watch(server)
            try:
                ran = _run(contestant, task, watch)
            finally:
                assert server.stdin is not None
                server.stdin.close()
                watch.join()
        log = msgspec.json.decode(file.read_bytes(), type=Log)
        return _judged(contestant, task, repeat, log, _cost(watch, log, ran))


def _run(contestant: Contestant, task: Task, watch: _Watch) -> _Ran:
    """Runs the client to its end. Its memory is looked at until its load begins."""
    output = task.directory / "output.log"
    command = contestant.command(task)
    limit_s = _START_LIMIT_S + task.level.seconds + _END_LIMIT_S
    started_ns = time.monotonic_ns()
    process = contestants.start(command, log=output, environment=contestant.environment)
    watch.pid = process.pid
    try:
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            if time.monotonic_ns() - started_ns > limit_s * 1e9:
                raise ContestantError(f"{contestant.name} had not ended after {limit_s:.0f} s")
            if watch.before is None:
                watch.rss_start_bytes = max(watch.rss_start_bytes, cpu.rss_bytes(process.pid))
            time.sleep(_POLL_S)
        ended_ns = time.monotonic_ns()
        process.returncode = os.waitstatus_to_exitcode(ended[1])
    finally:
        contestants.stop(process)
    if process.returncode:
        end = "\n".join(output.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise ContestantError(f"{contestant.name} ended with status {process.returncode}:\n{end}")
    used = ended[2]
    return _Ran(started_ns, ended_ns, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def _judged(contestant: Contestant, task: Task, repeat: int, log: Log, cost: Cost) -> Cell:
    truth = score.truth(log)
    try:
        accuracy = score.accuracy(log, contestant.read(task, wall_less_monotonic_ns()))
    except (OSError, ValueError) as error:
        raise ContestantError(f"{contestant.name}: what it left could not be used: {error!r}") from error
    return Cell(
        repeat=repeat,
        level=task.level,
        client=contestant.name,
        accuracy=accuracy,
        truth=truth,
        cost=cost,
        disturbed=disturbed(truth, cost),
    )


def _cost(watch: _Watch, log: Log, ran: _Ran) -> Cost:
    before, after = watch.before, watch.after
    if before is None or after is None:
        raise ContestantError("nothing was sent")
    # One that ends right after its last chunk may be gone before it was looked at: then what it took until its end.
    until_s = ran.cpu_s if after.contestant is None else after.contestant / cpu.TICKS_PER_S
    window_s = (after.at_ns - before.at_ns) * 1e-9
    return Cost(
        cpu_s=None if before.contestant is None else until_s - before.contestant / cpu.TICKS_PER_S,
        chunks=sum(len(stream.written_ns) for stream in log.streams),
        window_s=window_s,
        rss_start_bytes=watch.rss_start_bytes,
        rss_load_bytes=watch.rss_load_bytes or ran.rss_peak_bytes,
        start_s=(log.streams[0].arrived_ns - ran.started_ns) * 1e-9,
        wall_s=(ran.ended_ns - ran.started_ns) * 1e-9,
        foreign_cores=max(0.0, after.foreign_s_since(before) / window_s),
    )


def disturbed(truth: Truth, cost: Cost) -> str | None:
    """Why the figures of a cell cannot be trusted; None when they can."""
    reasons = []
    if cost.foreign_cores > QUIET_CORES:
        reasons.append(f"other processes used {cost.foreign_cores:.2f} cores, at most {QUIET_CORES:g}")
    if truth.late_ms.p99 > LATE_MS:
        reasons.append(f"the server itself was {truth.late_ms.p99:.1f} ms late at P99, at most {LATE_MS:g}")
    return "; ".join(reasons) or None


def wall_less_monotonic_ns() -> int:
    """CLOCK_REALTIME less CLOCK_MONOTONIC, from the closest of some pairs of readings."""
    pairs = []
    for _ in range(20):
        before_ns, wall_ns, after_ns = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        pairs.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(pairs)[1]
