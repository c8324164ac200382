"""The clients: a closed loop of raw keep-alive connections on uvloop, as one process of its own.

`python -m benchmarks.load PORT SCENARIO_JSON` connects, warms up, prints `ready` and waits for a line; then it
runs the window, prints `done`, and at last one line with the LoadResult. During the window it only notes
reads and times; what they mean is worked out after `done`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from contextlib import suppress
from typing import cast

import httptools
import msgspec
import uvloop

from benchmarks import answers, wire
from benchmarks.results import LoadScenario

_RAMP_GAPS = 10
"""Clients of a paced scenario start over this many gaps, so that it does not begin with all requests at once."""

_WARM_UP_S = 0.5

_FINISH_S = 30.0
"""Answers that are not complete so long after the end of the window count as failed."""


class Round:
    """Hands out requests until `requests` are out or `limit_s` is over, and keeps what came back."""

    def __init__(self, request: bytes, *, requests: int, limit_s: float) -> None:
        self.request = request
        self.limit_s = limit_s
        self.exchanges: list[answers.Exchange] = []
        self.ended = asyncio.Event()
        self._requests = requests
        self._end_ns = time.monotonic_ns() + int(limit_s * 1e9)
        self._open = 0

    def take(self) -> answers.Exchange | None:
        """A request to send now, or None when there is no more to do."""
        now_ns = time.monotonic_ns()
        if len(self.exchanges) == self._requests or now_ns >= self._end_ns:
            return None
        exchange = answers.Exchange(sent_ns=now_ns)
        self.exchanges.append(exchange)
        return exchange

    def join(self) -> None:
        self._open += 1

    def leave(self) -> None:
        self._open -= 1
        if self._open == 0:
            self.ended.set()


class Client(asyncio.Protocol):
    """One client of the closed loop; connects again when the other side closes."""

    _transport: asyncio.Transport
    _parser: httptools.HttpResponseParser
    _connecting: asyncio.Task[None]

    def __init__(self, port: int) -> None:
        self._port = port
        self._round: Round | None = None
        self._exchange: answers.Exchange | None = None
        self._connected = False
        self._now_ns = 0

    async def connect(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    def close(self) -> None:
        """After the last round."""
        self._transport.abort()

    def begin(self, round_: Round) -> None:
        """Sends requests of `round_` one after the other until it has no more."""
        self._round = round_
        if self._connected:
            self._send_next()
        else:
            self._reconnect()

    def _send_next(self) -> None:
        assert self._round is not None
        self._exchange = self._round.take()
        if self._exchange:
            self._transport.write(self._round.request)
        else:
            self._round.leave()
            self._round = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._parser = httptools.HttpResponseParser(self)
        self._connected = True

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("malformed response")
            self._transport.abort()

    def on_body(self, body: bytes) -> None:
        if self._exchange:
            self._exchange.reads.append(body)
            self._exchange.reads_ns.append(self._now_ns)

    def on_message_complete(self) -> None:
        if self._exchange is None:
            return
        self._exchange.error = None
        self._exchange.status = self._parser.get_status_code()
        if self._parser.should_keep_alive():
            self._send_next()
        else:
            self._exchange = None
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connected = False
        self._fail("connection lost")
        if self._round:
            self._reconnect()

    def _fail(self, error: str) -> None:
        if self._exchange:
            self._exchange.error = error
            self._exchange = None

    def _reconnect(self) -> None:
        self._connecting = asyncio.get_running_loop().create_task(self._connect_and_go_on())

    async def _connect_and_go_on(self) -> None:
        """A contestant that refuses connections costs this client its place in the round, and one failure."""
        assert self._round is not None
        try:
            await self.connect()
        except OSError:
            if exchange := self._round.take():
                exchange.error = "connection refused"
            self._round.leave()
            self._round = None
        else:
            self._send_next()


async def run_round(clients: list[Client], round_: Round, *, ramp_s: float) -> None:
    """Ends when every client is done; raises TimeoutError when some still wait long after the round's limit."""
    loop = asyncio.get_running_loop()
    for number, client in enumerate(clients):
        round_.join()
        loop.call_later(ramp_s * number / len(clients), client.begin, round_)
    async with asyncio.timeout(round_.limit_s + _FINISH_S):
        await round_.ended.wait()


async def _main(port: int, scenario: LoadScenario) -> None:
    body = wire.request_body(scenario.shape, scenario.prompt_bytes)
    request = wire.request(port, body)
    clients = [Client(port) for _ in range(scenario.connections)]
    for client in clients:
        await client.connect()
    ramp_s = _RAMP_GAPS * scenario.shape.gap_ms / 1e3
    await run_round(clients, Round(request, requests=scenario.requests, limit_s=_WARM_UP_S), ramp_s=ramp_s)
    gc.collect()
    gc.disable()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    round_ = Round(request, requests=scenario.requests, limit_s=scenario.limit_s)
    started_ns = time.monotonic_ns()
    with suppress(TimeoutError):
        await run_round(clients, round_, ramp_s=ramp_s)
    duration_s = (time.monotonic_ns() - started_ns) / 1e9
    print("done", flush=True)
    for client in clients:
        client.close()
    result = answers.tally(round_.exchanges, scenario.shape, duration_s=duration_s)
    print(msgspec.json.encode(result).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=LoadScenario)))
