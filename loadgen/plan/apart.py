"""Planning in a process of its own, which ends before the first request is sent.

What draws, checks and reads schedules needs some 100 MB of libraries; what sends them needs none. The arguments of a
verb go in on standard input, the schedule comes out on standard output: its file, and its columns as plain bytes.
Remarks go to standard error as ever.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import msgspec

from loadgen.plan.packed import pack, unpack
from loadgen.plan.schedule import Schedule
from loadgen.workload.texts import USUAL, Vocabulary


class Planned(NamedTuple):
    """A schedule: its file's content, and what it says."""

    content: bytes
    requests: Schedule
    vocabulary: Vocabulary
    """What prompts are made of; for most models when no tokenizer was named."""


class _Planned(msgspec.Struct):
    content: bytes = b""
    packed: bytes = b""
    vocabulary: Vocabulary = USUAL
    refused: str = ""


def start(arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begins to plan what the arguments of `add_traffic_arguments` ask for."""
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen.plan.apart"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    with process.stdin as stdin:
        # Functions that parsers leave in their results cannot be sent, and are of no use there.
        pickle.dump({name: value for name, value in vars(arguments).items() if not callable(value)}, stdin)
    return process


def result(process: subprocess.Popen[bytes]) -> Planned:
    """What was planned. Raises ValueError as planning did."""
    assert process.stdout is not None
    with process.stdout as stdout:
        output = stdout.read()
    if process.wait():
        raise ValueError(f"planning ended with status {process.returncode}")
    planned = msgspec.msgpack.decode(output, type=_Planned)
    if planned.refused:
        raise ValueError(planned.refused)
    return Planned(content=planned.content, requests=unpack(planned.packed), vocabulary=planned.vocabulary)


def _vocabulary(tokenizer: str | None) -> Vocabulary:
    if tokenizer is None:
        return USUAL
    from loadgen.workload.tokenizer import vocabulary

    return vocabulary(Path(tokenizer))


def main() -> None:
    """The process."""
    from loadgen.plan.command import schedule_of

    arguments = argparse.Namespace(**pickle.load(sys.stdin.buffer))
    try:
        content, schedule = schedule_of(arguments)
        vocabulary = _vocabulary(arguments.tokenizer)
        planned = _Planned(content=content, packed=pack(schedule), vocabulary=vocabulary)
    except (ValueError, OSError) as error:
        planned = _Planned(refused=str(error))
    sys.stdout.buffer.write(msgspec.msgpack.encode(planned))


if __name__ == "__main__":
    main()
