"""How exactly load generators send and measure, and what that costs: all of them side by side, in one command.

`python -m benchmarks.client` runs every client at every rate against a server that notes what really happened, each run
with a fresh server, repeats interleaved with the order rotated. A run that other work on the machine disturbed is
rejected and made again. It prints a table of medians, judges what weir promises, and keeps every cell as JSON;
`python -m benchmarks.client --page FILE` renders such a file into docs/measurement.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from benchmarks import results
from benchmarks.clients import cell, page
from benchmarks.clients.ours import LEAN, WEIR, Contestant
from benchmarks.clients.peers import PEERS
from benchmarks.clients.results import Cell, Level, Rejected, Report
from benchmarks.contestants import ContestantError, installed, tell

CONTESTANTS = {contestant.name: contestant for contestant in (WEIR, LEAN, *PEERS)}

LEVELS = (
    Level(rate_per_s=20, seconds=20),
    Level(rate_per_s=100, seconds=15),
    Level(rate_per_s=200, seconds=10),
)
QUICK = (Level(rate_per_s=20, seconds=2),)

PAGE = results.ROOT / "docs" / "measurement.md"


class Comparison:
    """What has been measured so far, and what could not be."""

    def __init__(self, *, tries: int, run: Callable[..., Cell] = cell.measure) -> None:
        self.cells: list[Cell] = []
        self.rejected: list[Rejected] = []
        self.unmeasured: list[str] = []
        self._tries = tries
        self._run = run

    def measure(self, contestant: Contestant, level: Level, schedule: Path, *, repeat: int) -> None:
        """Until a run of the cell is quiet or the tries are used up; of disturbed ones the quietest is kept."""
        kept: Cell | None = None
        for _ in range(self._tries):
            try:
                run = self._run(contestant, level, schedule, repeat=repeat)
            except ContestantError as error:
                self._reject(contestant, level, repeat, str(error))
                continue
            tell(page.progress(run))
            if kept is not None:
                self._reject(contestant, level, repeat, (kept if _quieter(run, kept) else run).disturbed or "")
            kept = run if kept is None or _quieter(run, kept) else kept
            if run.disturbed is None:
                break
        if kept is None:
            self.unmeasured.append(f"{contestant.name} at {level.rate_per_s:g}/s: {self.rejected[-1].reason}")
        else:
            self.cells.append(kept)

    def _reject(self, contestant: Contestant, level: Level, repeat: int, reason: str) -> None:
        tell(f"rejected: {contestant.name} at {level.rate_per_s:g}/s: {reason}")
        self.rejected.append(
            Rejected(repeat=repeat, rate_per_s=level.rate_per_s, client=contestant.name, reason=reason)
        )


def _quieter(run: Cell, than: Cell) -> bool:
    return (run.disturbed is not None, run.cost.foreign_cores) < (than.disturbed is not None, than.cost.foreign_cores)


def compare(names: Sequence[str], levels: Sequence[Level], *, repeats: int, tries: int) -> Comparison:
    """Every level × contestant × repeat. Each repeat has schedules of its own; the order rotates with it."""
    comparison = Comparison(tries=tries)
    with tempfile.TemporaryDirectory(prefix="weir-client-") as folder:
        for repeat in range(repeats):
            for level in levels:
                schedule = Path(folder) / f"{level.rate_per_s:g}-{repeat}.parquet"
                _plan(level, schedule, seed=repeat)
                turn = repeat % len(names)
                for name in [*names[turn:], *names[:turn]]:
                    comparison.measure(CONTESTANTS[name], level, schedule, repeat=repeat)
    return comparison


def _plan(level: Level, schedule: Path, *, seed: int) -> None:
    arrivals = ["--arrivals", f"poisson:rate={level.rate_per_s:g}", "--duration", f"{level.seconds:g}"]
    command = ["plan", "--lengths", "128:100", *arrivals, "--seed", str(seed), "-o", str(schedule)]
    subprocess.run([sys.executable, "-m", "weir", *command], cwd=results.ROOT, check=True, stdout=subprocess.DEVNULL)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__.partition("\n")[0])
    only = f"default: those of {', '.join(CONTESTANTS)} that are installed"
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, metavar="NAME", help=only)
    parser.add_argument("--rates", nargs="+", type=float, metavar="R", help="requests per second (20 100 200)")
    parser.add_argument("--seconds", type=float, metavar="S", help="of every rate (20 s at 20/s, 15 at 100, 10 at 200)")
    parser.add_argument("--repeats", type=int, metavar="N", help="3 or more for figures to quote (default: 3)")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="runs of a disturbed cell (default: 3)")
    parser.add_argument("--quick", action="store_true", help="2 s at 20/s, once: shows that all works")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: benchmarks/results/; none for --quick")
    parser.add_argument("--page", type=Path, metavar="FILE", help="render FILE into docs/measurement.md")
    return parser


def _parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[Level]]:
    parser = _arguments()
    options = parser.parse_args(arguments)
    if options.repeats is None:
        options.repeats = 1 if options.quick else 3
    if min(options.repeats, options.tries) < 1:
        parser.error("--repeats and --tries must be at least 1")
    if any(value <= 0 for value in (options.rates or []) + [options.seconds or 1]):
        parser.error("--rates and --seconds must be more than 0")
    known = {level.rate_per_s: level.seconds for level in LEVELS}
    levels = QUICK if options.quick else LEVELS
    rates = options.rates or [level.rate_per_s for level in levels]
    spans = known | {level.rate_per_s: level.seconds for level in levels}
    return options, [Level(rate_per_s=rate, seconds=options.seconds or spans.get(rate, 10.0)) for rate in rates]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0 all measured and every promise kept, 1 not so, 2 a client that was asked for is not installed."""
    options, levels = _parse(arguments)
    if options.page:
        report = msgspec.json.decode(options.page.read_bytes(), type=Report)
        PAGE.write_text(page.render_into(PAGE.read_text(encoding="utf-8"), report, options.page.name), encoding="utf-8")
        return 0
    started = datetime.now(UTC)
    commit = results.describe_commit()
    try:
        versions, missing = installed(CONTESTANTS, options.only)
    except ContestantError as error:
        tell(str(error))
        return 2
    done = compare(list(versions), levels, repeats=options.repeats, tries=options.tries)
    report = Report(
        date=started.isoformat(timespec="seconds"),
        command=["python", "-m", "benchmarks.client", *arguments],
        commit=commit,
        machine=results.describe_machine(),
        versions=versions,
        levels=levels,
        cells=done.cells,
        rejected=done.rejected,
        musts=page.judge(done.cells, levels),
        missing=missing,
        unmeasured=done.unmeasured,
    )
    output = options.output
    if output is None and not options.quick:
        output = results.ROOT / "benchmarks" / "results" / f"client-{started:%Y%m%dT%H%MZ}.json"
    if output:
        results.save(report, output)
        tell(f"kept in {output}")
    print(page.table(report))
    return 0 if not report.unmeasured and all(must.passed for must in report.musts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
