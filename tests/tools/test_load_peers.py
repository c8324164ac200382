"""tools/load-peers.sh with stand-ins for the interpreters that it looks for."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.results import ROOT


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "bench-peers.sh").write_text('echo "peers: $*"\n')
    program(tmp_path, "python", 'echo "run: $*"')
    return tmp_path


def program(place: Path, name: str, script: str) -> None:
    path = place / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def install(place: Path) -> list[str]:
    environment = {"PATH": f"{place}/bin:/usr/bin:/bin", "PYENV_ROOT": str(place / "pyenv")}
    command = ["sh", str(ROOT / "tools" / "load-peers.sh"), "python"]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


OURS = ["run: -m tools.engines vllm sglang", "run: -m tools.clients guidellm aiperf"]


def test_the_first_python_that_is_new_enough_gets_inference_perf(place: Path) -> None:
    # As pyenv's shim of a version that is not chosen.
    program(place, "python3.12", "exit 127")
    program(place, "python3.13", "exit 0")
    assert install(place) == [*OURS, "peers: python3.13 inference-perf=inference-perf==0.7.0"]


def test_without_one_it_says_so(place: Path) -> None:
    for name in ("python3.12", "python3.13", "python3.14"):
        program(place, name, "exit 1")
    assert install(place) == [
        *OURS,
        "inference-perf: not installable here: there is no Python of 3.12 or newer",
    ]
