"""The verb `weir knee`: what each arm of a plan carries, from its runs at several loads.

Reads runs as `weir compare` does, refuses INVALID ones but for those that never came to rest: beyond its knee no system
does, and finding that out is the purpose. Changes no file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from loadgen.analyze.capacity import Capacity, Level, RunLoad, Slo, capacity, parse_slo, run_load
from loadgen.analyze.validity import Evidence, judge
from loadgen.plan.experiment import PLAN, Plan, read_plan
from loadgen.report.command import broken_seal
from loadgen.report.evidence import read_evidence
from loadgen.report.numbers import MISSING, number, percent
from loadgen.report.tables import Cell, Section, Table
from loadgen.report.terminal import table_text, wrapped

REFUSED = 2
OVERLOAD = {"not_steady"}
"""Errors of a run that are what overload looks like, and no fault of the measurement."""


def add_knee_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `weir knee`."""
    parser.epilog = "Exit status: 0 with a result, whatever it is; 2 wrong input or INVALID runs."
    parser.add_argument("plan", type=Path, metavar="PLAN", help="a plan with several levels, run")
    parser.add_argument("--arm", metavar="NAME", help="only this arm (each of them)")
    parser.add_argument(
        "--slo",
        type=_slo,
        action="append",
        default=[],
        metavar="METRIC_pQ=TIME",
        help="a promise, as ttft_p99=500ms or tpot_p95=50ms: of all scheduled requests; once for each",
    )
    parser.add_argument("--invalid", action="store_true", help="take INVALID runs, too")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")


def _slo(text: str) -> Slo:
    try:
        return parse_slo(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


class Capacities(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints: one for each arm."""

    capacities: list[Capacity]


def knee(arguments: argparse.Namespace) -> int:
    """Runs the verb. Exit 0 with a result, 2 with one line on stderr without one."""
    try:
        found = Capacities(capacities=_capacities(arguments))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"weir knee: {error}\n")
        return REFUSED
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
    else:
        sys.stdout.write("\n".join(map(capacity_text, found.capacities)))
    return 0


def _capacities(arguments: argparse.Namespace) -> list[Capacity]:
    if not (arguments.plan / PLAN).exists():
        raise ValueError(
            f"{arguments.plan} is no plan (no {PLAN} in it): make one with several --levels by `weir plan`"
        )
    plan = read_plan(arguments.plan)
    arms = [arm.name for arm in plan.file.experiment.arms]
    if arguments.arm is not None and arguments.arm not in arms:
        raise ValueError(f"--arm {arguments.arm}: the plan has {', '.join(arms)}")
    wanted = arms if arguments.arm is None else [arguments.arm]
    return [_of_arm(plan, arm, arguments.slo, invalid=arguments.invalid) for arm in wanted]


def _of_arm(plan: Plan, arm: str, slos: Sequence[Slo], *, invalid: bool) -> Capacity:
    runs: dict[str, list[RunLoad]] = {}
    unfinished = {cell.id for cell in plan.remaining()}
    for cell in plan.cells():
        if cell.arm.name == arm and cell.id not in unfinished:
            evidence = _read(plan.run_directory(cell), invalid=invalid)
            runs.setdefault(cell.level.name, []).append(run_load(evidence, slos))
    if not runs:
        raise ValueError(f"{plan.directory}: no cell of arm {arm} has been run: run the plan first")
    closed = plan.file.experiment.levels[0].concurrency is not None
    return capacity(arm, runs, slos, closed_loop=closed)


def _read(run: Path, *, invalid: bool) -> Evidence:
    evidence = read_evidence(run, broken_seal(run))
    errors = [reason.kind for reason in judge(evidence).reasons if reason.severity == "error"]
    if not invalid and (wrong := [kind for kind in errors if kind not in OVERLOAD]):
        raise ValueError(f"{run.name} is INVALID ({', '.join(wrong)}): run it again, or take it with --invalid")
    return evidence


def capacity_text(found: Capacity) -> str:
    """One arm as text, ending in a newline."""
    lines = [_knee_line(found), _drain_line(found), *_slo_lines(found), _law_line(found)]
    return "\n\n".join((table_text(_levels_table(found)), "\n".join(map(wrapped, lines)))) + "\n"


def _levels_table(found: Capacity) -> Table:
    return Table(
        title=f"Arm {found.arm}, load by load",
        head=["", "runs", "offered/s", "served/s", "in flight", "drains", "good/s", *(slo.slo for slo in found.slos)],
        sections=[Section(rows=[_level_row(level) for level in found.levels])],
        note="Means over runs. served: completions/s. drains: runs in whose second half requests in flight no longer "
        "rose. good: requests/s that succeeded and kept every SLO. Under an SLO, the share of scheduled requests that "
        "kept it; failed ones did not.",
    )


def _level_row(level: Level) -> list[Cell]:
    return [
        Cell(level.name),
        Cell(f"{level.runs:,}"),
        Cell(number(level.offered)),
        Cell(number(level.served)),
        Cell(number(level.in_flight)),
        Cell(f"{level.runs - level.growing} of {level.runs}"),
        Cell(number(level.goodput)),
        *(Cell(percent(share) + ("" if level.passes[slo] else " ✗")) for slo, share in level.kept.items()),
    ]


def _knee_line(found: Capacity) -> str:
    knee = found.knee
    if knee is None:
        return f"Knee: {found.no_knee}."
    low = "below " if knee.open_low else ""
    high = " or above" if knee.open_high else ""
    return (
        f"Knee: {number(knee.load)} requests/s (95 %: {low}{number(knee.low)} – {number(knee.high)}{high}); beyond it "
        f"throughput gains {max(knee.slope_after, 0.0):.0%} of what is asked for on top."
    )


def _drain_line(found: Capacity) -> str:
    if found.drains_to is None:
        return "Drain: the queue grew at every load."
    if found.drains_to == found.levels[-1].offered:
        return f"Drain: the queue drained at every load, up to {number(found.drains_to)} requests/s."
    return f"Drain: the queue drained up to {number(found.drains_to)} requests/s, and grew at the next load."


def _slo_lines(found: Capacity) -> list[str]:
    few = any(level.kept_low[slo.slo] is None for level in found.levels for slo in found.slos)
    how = (
        "by the runs as they are: fewer than five a level, so without an interval" if few else "by the lower 95 % bound"
    )
    return [
        f"Capacity under {slo.slo}: "
        + (f"{number(slo.holds_at)} requests/s" if slo.holds_at is not None else "none of these loads")
        + (f", broken at {number(slo.breaks_at)}" if slo.breaks_at is not None else ", never broken here")
        + f" ({how})."
        for slo in found.slos
    ]


def _law_line(found: Capacity) -> str:
    law = found.scalability
    if law is None:
        return f"Scalability law: {found.no_scalability}."
    peak = MISSING if law.peak_in_flight is None else f"{number(law.peak_in_flight)} in flight"
    return (
        f"Scalability law, for diagnosis: {number(law.rate)} requests/s alone, contention {law.contention:.4f}, "
        f"coherency {law.coherency:.2e}, R² {law.r_squared:.3f}; highest throughput at {peak}."
    )
