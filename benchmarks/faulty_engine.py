"""An engine that misbehaves in the way its prompt names, and knows which requests it still works on.

Run as its own process (`python -m benchmarks.faulty_engine PORTS`): serves that many loopback ports, prints them, ends
when its standard input closes. Every answer it gives holds the request's x-request-id, so that a crossed answer shows.
A request is let go of only when it is answered or its connection is gone: whoever forgets to cut it leaves it at work.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import cast

import httptools
import msgspec
import uvloop

FAULT = re.compile(rb"fault=([a-z0-9-]+)")
GAP_S = 0.004
"""Between two chunks of an ordinary stream."""

ENDLESS_S = 120.0
"""How long silence and endless streams last: far longer than any limit of the gateway under test."""

_DONE = b"data: [DONE]\n\n"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_HEALTHY = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


class Stats(msgspec.Struct):
    """What GET /stats answers."""

    at_work: int = 0
    """Requests that are neither answered nor cut."""
    cut: int = 0
    """Requests whose connection went away before their answer was complete."""
    served: dict[str, int] = msgspec.field(default_factory=Counter)
    """Requests by what their prompt asked for."""


def json_response(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def event(request_id: bytes, finish: bytes = b"null") -> bytes:
    """One chat chunk as an SSE event."""
    return (
        b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1796082118,"model":"soak","choices":'
        b'[{"index":0,"delta":{"content":"for %b "},"logprobs":null,"finish_reason":%b}]}\n\n'
    ) % (request_id, request_id, finish)


def small(request_id: bytes) -> bytes:
    return json_response(
        b'{"id":"chatcmpl-%b","object":"chat.completion","created":1796082118,"model":"soak","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"for %b"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":5,"total_tokens":7,"completion_tokens":2}}' % (request_id, request_id)
    )


_UNAVAILABLE = json_response(
    b'{"object":"error","message":"The engine is currently busy.","type":"Service Unavailable","code":503}',
    b"503 Service Unavailable",
)


class Answering:
    """The connection as the behaviours below see it: one request, and what goes back."""

    def __init__(self, transport: asyncio.Transport, request_id: bytes) -> None:
        self.request_id = request_id
        self.overtaken = False
        """The next request has begun to arrive on this connection."""
        self._transport = transport

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def chunk(self, data: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def chunks(self, count: int) -> None:
        """The head of a stream and its first events."""
        self.write(_STREAM_HEAD)
        for _ in range(count):
            await asyncio.sleep(GAP_S)
            self.chunk(event(self.request_id))

    def end(self) -> None:
        self.chunk(event(self.request_id, b'"stop"'))
        self.chunk(_DONE)
        self.write(b"0\r\n\r\n")

    def close(self) -> None:
        self._transport.close()

    def reset(self) -> None:
        """RST instead of FIN."""
        at_once = struct.pack("ii", 1, 0)
        self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        self._transport.abort()


async def _stream(answer: Answering) -> None:
    await answer.chunks(20)
    answer.end()


async def _small(answer: Answering) -> None:
    answer.write(small(answer.request_id))


async def _endless(answer: Answering) -> None:
    await answer.chunks(round(ENDLESS_S / GAP_S))


async def _reset(answer: Answering) -> None:
    answer.reset()


async def _reset_in_stream(answer: Answering) -> None:
    await answer.chunks(3)
    answer.reset()


async def _silence(_: Answering) -> None:
    await asyncio.sleep(ENDLESS_S)


async def _stall(answer: Answering) -> None:
    await answer.chunks(3)
    await asyncio.sleep(ENDLESS_S)


async def _garbage(answer: Answering) -> None:
    answer.write(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")


async def _garbage_in_stream(answer: Answering) -> None:
    await answer.chunks(3)
    answer.write(b"no size\r\n")


async def _cut_chunk(answer: Answering) -> None:
    await answer.chunks(3)
    answer.write(b"200\r\n" + event(answer.request_id)[:100])
    answer.close()


async def _slow_head(answer: Answering) -> None:
    """The answer of `_small`, a few bytes at a time."""
    whole = small(answer.request_id)
    for start in range(0, len(whole), 40):
        answer.write(whole[start : start + 40])
        await asyncio.sleep(GAP_S)


async def _unavailable(answer: Answering) -> None:
    answer.write(_UNAVAILABLE)


async def _error_in_stream(answer: Answering) -> None:
    await answer.chunks(3)
    answer.chunk(b'data: {"error":{"message":"out of memory","type":"InternalServerError","code":500}}\n\n')
    answer.chunk(_DONE)
    answer.write(b"0\r\n\r\n")


async def _overload_as_200(answer: Answering) -> None:
    """What SGLang streams when its queue is full."""
    await answer.chunks(0)
    answer.chunk(event(answer.request_id, b'"abort"'))
    answer.chunk(_DONE)
    answer.write(b"0\r\n\r\n")


async def _close_idle(answer: Answering) -> None:
    """The answer of `_small`, and the connection closed just when it may be used again."""
    answer.write(small(answer.request_id))
    await asyncio.sleep(GAP_S)
    if not answer.overtaken:
        answer.close()


BEHAVIOURS: dict[str, Callable[[Answering], Awaitable[None]]] = {
    "stream": _stream,
    "small": _small,
    "endless": _endless,
    "reset": _reset,
    "reset-in-stream": _reset_in_stream,
    "silence": _silence,
    "stall": _stall,
    "garbage": _garbage,
    "garbage-in-stream": _garbage_in_stream,
    "cut-chunk": _cut_chunk,
    "slow-head": _slow_head,
    "503": _unavailable,
    "error-in-stream": _error_in_stream,
    "overload-as-200": _overload_as_200,
    "close-idle": _close_idle,
}
"""By the name that a prompt gives as `fault=NAME`."""


class FaultyEngine(asyncio.Protocol):
    """One connection; each request is answered by a task of its own, as its prompt asks."""

    _transport: asyncio.Transport

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._parser = httptools.HttpRequestParser(self)
        self._last: Answering | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._request_id = self._body = self._url = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks:
            task.cancel()

    def on_message_begin(self) -> None:
        self._request_id = self._body = self._url = b""
        if self._last:
            self._last.overtaken = True

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"x-request-id":
            self._request_id = value

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(self._get())
            return
        found = FAULT.search(self._body)
        name = found[1].decode() if found else "small"
        self._stats.served[name] = self._stats.served.get(name, 0) + 1
        self._last = Answering(self._transport, self._request_id)
        task = asyncio.get_running_loop().create_task(self._answer(BEHAVIOURS[name], self._last))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _get(self) -> bytes:
        if self._url == b"/stats":
            return json_response(msgspec.json.encode(self._stats))
        return _HEALTHY if self._url == b"/health" else _NOT_FOUND

    async def _answer(self, behave: Callable[[Answering], Awaitable[None]], answer: Answering) -> None:
        self._stats.at_work += 1
        try:
            await behave(answer)
        except asyncio.CancelledError:
            self._stats.cut += 1
        finally:
            self._stats.at_work -= 1


async def _serve(ports: int) -> None:
    loop = asyncio.get_running_loop()
    stats = Stats()
    servers = [await loop.create_server(lambda: FaultyEngine(stats), "127.0.0.1", 0) for _ in range(ports)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    for server in servers:
        server.close()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
