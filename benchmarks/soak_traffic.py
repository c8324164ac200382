"""The clients of the soak: what each request asks for, whether and how its client leaves, and what became of it.

Raw asyncio streams on loopback. A client that stays reads its answer to the end and checks that it is its own; one
that leaves does so in the phase its case names, politely (FIN) or not (RST), and notes only what it saw until then.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from socket import SO_LINGER, SOL_SOCKET
from typing import Literal

import httptools

Leaving = Literal["receive", "sent", "first_byte", "relay"]
"""When the client leaves: half of the body sent; all sent; waiting for the answer; in the middle of it."""

ORDINARY = ("stream", "small", "slow-head", "close-idle")
"""What an engine in good order may do: their answers must come whole."""

FAULTS = (
    "reset",
    "reset-in-stream",
    "silence",
    "stall",
    "garbage",
    "garbage-in-stream",
    "cut-chunk",
    "503",
    "error-in-stream",
    "overload-as-200",
)
STREAMS = frozenset({"stream", "endless", *FAULTS})
HANG_S = 15.0
"""A client that still waits then was forgotten: every limit of the gateway under test is shorter."""

_IDS = re.compile(rb"soak-[0-9]+")
_LEAVING_SHARE = 0.4
_ROUGH_SHARE = 0.5
_WAIT_S = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One request. `model` is `steady` (engines in good order), `shaky` (faulty ones) or `walled` (none answers)."""

    model: str
    ask: str
    """The engine's behaviour, by its name there."""
    leave: Leaving | None = None
    rough: bool = False
    """Leave with RST instead of FIN."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """What the client of one request saw."""

    request_id: str
    case: Case
    status: int | None = None
    whole: bool = False
    """The answer came to the end of its HTTP framing, and of its stream."""
    crossed: bool = False
    """The answer was another request's."""
    hung: bool = False


def pick(rng: Random) -> Case:
    """The mix: three tenths to good engines, most to faulty ones, a few to one that cannot be connected to."""
    draw = rng.random()
    leave: Leaving | None = None
    rough = rng.random() < _ROUGH_SHARE
    if rng.random() < _LEAVING_SHARE:
        leave = rng.choice(("receive", "sent", "first_byte", "relay"))
    if draw < 0.03:
        return Case(model="walled", ask="small", leave=leave if leave != "relay" else "first_byte", rough=rough)
    if leave == "first_byte":
        return Case(model="shaky", ask="silence", leave=leave, rough=rough)
    if leave == "relay":
        return Case(model=rng.choice(("steady", "shaky")), ask="endless", leave=leave, rough=rough)
    if draw < 0.3:
        return Case(model="steady", ask=rng.choice(ORDINARY), leave=leave, rough=rough)
    return Case(model="shaky", ask=rng.choice(FAULTS if draw < 0.7 else ORDINARY), leave=leave, rough=rough)


class Client:
    """Sends one request after the other, on one connection where the last one left it usable."""

    def __init__(self, port: int, rng: Random, numbers: Iterator[int]) -> None:
        """`numbers` tell all requests of all clients apart."""
        self._port = port
        self._rng = rng
        self._numbers = numbers
        self.sent: list[Sent] = []
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, cases: Iterable[Case]) -> None:
        for case in cases:
            sent = Sent(request_id=f"soak-{next(self._numbers)}", case=case)
            self.sent.append(sent)
            try:
                async with asyncio.timeout(HANG_S):
                    await self._one(sent)
            except TimeoutError:
                sent.hung = True
                self._drop(rough=True)
        self._drop(rough=False)

    async def _one(self, sent: Sent) -> None:
        case = sent.case
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            request = _request(sent)
            writer.write(request[: -20 if case.leave == "receive" else None])
            await writer.drain()
            if case.leave is None or case.leave == "relay":
                await self._read(reader, sent)
            elif case.leave == "first_byte":
                await asyncio.sleep(self._rng.random() * _WAIT_S)
        except (OSError, httptools.HttpParserError):
            self._drop(rough=False)
        if case.leave is not None:
            self._drop(rough=case.rough)

    async def _read(self, reader: asyncio.StreamReader, sent: Sent) -> None:
        answer = _Answer()
        while not answer.ended:
            data = await reader.read(1 << 16)
            if not data:
                break
            answer.feed(data)
            sent.status = answer.status
            sent.crossed = answer.crossed(sent.request_id)
            if sent.case.leave == "relay" and len(answer.body) > 500:
                return
        sent.whole = answer.ended and (not answer.is_stream or answer.body.endswith(b"data: [DONE]\n\n"))
        if not answer.reusable:
            self._drop(rough=False)

    def _drop(self, *, rough: bool) -> None:
        if self._streams is None:
            return
        _, writer = self._streams
        self._streams = None
        if rough:
            writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        else:
            writer.close()


class _Answer:
    """One response, parsed as it arrives."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.body = b""
        self.ended = False
        self.is_stream = False
        self.status: int | None = None

    def feed(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.is_stream |= name.lower() == b"content-type" and value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.ended = True

    @property
    def reusable(self) -> bool:
        return self.ended and bool(self._parser.should_keep_alive())

    def crossed(self, request_id: str) -> bool:
        """Whether any id of the soak in the body is not this one's."""
        return any(found != request_id.encode() for found in _IDS.findall(self.body))


def _request(sent: Sent) -> bytes:
    body = b'{"model":"%b","messages":[{"role":"user","content":"fault=%b"}],"max_tokens":20%b}' % (
        sent.case.model.encode(),
        sent.case.ask.encode(),
        b',"stream":true' if sent.case.ask in STREAMS else b"",
    )
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: soak\r\ncontent-type: application/json\r\n"
        f"x-request-id: {sent.request_id}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def drive(port: int, *, clients: int, seconds: float, seed: int) -> list[Sent]:
    """Closed loop of `clients` for `seconds`; everything that was sent, once the last of them has its answer."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + seconds
    numbers = itertools.count()
    rngs = [Random(f"{seed}/{number}") for number in range(clients)]
    crowd = [Client(port, rng, numbers) for rng in rngs]

    def cases(rng: Random) -> Iterator[Case]:
        while loop.time() < until_s:
            yield pick(rng)

    async with asyncio.TaskGroup() as group:
        for client, rng in zip(crowd, rngs, strict=True):
            group.create_task(client.run(cases(rng)))
    return [sent for client in crowd for sent in client.sent]
