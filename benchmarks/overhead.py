"""What each proxy costs and how much later it makes a stream: all contestants side by side, in one command.

`python -m benchmarks.overhead` runs every scenario against every contestant, each window with a freshly started
contestant, repeats interleaved with the order rotated, so that slow drift of the machine falls on all alike. It
prints tables of medians and keeps every window as JSON. Figures of different reports are not comparable; ratios are.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import contestants, cpu, results, table
from benchmarks.results import LoadResult, Report, Scenario, Window

# Counts give a contestant as cheap as nginx at least 100 ticks of CPU time: an error below 2 % from the tick.
FULL = (
    Scenario(name="S1", connections=32, requests=60_000, limit_s=10),
    Scenario(name="S2/64", connections=64, requests=768, limit_s=20, chunks=100, ttft_ms=20, gap_ms=10),
    Scenario(name="S2/256", connections=256, requests=1024, limit_s=15, chunks=100, ttft_ms=20, gap_ms=10),
    Scenario(name="S3", connections=16, requests=320, limit_s=10, chunks=1000),
)
QUICK = (
    Scenario(name="S1", connections=8, requests=1600, limit_s=1),
    Scenario(name="S2/64", connections=64, requests=128, limit_s=1, chunks=20, ttft_ms=20, gap_ms=10),
    Scenario(name="S3", connections=4, requests=16, limit_s=1, chunks=500),
)

_TICK_ERROR = 2
"""User and system time are each rounded down to a tick, so their growth between two reads can be off by one each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Usage:
    """Ticks used so far: by the contestant (None: none or gone), by all of this comparison, by the whole host."""

    contestant: int | None
    ours: int
    host: int

    @classmethod
    def now(cls, pid: int | None) -> _Usage:
        return cls(
            contestant=cpu.tree_ticks(pid) or None if pid else None,
            ours=cpu.tree_ticks(os.getpid()),
            host=cpu.host_ticks(),
        )


@contextmanager
def _child(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of ours that talks in lines; ended at the end of the block."""
    command = [*contestants.DIES_WITH_PARENT, sys.executable, "-m", module, *arguments]
    with subprocess.Popen(
        command, cwd=results.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise contestants.ContestantError(f"{process.args!r} ended early")
    return line.strip()


def _measure(repeat: int, scenario: Scenario, contestant: contestants.Contestant, engine_port: int) -> Window:
    description = msgspec.json.encode(scenario).decode()
    with (
        contestants.running(contestant, engine_port) as target,
        _child("benchmarks.load", str(target.port), description) as load,
    ):
        _line(load)
        if target.pid:
            cpu.reset_peak_rss(target.pid)
        before = _Usage.now(target.pid)
        assert load.stdin is not None
        load.stdin.write("go\n")
        load.stdin.flush()
        _line(load)
        after = _Usage.now(target.pid)
        rss_peak_bytes = cpu.peak_rss_bytes(target.pid) or None if target.pid else None
        result = msgspec.json.decode(_line(load), type=LoadResult)
    ticks = None if before.contestant is None or after.contestant is None else after.contestant - before.contestant
    foreign_ticks = (after.host - before.host) - (after.ours - before.ours)
    return Window(
        repeat=repeat,
        scenario=scenario.name,
        contestant=contestant.name,
        load=result,
        cpu_s=None if ticks is None else ticks / cpu.TICKS_PER_S,
        cpu_resolution=None if not ticks else _TICK_ERROR / ticks,
        rss_peak_bytes=rss_peak_bytes,
        foreign_cores=max(0.0, foreign_ticks / cpu.TICKS_PER_S / result.duration_s),
    )


def compare(names: list[str], scenarios: tuple[Scenario, ...], repeats: int) -> tuple[list[Window], list[str]]:
    """Every scenario × contestant × repeat, and what could not be measured; the order rotates with every repeat."""
    windows: list[Window] = []
    unmeasured: list[str] = []
    with _child("benchmarks.engine") as engine:
        engine_port = int(_line(engine))
        for repeat in range(repeats):
            turn = repeat % len(names)
            for scenario, name in itertools.product(scenarios, names[turn:] + names[:turn]):
                try:
                    window = _measure(repeat, scenario, contestants.CONTESTANTS[name], engine_port)
                except contestants.ContestantError as error:
                    unmeasured.append(f"{scenario.name} {name} repeat {repeat + 1}: {error}")
                    print(unmeasured[-1], file=sys.stderr, flush=True)
                else:
                    windows.append(window)
                    print(table.progress(window), file=sys.stderr, flush=True)
    return windows, unmeasured


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    known = list(contestants.CONTESTANTS)
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="NAME", help=", ".join(known))
    parser.add_argument("--repeats", type=int, metavar="N", help="3 or more for figures to quote (default: 3)")
    parser.add_argument("--quick", action="store_true", help="small counts, one repeat: shows that all works")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: benchmarks/results/; none for --quick")
    options = parser.parse_args(arguments)
    if options.repeats is not None and options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def main(arguments: list[str]) -> int:
    """Exit status: 0 all measured, 1 some windows missing, 2 nothing measured since a contestant is not installed."""
    options = _parse(arguments)
    started = datetime.now(UTC)
    commit, sources_sha256 = results.describe_commit(), results.digest_sources()
    scenarios = QUICK if options.quick else FULL
    names = list(dict.fromkeys(options.only))
    try:
        versions = {name: contestants.version_of(contestants.CONTESTANTS[name]) for name in names}
        windows, unmeasured = compare(names, scenarios, options.repeats or (1 if options.quick else 3))
    except contestants.ContestantError as error:
        print(error, file=sys.stderr)
        return 2
    report = Report(
        date=started.isoformat(timespec="seconds"),
        command=["python", "-m", "benchmarks.overhead", *arguments],
        commit=commit,
        sources_sha256=sources_sha256,
        sources_changed=results.digest_sources() != sources_sha256,
        machine=results.describe_machine(),
        versions=versions,
        scenarios=list(scenarios),
        windows=windows,
        unmeasured=unmeasured,
    )
    print(table.render(report))
    output = options.output
    if output is None and not options.quick:
        output = results.ROOT / "benchmarks" / "results" / f"overhead-{started:%Y%m%dT%H%MZ}.json"
    if output:
        results.save(report, output)
        print(f"\nkept in {output}")
    return 1 if unmeasured else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
