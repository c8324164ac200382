"""How well the client itself was while it measured: how late its event loop came, and what held it up.

A timer asks a hundred times a second how late it is called. Being late by more than 5 ms is a stall: in that time no
read had its stamp, so every request that was under way is marked with it. Nothing is measured per request or per read.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from protocol.records import ClientHealth
from timing.alarm import Alarm

_EVERY_NS = 10_000_000
_BUCKET_NS = 10_000
STALL_NS = 5_000_000
"""Longest that a load generator may be away from its event loop (bench-methods §F.3: client lag P99 below 5 ms)."""
_STALLS_KEPT = 1000

_SCHEDSTAT = Path("/proc/thread-self/schedstat")


class HealthWatch:
    """Watches from `async with` on until its end; `health` then says how it was."""

    def __init__(self) -> None:
        self.stalls: list[tuple[int, int]] = []
        """Begin and end of each, on the monotonic clock, in order; the first 1,000."""
        self._lag_buckets: Counter[int] = Counter()
        self._lag_max_ns = 0
        self._stall_count = 0
        self._stalled_ns = 0
        self._gc_started_ns = 0
        self._gc_pauses = 0
        self._gc_total_ns = 0
        self._gc_max_ns = 0

    async def __aenter__(self) -> HealthWatch:
        self._started_ns = time.monotonic_ns()
        self._cpu_s = time.process_time()
        self._run_delay_ns = _run_delay_ns()
        self._host_busy_s = _host_busy_s()
        gc.callbacks.append(self._on_gc)
        self._ticking = asyncio.create_task(self._tick())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticking.cancel()
        await asyncio.wait([self._ticking])
        gc.callbacks.remove(self._on_gc)

    async def _tick(self) -> None:
        alarm = Alarm()
        try:
            while True:
                due_ns = time.monotonic_ns() + _EVERY_NS
                await alarm.until(due_ns)
                self.note_lag(due_ns, time.monotonic_ns())
        finally:
            alarm.close()

    def note_lag(self, due_ns: int, now_ns: int) -> None:
        """The loop came at `now_ns` to what was due at `due_ns`."""
        lag_ns = max(0, now_ns - due_ns)
        self._lag_buckets[lag_ns // _BUCKET_NS] += 1
        self._lag_max_ns = max(self._lag_max_ns, lag_ns)
        if lag_ns > STALL_NS:
            self._stall_count += 1
            self._stalled_ns += lag_ns
            if len(self.stalls) < _STALLS_KEPT:
                self.stalls.append((due_ns, now_ns))

    def stall_within(self, begin_ns: int, end_ns: int) -> int:
        """The longest stall that fell into this time, whole; 0 when there was none."""
        return max((end - begin for begin, end in self.stalls if begin < end_ns and end > begin_ns), default=0)

    def health(self) -> ClientHealth:
        """Since the beginning; to be asked once, at the end."""
        wall_s = (time.monotonic_ns() - self._started_ns) / 1e9
        cpu_s = time.process_time() - self._cpu_s
        host_s = _host_busy_s() - self._host_busy_s
        return ClientHealth(
            wall_s=round(wall_s, 3),
            cpu_s=round(cpu_s, 3),
            run_delay_s=round((_run_delay_ns() - self._run_delay_ns) / 1e9, 3),
            other_cpu_s=round(max(0.0, host_s - cpu_s), 3),
            loop_lag_p99_ns=self._lag_quantile(0.99),
            loop_lag_max_ns=self._lag_max_ns,
            stalls=self._stall_count,
            stalled_s=round(self._stalled_ns / 1e9, 3),
            gc_pauses=self._gc_pauses,
            gc_total_ns=self._gc_total_ns,
            gc_max_ns=self._gc_max_ns,
            # Linux counts in KiB.
            peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def _lag_quantile(self, share: float) -> int:
        """Upper edge of the bucket that the nearest rank is in."""
        rank = share * self._lag_buckets.total()
        seen = 0
        for bucket in sorted(self._lag_buckets):
            seen += self._lag_buckets[bucket]
            if seen >= rank:
                return (bucket + 1) * _BUCKET_NS
        return 0

    def _on_gc(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_started_ns = time.monotonic_ns()
            return
        pause_ns = time.monotonic_ns() - self._gc_started_ns
        self._gc_pauses += 1
        self._gc_total_ns += pause_ns
        self._gc_max_ns = max(self._gc_max_ns, pause_ns)


def _run_delay_ns() -> int:
    """How long this thread could have run and had to wait for a CPU (Documentation/scheduler/sched-stats)."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1])
    except (OSError, IndexError):
        return 0


def _host_busy_s() -> float:
    """CPU time that the whole machine has spent on anything, guests and interrupts included."""
    try:
        fields = Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def punctually() -> Iterator[str]:
    """Runs this process before ordinary ones where that is allowed (root, CAP_SYS_NICE), and says how it runs.

    What is read late is stamped late, and a client that is woken after whatever else has had its turn reads late. It is
    the lowest of the real-time priorities.
    """
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        yield "ordinary"
        return
    try:
        yield "real-time"
    finally:
        os.sched_setscheduler(0, policy, parameters)
