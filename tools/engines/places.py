"""Where the engines' environments and their model lie, and which versions they have. Makes nothing and runs nothing.

Everything is kept outside the project, so that a clean clone finds it again: below `$XDG_CACHE_HOME/weir/engines`.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

KINDS = ("vllm", "sglang")
VERSIONS = {"vllm": "0.32.0", "sglang": "0.5.23"}

HERE = Path(__file__).parent
MAKE_MODEL = HERE / "make_model.py"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """`install.json` of an environment: written last, so that one without it is unfinished."""

    kind: str
    version: str
    lock_sha256: str
    seconds: float
    size_mb: int


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "weir" / "engines"


def environment(kind: str) -> Path:
    return cache() / f"{kind}-{VERSIONS[kind]}"


def lock(kind: str) -> Path:
    """Every package of the environment but torch, pinned with hashes."""
    return HERE / f"{kind}.lock"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def python(kind: str) -> Path:
    """The interpreter of that engine's environment."""
    return environment(kind) / "bin" / "python"


def installation(kind: str) -> Installation | None:
    """What is installed of `kind`, if it is what the lock asks for."""
    mark = environment(kind) / "install.json"
    if not mark.is_file():
        return None
    found = msgspec.json.decode(mark.read_bytes(), type=Installation)
    return found if found.lock_sha256 == sha256(lock(kind)) else None


def installed(kind: str) -> bool:
    return installation(kind) is not None


def model(size: str = "small") -> Path:
    """The folder of the model of that size; another one after every change of its recipe."""
    return cache() / f"model-{size}-{sha256(MAKE_MODEL)[:12]}"
