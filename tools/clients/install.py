"""Makes the clients' environments, each once: Python ones from a hashed lock, the one of Node.js from its lock file.

Kept outside the project, below `$XDG_CACHE_HOME/weir/clients`, so that a clean clone finds them again.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

from tools.engines.install import TORCH
from tools.engines.places import cache

HERE = Path(__file__).parent
NAMES = ("sdk", "litellm", "vercel", "guidellm", "aiperf")
_MARK = ".installed"


def place(name: str) -> Path:
    return cache().with_name("clients") / name


def lock(name: str) -> Path:
    return HERE / name / "package-lock.json" if name == "vercel" else HERE / f"{name}.lock"


def program(name: str) -> list[str]:
    """What runs that client's scripts."""
    return ["node"] if name == "vercel" else [str(place(name) / "bin" / "python")]


def installed(name: str) -> bool:
    """Whether it is there as its lock asks."""
    mark = place(name) / _MARK
    return mark.is_file() and mark.read_text() == _identity(name)


def install(name: str) -> None:
    """Makes the environment of `name` anew unless it is there. Raises CalledProcessError."""
    if installed(name):
        print(f"{name}: there", flush=True)
        return
    print(f"{name}: installing into {place(name)}", flush=True)
    started_s = time.monotonic()
    shutil.rmtree(place(name), ignore_errors=True)
    (_install_node if name == "vercel" else _install_python)(name)
    (place(name) / _MARK).write_text(_identity(name))
    print(f"{name}: installed in {time.monotonic() - started_s:.0f} s", flush=True)


def _install_python(name: str) -> None:
    venv.create(place(name), with_pip=True)
    pip = [*program(name), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    if name == "guidellm":
        # Without a hash, so that a CPU build which pip is told to find locally may be taken.
        subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--no-deps", "--require-hashes", "--requirement", str(lock(name))], check=True)


def _install_node(name: str) -> None:
    shutil.copytree(HERE / name, place(name), ignore=shutil.ignore_patterns("node_modules"))
    subprocess.run(["npm", "ci", "--silent", "--no-audit", "--no-fund"], cwd=place(name), check=True)


def _identity(name: str) -> str:
    return hashlib.sha256(lock(name).read_bytes()).hexdigest()


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no such client: {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    for name in names:
        install(name)
    return 0
