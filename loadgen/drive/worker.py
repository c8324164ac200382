"""A worker in a process of its own: how it is started and stopped, and what it says meanwhile.

`run_apart` is the side that starts it, `main` the process. A share and its requests go in on standard input, then one
byte to stop or to halt; tallies and the report come out on standard output, a line each. A worker whose starter is gone
halts. The records themselves never pass through here.
"""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from io import RawIOBase

import msgspec

from loadgen.drive.share import Share, send
from loadgen.drive.tally import Tally
from loadgen.plan.packed import unpack
from protocol.records import WorkerReport

_STOP, _HALT = b"s", b"h"
_LENGTH = struct.Struct("<Q")
_LINE_LIMIT = 1 << 20
"""Tallies are at most some 50 KB."""


class _Line(msgspec.Struct, omit_defaults=True):
    tally: Tally | None = None
    report: WorkerReport | None = None


async def run_apart(
    share: Share,
    packed: bytes,
    requests: int,
    *,
    stop: asyncio.Event,
    halt: asyncio.Event,
    tell: Callable[[Tally], None],
) -> WorkerReport:
    """Runs one worker to its end. One that dies is reported as lost; the records it wrote stay where they are.

    `packed` is the schedule of its `requests` requests, as `loadgen.plan.packed` writes it.
    """
    # A session of its own: an interrupt at the terminal is for the starter, who passes it on.
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.drive.worker"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=_LINE_LIMIT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    report = None
    orders = None
    try:
        with suppress(ConnectionError):
            for content in (msgspec.json.encode(share), packed):
                process.stdin.write(_LENGTH.pack(len(content)) + content)
                await process.stdin.drain()
        # Not before the share is through: an order must not come between its parts.
        orders = asyncio.create_task(_pass_on(process.stdin, stop, halt))
        async for text in process.stdout:
            line = msgspec.json.decode(text, type=_Line)
            report = line.report
            if line.tally is not None:
                tell(line.tally)
        status = await process.wait()
    finally:
        if orders is not None:
            orders.cancel()
        if process.returncode is None:
            process.kill()
            await process.wait()
    if report is not None:
        return report
    return lost_worker(share.name, requests, f"its process ended with status {status}")


def lost_worker(name: str, requests: int, why: str) -> WorkerReport:
    """The report of a worker that cannot give one."""
    return WorkerReport(name=name, requests=requests, outcomes={}, scheduling="ordinary", health=None, lost=why)


async def _pass_on(stdin: asyncio.StreamWriter, stop: asyncio.Event, halt: asyncio.Event) -> None:
    with suppress(ConnectionError):
        await stop.wait()
        stdin.write(_STOP)
        await halt.wait()
        stdin.write(_HALT)


async def _work(share: Share, packed: bytes, stdin: RawIOBase) -> None:
    stop, halt = asyncio.Event(), asyncio.Event()
    listening = asyncio.create_task(_listen(stdin, stop, halt))

    def say(line: _Line) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
        sys.stdout.buffer.flush()

    report = await send(share, unpack(packed), stop=stop, halt=halt, tell=lambda tally: say(_Line(tally=tally)))
    listening.cancel()
    say(_Line(report=report))


async def _listen(stdin: RawIOBase, stop: asyncio.Event, halt: asyncio.Event) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), stdin)
    while order := await reader.read(1):
        stop.set()
        if order == _HALT:
            halt.set()
    # Nobody would take the report.
    stop.set()
    halt.set()


def _take(stdin: RawIOBase) -> bytes:
    """One part of what the starter sends; unbuffered, so that orders after it are not swallowed."""
    (length,) = _LENGTH.unpack(_exactly(stdin, _LENGTH.size))
    return _exactly(stdin, length)


def _exactly(stdin: RawIOBase, length: int) -> bytes:
    """Raises EOFError when the starter is gone."""
    parts = bytearray()
    while len(parts) < length:
        part = stdin.read(length - len(parts))
        if not part:
            raise EOFError("the starter went away")
        parts += part
    return bytes(parts)


def main() -> None:
    """The process."""
    import uvloop

    with open(0, "rb", buffering=0, closefd=False) as stdin:
        share = msgspec.json.decode(_take(stdin), type=Share)
        uvloop.run(_work(share, _take(stdin), stdin))


if __name__ == "__main__":
    main()
