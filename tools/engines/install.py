"""Makes the engines' environments and their model, each once, and says how long it took and how large it is.

torch is installed without a hash, before the rest and by its version alone: which of its builds fits is the
machine's matter, and a CPU build that pip is told to find locally is taken before the CUDA build of PyPI.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

import msgspec

from tools.engines import places

TORCH = "torch==2.13.0"


def install(kind: str) -> places.Installation:
    """The environment of `kind`, made anew unless it is there as its lock asks. Raises CalledProcessError."""
    found = places.installation(kind)
    if found is not None:
        print(f"{kind} {found.version}: there, {found.size_mb:,} MB (took {found.seconds:.0f} s)", flush=True)
        return found
    place, lock = places.environment(kind), places.lock(kind)
    print(f"{kind} {places.VERSIONS[kind]}: installing into {place} (some minutes, 2 to 4 GB)", flush=True)
    started_s = time.monotonic()
    venv.create(place, clear=True, with_pip=True)
    _pip(kind, TORCH)
    _pip(kind, "--no-deps", "--require-hashes", "--requirement", str(lock))
    found = places.Installation(
        kind=kind,
        version=places.VERSIONS[kind],
        lock_sha256=places.sha256(lock),
        seconds=round(time.monotonic() - started_s, 1),
        size_mb=_size_mb(place),
    )
    (place / "install.json").write_bytes(msgspec.json.encode(found))
    print(f"{kind} {found.version}: installed in {found.seconds:.0f} s, {found.size_mb:,} MB", flush=True)
    return found


def make_model(kind: str, size: str = "small") -> Path:
    """A model to serve, `small` or `tiny`, made with the environment of `kind` unless it is there."""
    place = places.model(size)
    if not place.is_dir():
        unfinished = place.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run([places.python(kind), places.MAKE_MODEL, unfinished, size], check=True)
        unfinished.rename(place)
    return place


def _pip(kind: str, *arguments: str) -> None:
    quiet = ("-qq", "--disable-pip-version-check", "--no-warn-script-location")
    subprocess.run([places.python(kind), "-m", "pip", "install", *quiet, *arguments], check=True)


def _size_mb(place: Path) -> int:
    return round(sum(path.lstat().st_size for path in place.rglob("*") if not path.is_dir()) / 1e6)


def main(kinds: list[str]) -> int:
    unknown = [kind for kind in kinds if kind not in places.KINDS]
    if unknown:
        print(f"no such engine: {', '.join(unknown)}; there are {', '.join(places.KINDS)}", file=sys.stderr)
        return 2
    for kind in kinds:
        install(kind)
        make_model(kind)
    return 0
