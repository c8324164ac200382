"""`weir`: one short function per verb. Each imports what it needs when it is called, so that help is instant."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

Define = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], int]


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb; its exit status. 2 means that the input was wrong and stderr says how, 130 Ctrl-C.

    A verb that has something to keep handles Ctrl-C itself, as soon as it has.
    """
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog="weir",
        description="A streaming gateway for LLM inference that measures what it carries, its load generator, and "
        "stand-in engines.",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, (summary, _, _) in VERBS.items():
        verbs.add_parser(verb, help=summary, add_help=False)
    verb = parser.parse_args(given[:1]).verb
    summary, define, run = VERBS[verb]
    verb_parser = argparse.ArgumentParser(prog=f"weir {verb}", description=summary)
    try:
        define(verb_parser)
        return run(verb_parser.parse_args(given[1:]))
    except KeyboardInterrupt:
        print(f"\nweir {verb}: interrupted", file=sys.stderr)
        return 130


def _define_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="gateway configuration (YAML)")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))


def _serve(arguments: argparse.Namespace) -> int:
    from gateway.config_file import load
    from gateway.errors import ConfigError

    try:
        config = load(arguments.config).config
        from gateway.app import serve

        return serve(config, arguments.log_level)
    except ConfigError as error:
        return _refuse(error.problems)


def _define_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="gateway configuration (YAML)")


def _check(arguments: argparse.Namespace) -> int:
    from gateway.config_file import load
    from gateway.errors import ConfigError

    try:
        rows = load(arguments.file).effective()
    except ConfigError as error:
        return _refuse(error.problems)
    width = max(len(key) for key, _, _ in rows)
    value_width = max(len(str(value)) for _, value, _ in rows)
    for key, value, origin in rows:
        print(f"{key:<{width}}  {'-' if value is None else value!s:<{value_width}}  {origin}")
    return 0


def _define_engine(parser: argparse.ArgumentParser) -> None:
    from simulator.options import add_arguments

    add_arguments(parser)


def _engine(arguments: argparse.Namespace) -> int:
    from simulator.options import from_arguments
    from simulator.server import serve

    try:
        return serve(from_arguments(arguments))
    except (ValueError, OSError) as error:
        return _refuse([f"weir engine: {error}"])


def _define_fit(parser: argparse.ArgumentParser) -> None:
    from loadgen.workload.command import add_fit_arguments

    add_fit_arguments(parser)


def _fit(arguments: argparse.Namespace) -> int:
    from loadgen.workload.command import fit

    return fit(arguments)


def _define_plan(parser: argparse.ArgumentParser) -> None:
    from loadgen.plan.command import add_plan_arguments

    add_plan_arguments(parser)


def _plan(arguments: argparse.Namespace) -> int:
    from loadgen.plan.command import plan

    return plan(arguments)


def _define_run(parser: argparse.ArgumentParser) -> None:
    from loadgen.commands import add_run_arguments

    add_run_arguments(parser)


def _run(arguments: argparse.Namespace) -> int:
    from loadgen.commands import run

    return run(arguments)


def _define_report(parser: argparse.ArgumentParser) -> None:
    from loadgen.report.command import add_report_arguments

    add_report_arguments(parser)


def _report(arguments: argparse.Namespace) -> int:
    from loadgen.report.command import report

    return report(arguments)


def _define_compare(parser: argparse.ArgumentParser) -> None:
    from loadgen.report.compare_command import add_compare_arguments

    add_compare_arguments(parser)


def _compare(arguments: argparse.Namespace) -> int:
    from loadgen.report.compare_command import compare_runs

    return compare_runs(arguments)


def _define_knee(parser: argparse.ArgumentParser) -> None:
    from loadgen.report.knee_command import add_knee_arguments

    add_knee_arguments(parser)


def _knee(arguments: argparse.Namespace) -> int:
    from loadgen.report.knee_command import knee

    return knee(arguments)


def _define_preflight(parser: argparse.ArgumentParser) -> None:
    from loadgen.preflight.command import add_preflight_arguments

    add_preflight_arguments(parser)


def _preflight(arguments: argparse.Namespace) -> int:
    from loadgen.preflight.command import preflight

    return preflight(arguments)


def _define_demo(parser: argparse.ArgumentParser) -> None:
    from weir.demo import add_arguments

    add_arguments(parser)


def _demo(arguments: argparse.Namespace) -> int:
    from weir.demo import demo

    return demo(arguments)


def _refuse(problems: list[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return 2


VERBS: dict[str, tuple[str, Define, Run]] = {
    "serve": ("run the gateway", _define_serve, _serve),
    "check": ("check a gateway configuration and print what it amounts to", _define_check, _check),
    "engine": ("run a stand-in engine, shaped like vLLM or SGLang", _define_engine, _engine),
    "fit": ("fit a workload description to a trace", _define_fit, _fit),
    "plan": ("make a schedule from a workload or a trace", _define_plan, _plan),
    "run": ("replay a schedule against a URL and keep the evidence", _define_run, _run),
    "report": ("analyse a run directory and render its report", _define_report, _report),
    "compare": ("say whether two sides of runs differ, and by how much", _define_compare, _compare),
    "knee": ("say what load a system carries, from a plan with several", _define_knee, _knee),
    "preflight": ("compare an engine, or its command line, with what it should be", _define_preflight, _preflight),
    "demo": ("the whole loop on this machine: engines, gateway, traffic, report", _define_demo, _demo),
}
"""Verb → what it does, its arguments, its body."""
