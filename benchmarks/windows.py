"""Runs one window: starts a contestant, puts a scenario to it, and accounts for the CPU time and memory it took.

Knows the life of the processes that take part and nothing of tables. Times of CPU are the kernel's, of whole trees.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import msgspec

from benchmarks import cpu, idle, stalled
from benchmarks.children import child, line
from benchmarks.contestants import CONTESTANTS, ContestantError, Running, running
from benchmarks.results import IdleScenario, LoadResult, LoadScenario, Result, Scenario, StalledScenario, Window

_TICK_ERROR = 2
"""User and system time are each rounded down to a tick, so their growth between two reads can be off by one each."""


class Cell(NamedTuple):
    """Which window. `contestant` is its name."""

    repeat: int
    scenario: Scenario
    contestant: str

    def __str__(self) -> str:
        return f"{self.scenario.name} {self.contestant} repeat {self.repeat + 1}"


class _Meter:
    """What a contestant and the rest of the host use from now until `stop`."""

    def __init__(self, target: Running) -> None:
        self._pid = target.pid
        self._rss_peak_bytes: int | None = None
        if target.pid:
            cpu.reset_peak_rss(target.pid)
        self._before = self._after = cpu.Usage.now(target.pid)

    def stop(self) -> None:
        self._after = cpu.Usage.now(self._pid)
        self._rss_peak_bytes = cpu.peak_rss_bytes(self._pid) or None if self._pid else None

    def window(self, cell: Cell, result: Result) -> Window:
        before, after = self._before, self._after
        ticks = None if before.contestant is None or after.contestant is None else after.contestant - before.contestant
        foreign_s = after.foreign_s_since(before)
        return Window(
            repeat=cell.repeat,
            scenario=cell.scenario.name,
            contestant=cell.contestant,
            result=result,
            cpu_s=None if ticks is None else ticks / cpu.TICKS_PER_S,
            cpu_resolution=None if not ticks else _TICK_ERROR / ticks,
            rss_peak_bytes=self._rss_peak_bytes,
            foreign_cores=max(0.0, foreign_s / ((after.at_ns - before.at_ns) * 1e-9)),
        )


@contextmanager
def engine() -> Iterator[int]:
    """The port of an engine that serves until the end of the block."""
    with child("benchmarks.engine") as process:
        yield int(line(process))


def measure(cell: Cell, engine_port: int) -> Window:
    """One contestant alone under load or holding idle streams. Raises ContestantError when there is no result."""
    assert not isinstance(cell.scenario, StalledScenario)
    with running(CONTESTANTS[cell.contestant], engine_port) as target:
        if isinstance(cell.scenario, IdleScenario):
            meter = _Meter(target)
            held = idle.hold(target, cell.scenario)
            meter.stop()
            return meter.window(cell, held)
        return _measure_load(cell, cell.scenario, target)


def _measure_load(cell: Cell, scenario: LoadScenario, target: Running) -> Window:
    with child("benchmarks.load", str(target.port), msgspec.json.encode(scenario).decode()) as load:
        line(load)
        meter = _Meter(target)
        assert load.stdin is not None
        load.stdin.write("go\n")
        load.stdin.flush()
        line(load)
        meter.stop()
        return meter.window(cell, msgspec.json.decode(line(load), type=LoadResult))


def stall_together(repeat: int, scenario: StalledScenario, names: list[str]) -> tuple[list[Window], list[str]]:
    """Every contestant at the same time, with an engine each: whoever holds back costs the others nothing.

    Windows, and a line for each contestant that has none. Those that do not hold back share what is left of the
    machine, so the bytes they take are a lower bound.
    """
    started: list[tuple[Cell, Running, int]] = []
    stalls: list[tuple[Cell, _Meter, stalled.Stall]] = []
    unmeasured: list[str] = []
    with ExitStack() as stack:
        for name in names:
            cell = Cell(repeat, scenario, name)
            try:
                port = stack.enter_context(engine())
                started.append((cell, stack.enter_context(running(CONTESTANTS[name], port)), port))
            except ContestantError as error:
                unmeasured.append(f"{cell}: {error}")
        for cell, target, port in started:
            try:
                stalls.append(
                    (cell, _Meter(target), stack.enter_context(stalled.stalling(target, port, scenario.clients)))
                )
            except ContestantError as error:
                unmeasured.append(f"{cell}: {error}")
        stalled.wait_out([stall for _, _, stall in stalls], scenario)
        for _, meter, _ in stalls:
            meter.stop()
        return [meter.window(cell, stall.end()) for cell, meter, stall in stalls], unmeasured
