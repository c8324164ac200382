"""The verb `preflight`: its arguments, what it prints, and its exit status."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from loadgen.preflight.command_line import examine, known_flags
from loadgen.preflight.engine import Engine, EngineUnknown, ask
from loadgen.preflight.host_commands import Finding
from loadgen.preflight.settings import Verdict, compare, read_settings

OK, DIFFERENT, IMPOSSIBLE = 0, 1, 2


def add_preflight_arguments(parser: argparse.ArgumentParser) -> None:
    """`weir preflight (--engine URL [--config FILE] | --command TEXT)`."""
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--engine", metavar="URL", help="running engine, without /v1")
    what.add_argument("--command", metavar="TEXT", help="commands for an engine and its machine, or @FILE")
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="what --engine should run with (YAML, as its --config)"
    )
    parser.add_argument("--json", action="store_true", help="for machines")


def preflight(ns: argparse.Namespace) -> int:
    """0: as it should be; 1: it is not; 2: that could not be found out."""
    try:
        return _command(ns) if ns.command is not None else _engine(ns)
    except (ValueError, OSError, EngineUnknown) as error:
        sys.stderr.write(f"weir preflight: {error}\n")
        return IMPOSSIBLE


def _command(ns: argparse.Namespace) -> int:
    if ns.config is not None:
        raise ValueError(f"--config {ns.config} belongs to --engine: drop it")
    text = Path(ns.command[1:]).read_text(encoding="utf-8") if ns.command.startswith("@") else ns.command
    kind, findings = examine(text)
    if ns.json:
        _print_json({"kind": kind, "findings": [asdict(finding) for finding in findings]})
    else:
        sys.stdout.write("".join(map(_told, findings)) or f"{kind}: nothing wrong with this command line\n")
    return DIFFERENT if findings else OK


def _told(finding: Finding) -> str:
    return f"{finding.words}\n    {finding.wrong}\n    instead: {finding.instead}\n"


def _engine(ns: argparse.Namespace) -> int:
    engine = ask(ns.engine)
    settings = read_settings(ns.config.read_text(encoding="utf-8")) if ns.config else []
    verdicts = compare(settings, engine.effective, known_flags(engine.kind))
    if ns.json:
        _print_json(_as_data(engine, verdicts))
    else:
        _print_verdicts(engine, verdicts)
    return DIFFERENT if any(verdict.result in ("differs", "unknown") for verdict in verdicts) else OK


def _as_data(engine: Engine, verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "kind": engine.kind,
        "version": engine.version,
        "hint": engine.hint,
        "settings": [
            {
                "name": verdict.setting.name,
                "expected": verdict.setting.value,
                "found": verdict.found,
                "result": verdict.result,
                "reason": verdict.setting.reason,
            }
            for verdict in verdicts
        ],
        "effective": engine.effective if not verdicts else {},
    }


def _print_verdicts(engine: Engine, verdicts: list[Verdict]) -> None:
    out = [f"{engine.kind} {engine.version}"]
    width = max((len(verdict.setting.name) for verdict in verdicts), default=0)
    for verdict in verdicts:
        name, expected = verdict.setting.name.ljust(width), verdict.setting.value
        if verdict.result == "ok":
            out.append(f"  ok           {name}  {expected}")
        elif verdict.result == "not visible":
            out.append(f"  not visible  {name}  {expected}")
        elif verdict.result == "unknown":
            out += [f"  UNKNOWN      {name}  {expected}", f"               fix: {verdict.fix}"]
        else:
            out += [f"  DIFFERS      {name}  {verdict.found}, expected {expected}"]
            out += [f"               why: {verdict.setting.reason}"] if verdict.setting.reason else []
            out.append(f"               fix: {verdict.fix}")
    if not verdicts:
        out += [f"  {name} {value}" for name, value in sorted(engine.effective.items())]
    hidden = sum(verdict.result == "not visible" for verdict in verdicts)
    if engine.hint and (hidden or not verdicts):
        out.append(engine.hint)
    sys.stdout.write("\n".join(out) + "\n")


def _print_json(content: object) -> None:
    sys.stdout.write(json.dumps(content, indent=1) + "\n")
