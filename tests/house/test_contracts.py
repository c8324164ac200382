"""Every import contract of pyproject.toml breaks, by its own name, when the rule it states is broken.

Each violation is planted alone in a copy of the packages that keeps all contracts. A contract without a planted
violation fails here, so that none can be there for show.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
CONTRACTS = {contract["id"]: contract["name"] for contract in OPTIONS["contracts"]}

Violation = tuple[str, str]
"""File, from the root of the tree; the line to add to it."""

VIOLATIONS: dict[str, Sequence[Violation]] = {
    "packages": (
        ("gateway/app.py", "import loadgen.record"),
        ("gateway/app.py", "import simulator.model"),
        ("loadgen/procedure.py", "import gateway.config"),
        ("loadgen/procedure.py", "import simulator.profile"),
        ("simulator/model.py", "import gateway.policy.routing"),
        ("simulator/model.py", "import loadgen.plan"),
        ("protocol/sse.py", "import gateway.errors"),
        ("gateway/control.py", "import weir.cli"),
        ("weir/cli.py", "import benchmarks.results"),
    ),
    "gateway": (
        ("gateway/policy/routing.py", "import gateway.fleet"),
        ("gateway/server.py", "import gateway.control"),
        ("gateway/newcomer.py", ""),
    ),
    "loadgen": (
        ("loadgen/analyze/stats.py", "import loadgen.report.terminal"),
        ("loadgen/report/terminal.py", "import loadgen.drive.dispatch"),
        ("loadgen/newcomer.py", ""),
    ),
    "simulator": (
        ("simulator/profile.py", "import simulator.model"),
        ("simulator/wire_vllm.py", "import simulator.wire_sglang"),
        ("simulator/newcomer.py", ""),
    ),
    "sans-io": (
        ("gateway/policy/routing.py", "import asyncio"),
        ("gateway/model.py", "import socket"),
        ("protocol/stream.py", "from time import monotonic_ns"),
        ("simulator/steps.py", "import uvloop"),
        ("loadgen/analyze/stats.py", "import httpx"),
        ("loadgen/workload/traces.py", "import asyncio"),
    ),
    "uvicorn": (
        ("gateway/app.py", "from uvicorn import Config"),
        ("weir/cli.py", "import uvicorn.config"),
    ),
    "data-path": (
        ("gateway/proxy.py", "import httpx"),
        ("gateway/asgi.py", "from fastapi import FastAPI"),
        ("loadgen/drive/client.py", "import httpx"),
    ),
}


@pytest.fixture(scope="session")
def clean_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages, their Python files only, that keeps every contract."""
    tree = tmp_path_factory.mktemp("tree")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for package in OPTIONS["root_packages"]:
        for source in (ROOT / package).rglob("*.py"):
            copy = tree / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
    kept = lint_imports(tree)
    assert kept.returncode == 0, kept.stdout + kept.stderr
    return tree


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_contract_has_a_planted_violation() -> None:
    assert VIOLATIONS.keys() == CONTRACTS.keys()


@pytest.mark.parametrize(("contract", "file", "line"), [(c, *v) for c, planted in VIOLATIONS.items() for v in planted])
def test_a_planted_violation_breaks_its_contract_by_name(
    contract: str, file: str, line: str, clean_tree: Path, tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(clean_tree, tree)
    with (tree / file).open("a", encoding="utf-8") as source:
        source.write(f"\n{line}\n")
    broken = lint_imports(tree)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert f"{CONTRACTS[contract]} BROKEN" in broken.stdout
