"""The verb `weir compare`: finds the runs of both sides, reads them, and prints what they say of each other.

Hides how runs are found: a run directory, a folder of them, or the arms of a plan. Changes no file.
"""

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np

from loadgen import record
from loadgen.analyze.claims import Margins
from loadgen.analyze.compare import Comparison, Question, compare
from loadgen.analyze.run_figures import BY_NAME, METRICS, RunFigures, run_figures
from loadgen.plan.experiment import PLAN, Cell, Plan, read_plan
from loadgen.report.command import broken_seal
from loadgen.report.comparison import comparison_text
from loadgen.report.evidence import read_evidence

SAME, DIFFERENT, REFUSED, NO_CLAIM = 0, 1, 2, 3
"""Exit status: no difference shown, one shown, bad input or INVALID runs, too few runs for any claim."""
_SEED = 20_261_201
"""Of resamples and of permutations too many to count: the same runs give the same figures."""


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `weir compare`."""
    parser.epilog = (
        "Exit status: 0 no difference was shown, 1 a metric differs, 2 wrong input or INVALID runs, 3 too few runs for "
        "any claim."
    )
    parser.add_argument(
        "directories", type=Path, nargs="+", metavar="DIR", help="A and B, each a run or a folder of runs; or one plan"
    )
    parser.add_argument("--arms", nargs=2, metavar=("A", "B"), help="of the plan (its two)")
    parser.add_argument("--level", metavar="NAME", help="only this level of the plan (each of them)")
    parser.add_argument(
        "--metric",
        action="append",
        choices=list(BY_NAME),
        metavar="NAME",
        help=f"compare by this one, once for each; fewer need fewer runs ({', '.join(BY_NAME)})",
    )
    parser.add_argument(
        "--margin", type=_share, default=0.05, metavar="SHARE", help="ratios within it count as equal (5%%)"
    )
    parser.add_argument(
        "--error-margin", type=_share, default=0.005, metavar="SHARE", help="the same for the error rate (0.5%%)"
    )
    parser.add_argument("--invalid", action="store_true", help="compare INVALID runs, too, and name them")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1: write 5% or 0.05")
    return value


class Comparisons(msgspec.Struct, frozen=True, kw_only=True):
    """What `--json` prints: one comparison, or one for each level of a plan."""

    comparisons: list[Comparison]


def compare_runs(arguments: argparse.Namespace) -> int:
    """Runs the verb; its exit status is one of `SAME`, `DIFFERENT`, `REFUSED`, `NO_CLAIM`."""
    try:
        found = Comparisons(comparisons=_comparisons(arguments))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"weir compare: {error}\n")
        return REFUSED
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n")
    else:
        sys.stdout.write("\n".join(map(comparison_text, found.comparisons)))
    return _status(found.comparisons)


def _status(comparisons: Iterable[Comparison]) -> int:
    verdicts = {row.verdict for comparison in comparisons for row in comparison.rows}
    if verdicts & {"better", "worse"}:
        return DIFFERENT
    return NO_CLAIM if verdicts <= {"no claim"} else SAME


def _comparisons(arguments: argparse.Namespace) -> list[Comparison]:
    directories = arguments.directories
    if len(directories) == 1:
        return _of_plan(arguments, directories[0])
    if len(directories) > 2:
        raise ValueError(f"{len(directories)} directories: give A and B, or one plan; several runs go into a folder")
    for name in ("arms", "level"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"--{name} belongs to a plan: give its directory alone")
    a, b = directories
    return [_compared(arguments, str(a), str(b), (_runs_in(a), _runs_in(b)), level=None)]


def _runs_in(directory: Path) -> list[Path]:
    """The run, or the runs in the folder, in the order of their names."""
    if (directory / record.SCHEDULE).exists():
        return [directory]
    if (directory / PLAN).exists():
        raise ValueError(f"{directory} is a plan: compare its arms with `weir compare {directory}`")
    if not directory.is_dir():
        raise ValueError(f"{directory} is no directory: give a run, or a folder of runs")
    runs = sorted(path.parent for path in directory.glob(f"*/{record.SCHEDULE}"))
    if not runs:
        raise ValueError(f"{directory} holds no run: expected {record.SCHEDULE} in it, or in the folders in it")
    return runs


def _of_plan(arguments: argparse.Namespace, directory: Path) -> list[Comparison]:
    if not (directory / PLAN).exists():
        raise ValueError(f"{directory} is no plan (no {PLAN} in it): give A and B, or a plan")
    plan = read_plan(directory)
    a, b = _arms(plan, arguments.arms)
    levels = [level.name for level in plan.file.experiment.levels]
    if arguments.level is not None and arguments.level not in levels:
        raise ValueError(f"--level {arguments.level}: the plan has {', '.join(levels)}")
    wanted = levels if arguments.level is None else [arguments.level]
    return [_compared(arguments, a, b, _pairs(plan, level, (a, b)), level=level) for level in wanted]


def _arms(plan: Plan, given: Sequence[str] | None) -> tuple[str, str]:
    names = [arm.name for arm in plan.file.experiment.arms]
    if given is None and len(names) != 2:
        raise ValueError(f"{plan.directory} has {len(names)} arms, {', '.join(names)}: say which two with --arms A B")
    a, b = given or names
    unknown = [name for name in (a, b) if name not in names]
    if unknown or a == b:
        raise ValueError(f"--arms {a} {b}: give two of {', '.join(names)}")
    return a, b


def _pairs(plan: Plan, level: str, arms: tuple[str, str]) -> tuple[list[Path], list[Path]]:
    """Runs of the repeats that are complete in both arms; the others wait for `weir run --plan --resume`."""
    unfinished = {cell.id for cell in plan.remaining()}
    done: dict[tuple[str, int], Cell] = {
        (cell.arm.name, cell.repeat): cell
        for cell in plan.cells()
        if cell.level.name == level and cell.id not in unfinished
    }
    repeats = [n for n in range(plan.file.experiment.repeats) if all((arm, n) in done for arm in arms)]
    if not repeats:
        raise ValueError(f"{plan.directory}: no repeat of level {level} is complete in both arms: run the plan first")
    a, b = ([plan.run_directory(done[arm, n]) for n in repeats] for arm in arms)
    return a, b


def _compared(
    arguments: argparse.Namespace, a: str, b: str, runs: tuple[Sequence[Path], Sequence[Path]], *, level: str | None
) -> Comparison:
    sides = [[_read(run) for run in side] for side in runs]
    if not arguments.invalid:
        _refuse_invalid([run for side in sides for run in side])
    metrics = [BY_NAME[name] for name in dict.fromkeys(arguments.metric)] if arguments.metric else METRICS
    margins = Margins(ratio=arguments.margin, error_rate=arguments.error_margin)
    question = Question(a=a, b=b, metrics=metrics, margins=margins, level=level)
    return compare(question, sides[0], sides[1], np.random.default_rng(_SEED))


def _read(run: Path) -> RunFigures:
    return run_figures(run.name, read_evidence(run, broken_seal(run)))


def _refuse_invalid(runs: Sequence[RunFigures]) -> None:
    invalid = [run for run in runs if run.validity.verdict == "INVALID"]
    if invalid:
        reasons = "; ".join(f"{run.name} ({', '.join(_errors(run))})" for run in invalid)
        raise ValueError(f"INVALID runs carry no comparison: {reasons}. Run them again, or ask for them with --invalid")


def _errors(run: RunFigures) -> list[str]:
    return [reason.kind for reason in run.validity.reasons if reason.severity == "error"]
