"""The engine behind every contestant: small answers at once, streams of the shape their prompt asks for.

A raw asyncio.Protocol on uvloop, so that it costs less than any proxy in front of it. Run as its own process
(`python -m benchmarks.engine`): prints its port, serves loopback only, ends when its standard input closes.
It holds back when a reader is slow, stops a stream whose reader left, and says at GET /taken how many bytes of the
streams now open it got rid of.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import cast

import httptools
import uvloop

from benchmarks import wire

_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1796082118,"owned_by":"vllm"}]}'
_GENERATES = b"/v1/chat/completions"
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_STREAM_END = b"%x\r\n%b\r\n0\r\n\r\n" % (len(wire.DONE), wire.DONE)


def _answer(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %b\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


_SMALL = _answer(wire.SMALL_ANSWER)
_GETS = {b"/health": _answer(b""), b"/v1/models": _answer(_MODELS)}
_NOT_FOUND = _answer(b'{"object":"error","message":"Not Found","type":"NotFoundError","code":404}', b"404 Not Found")


class EngineProtocol(asyncio.Protocol):
    """One connection: requests one after the other, each answered before the next is read."""

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, streaming: set[EngineProtocol]) -> None:
        """`streaming` holds every connection with an unfinished stream."""
        self._loop = loop
        self._streaming = streaming
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._timer: asyncio.Handle | None = None
        self._paused = False
        self._index = 0
        self._shape = wire.SMALL
        self._written_bytes = 0
        self._due_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._streaming.discard(self)
        if self._timer:
            self._timer.cancel()

    @property
    def taken_bytes(self) -> int:
        """How much of the stream the operating system has taken: the reader's side has it, or TCP between them."""
        return self._written_bytes - self._transport.get_write_buffer_size()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._index < self._shape.chunks:
            self._schedule()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        if len(self._body) < wire.SHAPE_WITHIN_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._transport.write(self._get())
            return
        if self._url != _GENERATES:
            self._transport.write(_NOT_FOUND)
            return
        self._shape = wire.shape_of(self._body)
        if not self._shape.chunks:
            self._transport.write(_SMALL)
            return
        self._index = 0
        self._due_s = self._loop.time() + self._shape.ttft_ms / 1e3
        self._streaming.add(self)
        self._written_bytes = 0
        self._write(_STREAM_HEAD)
        self._schedule()

    def _get(self) -> bytes:
        if self._url == b"/taken":
            return _answer(b"%d" % sum(stream.taken_bytes for stream in self._streaming))
        return _GETS.get(self._url, _NOT_FOUND)

    def _write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)

    def _schedule(self) -> None:
        """Chunks are due at absolute times, so a late one does not delay those after it."""
        if self._timer:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due_s, self._send_chunk)

    def _send_chunk(self) -> None:
        shape = self._shape
        event = wire.chunk(self._index, shape.chunks, time.monotonic_ns(), shape.pad_bytes)
        self._write(b"%x\r\n%b\r\n" % (len(event), event))
        self._index += 1
        self._due_s += shape.gap_ms / 1e3
        if self._index == shape.chunks:
            self._write(_STREAM_END)
            self._streaming.discard(self)
        elif not self._paused:
            self._schedule()


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    streaming: set[EngineProtocol] = set()
    server = await loop.create_server(lambda: EngineProtocol(loop, streaming), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
