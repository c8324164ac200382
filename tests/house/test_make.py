"""What `make` does on a machine that lacks something: the shell scripts of tools/ with a PATH of our own.

`id`, `apt-get` and the Pythons on that PATH are small scripts, since the real ones would change this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


class Machine:
    """A machine whose programs are those put there, and a log of what `apt-get` was asked to do."""

    def __init__(self, root: Path) -> None:
        self._bin = root / "bin"
        self._work = root / "work"
        self.apt_log = root / "apt.log"
        self._bin.mkdir()
        shutil.copytree(TOOLS, self._work / "tools")
        for program in ("sh", "dirname"):
            (self._bin / program).symlink_to(shutil.which(program) or "")

    def put(self, program: str, script: str) -> None:
        path = self._bin / program
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def is_debian(self, *, root: bool) -> None:
        self.put("id", f"echo {0 if root else 1000}")
        self.put("apt-get", f'echo "$@" >> "{self.apt_log}"')

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": str(self._bin)}
        command = ["sh", f"tools/{script}", *arguments]
        return subprocess.run(
            command,
            cwd=self._work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_nothing_is_said_or_installed_when_every_program_is_there(machine: Machine) -> None:
    machine.is_debian(root=True)
    machine.put("weird", "")
    done = machine.run("programs.sh", "weird=weird-light")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not machine.apt_log.exists()


def test_root_gets_only_the_packages_whose_program_is_missing(machine: Machine) -> None:
    machine.is_debian(root=True)
    machine.put("weird", "")
    done = machine.run("programs.sh", "weird=weird-light", "odd=odd-bin", "rare=rare-server")
    assert done.returncode == 0, done.stderr
    assert "odd-bin rare-server" in done.stdout
    update, install = machine.apt_log.read_text(encoding="utf-8").splitlines()
    assert update.endswith("update")
    assert install.endswith("install odd-bin rare-server")


def test_others_are_told_the_command_and_stop(machine: Machine) -> None:
    machine.is_debian(root=False)
    done = machine.run("programs.sh", "odd=odd-bin", "rare=rare-server")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "sudo apt-get install odd-bin rare-server"
    assert not machine.apt_log.exists()


def test_without_apt_the_packages_are_named(machine: Machine) -> None:
    done = machine.run("programs.sh", "odd=odd-bin")
    assert done.returncode == 1
    assert "missing: odd." in done.stderr
    assert "odd-bin" in done.stderr


def test_a_failed_installation_fails(machine: Machine) -> None:
    machine.is_debian(root=True)
    machine.put("apt-get", "exit 100")
    assert machine.run("programs.sh", "odd=odd-bin").returncode == 100


def test_a_python_that_is_too_old_is_named_with_its_version(machine: Machine) -> None:
    machine.put("python3", '[ "$1" = --version ] && echo "Python 3.9.2" && exit 0; exit 1')
    done = machine.run("environment.sh", "python3")
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; python3 is Python 3.9.2." in done.stderr


def test_a_python_that_is_not_there_is_named(machine: Machine) -> None:
    done = machine.run("environment.sh", "python3")
    assert done.returncode == 1
    assert "python3 is not to be found" in done.stderr


def test_a_python_without_ensurepip_names_the_package_that_has_it(machine: Machine) -> None:
    machine.is_debian(root=False)
    machine.put("python3", f'case "$*" in *ensurepip*) exit 1;; esac\nexec "{sys.executable}" "$@"')
    done = machine.run("environment.sh", "python3")
    assert done.returncode == 1
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert done.stderr.splitlines()[-1] == f"sudo apt-get install python{version}-venv"
