"""The reference: a client that does nothing but send on time and note when bytes came.

`python -m benchmarks.clients.lean PORT SCHEDULE FILE`: SCHEDULE has a request's nanoseconds per line, FILE gets the
origin and the marks of every request. No checks, no counts, no limits, no errors but a connection that breaks.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import msgspec
import uvloop

from timing.alarm import Alarm

_PROMPT = " ".join(["river"] * 128)
_BODY = (
    b'{"model":"bench","messages":[{"role":"user","content":"%b"}],"max_tokens":100,"ignore_eos":true,'
    b'"stream":true,"stream_options":{"include_usage":true}}'
) % _PROMPT.encode()
_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\nx-request-id: %d\r\n"
_REQUEST = _HEAD + b"content-length: %d\r\n\r\n" % len(_BODY) + _BODY
_LEAD_NS = 100_000_000
_TOKEN = b'"content":" river"'


class Marks(msgspec.Struct, kw_only=True):
    """One request: when it was handed to the socket, when each token came; on CLOCK_MONOTONIC."""

    sent_ns: int = 0
    tokens_ns: list[int] = []


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    origin_ns: int
    requests: list[Marks]


class LeanClient(asyncio.Protocol):
    """One connection, kept alive and used again."""

    _transport: asyncio.Transport

    def __init__(self, idle: list[LeanClient]) -> None:
        self._idle = idle
        self.reads: list[bytes] = []
        self.reads_ns: list[int] = []
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, index: int, marks: Marks) -> None:
        self.reads, self.reads_ns, self.ended = [], [], asyncio.Event()
        self._transport.write(_REQUEST % index)
        marks.sent_ns = time.monotonic_ns()

    def data_received(self, data: bytes) -> None:
        self.reads_ns.append(time.monotonic_ns())
        self.reads.append(data)
        if data.endswith(b"\r\n0\r\n\r\n"):
            self.ended.set()
            self._idle.append(self)


async def _one(client: LeanClient, marks: Marks) -> None:
    reads, reads_ns = client.reads, client.reads_ns
    await client.ended.wait()
    marks.tokens_ns = [at_ns for read, at_ns in zip(reads, reads_ns, strict=True) for _ in range(read.count(_TOKEN))]


async def _run(port: int, schedule_ns: list[int]) -> Seen:
    loop = asyncio.get_running_loop()
    idle: list[LeanClient] = []
    alarm, tasks = Alarm(), []
    seen = Seen(origin_ns=time.monotonic_ns() + _LEAD_NS, requests=[Marks() for _ in schedule_ns])
    for index, (at_ns, marks) in enumerate(zip(schedule_ns, seen.requests, strict=True)):
        await alarm.until(seen.origin_ns + at_ns)
        client = idle.pop() if idle else (await loop.create_connection(lambda: LeanClient(idle), "127.0.0.1", port))[1]
        client.send(index, marks)
        tasks.append(asyncio.create_task(_one(client, marks)))
    await asyncio.gather(*tasks)
    alarm.close()
    return seen


def main(port: str, schedule: str, file: str) -> None:
    """The process, before ordinary ones where that is allowed: so does weir."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    gc.disable()
    schedule_ns = [int(line) for line in Path(schedule).read_text(encoding="ascii").split()]
    Path(file).write_bytes(msgspec.json.encode(uvloop.run(_run(int(port), schedule_ns))))


if __name__ == "__main__":
    main(*sys.argv[1:])
