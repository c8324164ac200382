"""What each proxy costs and how much later it makes a stream: all contestants side by side, in one command.

`python -m benchmarks.overhead` runs every scenario against every contestant, each window with a freshly started
contestant, repeats interleaved with the order rotated, so that slow drift of the machine falls on all alike. It
prints one table of medians and keeps every window as JSON. Figures of different reports are not comparable; ratios are.
"""

from __future__ import annotations

import argparse
import resource
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import contestants, results, table, windows
from benchmarks.contestants import ContestantError, tell
from benchmarks.results import IdleScenario, LoadScenario, Report, Scenario, StalledScenario, Window
from benchmarks.wire import Shape

_MIB = 1 << 20
_PACED = Shape(ttft_ms=20, gap_ms=10, chunks=100)

# Counts give a contestant as cheap as nginx some 60 ticks of CPU time or more: an error of a few percent at most.
FULL: tuple[Scenario, ...] = (
    LoadScenario(name="S1", connections=32, requests=50_000, limit_s=5),
    LoadScenario(name="S2/64", connections=64, requests=384, limit_s=8, shape=_PACED),
    LoadScenario(name="S2/256", connections=256, requests=768, limit_s=6, shape=_PACED),
    LoadScenario(name="S3", connections=16, requests=320, limit_s=5, shape=Shape(chunks=1000)),
    LoadScenario(name="prompt", connections=1, requests=60, limit_s=2, prompt_bytes=4 * _MIB),
    LoadScenario(name="line", connections=1, requests=150, limit_s=2, shape=Shape(chunks=1, pad_bytes=_MIB)),
    IdleScenario(name="idle", streams=5000, limit_s=10, settle_s=1),
    StalledScenario(name="stalled", clients=8, seconds=60),
)
QUICK: tuple[Scenario, ...] = (
    LoadScenario(name="S1", connections=8, requests=1600, limit_s=1),
    LoadScenario(name="S2/64", connections=64, requests=128, limit_s=1, shape=Shape(ttft_ms=20, gap_ms=10, chunks=20)),
    LoadScenario(name="S3", connections=4, requests=16, limit_s=1, shape=Shape(chunks=500)),
    LoadScenario(name="prompt", connections=1, requests=5, limit_s=1, prompt_bytes=4 * _MIB),
    LoadScenario(name="line", connections=1, requests=5, limit_s=1, shape=Shape(chunks=1, pad_bytes=_MIB)),
    IdleScenario(name="idle", streams=200, limit_s=5, settle_s=0.2),
    StalledScenario(name="stalled", clients=2, seconds=2),
)
NAMES = tuple(scenario.name for scenario in FULL)


def compare(names: list[str], scenarios: list[Scenario], repeats: int) -> tuple[list[Window], list[str]]:
    """Every scenario × contestant × repeat, and what could not be measured; the order rotates with every repeat.

    A stall is sat out only once: it asks a question of yes or no, and takes a minute.
    """
    measured: list[Window] = []
    unmeasured: list[str] = []
    with windows.engine() as engine_port:
        for repeat in range(repeats):
            turn = repeat % len(names)
            for scenario in scenarios:
                if repeat and isinstance(scenario, StalledScenario):
                    continue
                done, missing = _round(repeat, scenario, names[turn:] + names[:turn], engine_port)
                measured += done
                unmeasured += missing
    return measured, unmeasured


def _round(repeat: int, scenario: Scenario, names: list[str], engine_port: int) -> tuple[list[Window], list[str]]:
    """One scenario for all contestants, and a line of progress for each."""
    if isinstance(scenario, StalledScenario):
        measured, unmeasured = windows.stall_together(repeat, scenario, names)
        for line in [*map(table.progress, measured), *unmeasured]:
            tell(line)
        return measured, unmeasured
    measured, unmeasured = [], []
    for name in names:
        cell = windows.Cell(repeat, scenario, name)
        try:
            measured.append(windows.measure(cell, engine_port))
            tell(table.progress(measured[-1]))
        except ContestantError as error:
            unmeasured.append(f"{cell}: {error}")
            tell(unmeasured[-1])
    return measured, unmeasured


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.partition("\n")[0])
    known = list(contestants.CONTESTANTS)
    only = f"default: those of {', '.join(known)} that are installed"
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=only)
    parser.add_argument("--scenarios", nargs="+", choices=NAMES, default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--repeats", type=int, metavar="N", help="3 or more for figures to quote (default: 3)")
    parser.add_argument("--stalled-seconds", type=float, metavar="S", help="how long the client stalls (default: 60)")
    parser.add_argument("--ranges", action="store_true", help="print smallest and largest beside each median")
    parser.add_argument("--quick", action="store_true", help="small counts, one repeat: shows that all works")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: benchmarks/results/; none for --quick")
    return parser


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    chosen: list[Scenario] = [
        scenario for scenario in (QUICK if options.quick else FULL) if scenario.name in options.scenarios
    ]
    if options.stalled_seconds is None:
        return chosen
    return [
        msgspec.structs.replace(scenario, seconds=options.stalled_seconds)
        if isinstance(scenario, StalledScenario)
        else scenario
        for scenario in chosen
    ]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = _arguments()
    options = parser.parse_args(arguments)
    options.repeats = options.repeats if options.repeats is not None else 1 if options.quick else 3
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if options.stalled_seconds is not None and options.stalled_seconds <= 0:
        parser.error("--stalled-seconds must be more than 0")
    options.scenarios = _scenarios(options)
    if not options.scenarios:
        parser.error("--quick has none of these scenarios")
    return options


def main(arguments: list[str]) -> int:
    """Exit status: 0 all measured, 1 some windows missing, 2 nothing measured since a contestant is not installed."""
    options = _parse(arguments)
    started = datetime.now(UTC)
    commit, sources_sha256 = results.describe_commit(), results.digest_sources()
    _allow_many_files()
    try:
        versions, missing = contestants.installed(contestants.CONTESTANTS, options.only)
        measured, unmeasured = compare(list(versions), options.scenarios, options.repeats)
    except ContestantError as error:
        tell(str(error))
        return 2
    report = Report(
        date=started.isoformat(timespec="seconds"),
        command=["python", "-m", "benchmarks.overhead", *arguments],
        commit=commit,
        sources_sha256=sources_sha256,
        sources_changed=results.digest_sources() != sources_sha256,
        machine=results.describe_machine(),
        versions=versions,
        scenarios=options.scenarios,
        windows=measured,
        missing=missing,
        unmeasured=unmeasured,
    )
    output = options.output
    if output is None and not options.quick:
        output = results.ROOT / "benchmarks" / "results" / f"overhead-{started:%Y%m%dT%H%MZ}.json"
    if output:
        results.save(report, output)
        tell(f"kept in {output}")
    print(table.render(report, ranges=options.ranges))
    return 1 if unmeasured else 0


def _allow_many_files() -> None:
    """Idle streams are files, one in this process and two in a proxy; contestants inherit the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
