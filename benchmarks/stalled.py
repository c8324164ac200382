"""Clients that stop reading: how much of their streams does the contestant swallow, and does it hold the engine back?

Plain sockets: a client must do nothing at all while it stalls. The engine says how much it got rid of; the kernel's
own buffers between the processes are part of that, and the same for every contestant, `direct` included.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks import cpu, wire
from benchmarks.contestants import ContestantError, Running
from benchmarks.results import RESUME_LIMIT_S, StalledResult, StalledScenario

_ENDLESS = wire.Shape(ttft_ms=0, gap_ms=0, chunks=10_000_000)
"""2.7 GB in all: more than the engine can write within a minute."""

_SAMPLES = 30
_READ_TIMEOUT_S = 5.0


@contextmanager
def stalling(target: Running, engine_port: int, clients: int) -> Iterator[Stall]:
    """Clients that have each read the head of an endless stream, and close at the end of the block.

    Raises ContestantError when a stream does not start.
    """
    before_bytes = _memory(target)
    with ExitStack() as stack:
        opened = [stack.enter_context(_client(target)) for _ in range(clients)]
        yield Stall(opened, target, engine_port, before_bytes)


def _client(target: Running) -> socket.socket:
    try:
        client = socket.create_connection(("127.0.0.1", target.port), _READ_TIMEOUT_S)
        client.sendall(wire.request(target.port, wire.request_body(_ENDLESS)))
        head = client.recv(64)
    except OSError as error:
        raise ContestantError(f"the stream does not start: {error}") from error
    if not head.startswith(b"HTTP/1.1 200"):
        client.close()
        raise ContestantError(f"the stream does not start: {head!r}")
    return client


class Stall:
    """What such clients and their engine see: `sample` again and again, then `end`."""

    def __init__(
        self, clients: list[socket.socket], target: Running, engine_port: int, before_bytes: int | None
    ) -> None:
        self._clients = clients
        self._target = target
        self._engine_port = engine_port
        self._taken_bytes: list[int] = []
        self._rss_bytes = [before_bytes]

    def sample(self) -> None:
        """Notes how much the engine has got rid of by now, and what the contestant holds."""
        self._rss_bytes.append(_memory(self._target))
        connection = http.client.HTTPConnection("127.0.0.1", self._engine_port, timeout=_READ_TIMEOUT_S)
        try:
            connection.request("GET", "/taken")
            self._taken_bytes.append(int(connection.getresponse().read()))
        finally:
            connection.close()

    def end(self) -> StalledResult:
        """Reads on, until it is clear whether the stream goes on."""
        return StalledResult(
            clients=len(self._clients),
            taken_bytes=self._taken_bytes,
            rss_before_bytes=self._rss_bytes[0],
            rss_after_bytes=self._rss_bytes[-1],
            resumed=self._reads_on(time.monotonic_ns()),
        )

    def _reads_on(self, stalled_until_ns: int) -> bool:
        """Whether the first client's stream comes to a chunk written later than `stalled_until_ns`."""
        tail = b""
        limit_s = time.monotonic() + RESUME_LIMIT_S
        while time.monotonic() < limit_s:
            try:
                data = self._clients[0].recv(1 << 20)
            except OSError:
                return False
            if not data:
                return False
            data = tail + data
            stamps = wire.STAMP.findall(data, max(0, len(data) - 4096))
            if stamps and int(stamps[-1]) > stalled_until_ns:
                return True
            tail = data[-64:]
        return False


def _memory(target: Running) -> int | None:
    return cpu.rss_bytes(target.pid) or None if target.pid else None


def wait_out(stalls: list[Stall], scenario: StalledScenario) -> None:
    """Lets all clients stall together, sampling at equal intervals."""
    started_s = time.monotonic()
    for number in range(1, _SAMPLES + 1):
        time.sleep(max(0.0, started_s + scenario.seconds * number / _SAMPLES - time.monotonic()))
        for stall in stalls:
            stall.sample()
