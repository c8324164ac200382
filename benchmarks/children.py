"""Processes of the benchmarks' own that talk in lines: engines and loads. They never outlive their block."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.contestants import DIES_WITH_PARENT, ContestantError
from benchmarks.results import ROOT


@contextmanager
def child(module: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m module`, ended at the end of the block."""
    command = [*DIES_WITH_PARENT, sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def line(process: subprocess.Popen[str]) -> str:
    """The next one it prints. Raises ContestantError when it has ended instead."""
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise ContestantError(f"{process.args!r} ended early")
    return text.strip()
