"""The streaming HTTP/1.1 client to engines: one request at a time per connection, connections used again.

The body is handed on as it arrives, from inside the event loop's read callback: no queue, no task switch, no
copy beyond the parser's. httptools does the framing; an answer that breaks it, or that ends before its framing
says so, becomes a GatewayError. Nothing here retries or decides.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from time import monotonic
from typing import cast

import httptools

from gateway import errors
from gateway.errors import GatewayError
from gateway.model import EndpointAddress, Headers, ResponseHead
from gateway.upstream.pool import IdlePool

Sink = Callable[[bytes, bytes | None], None]
"""Takes body bytes and, where they came as exactly one HTTP chunk, that chunk with its framing."""

MAX_HEAD_BYTES = 64 * 1024
"""Of one response head; Envoy's default is 60 KiB."""

MAX_STATUS = 599
"""Codes are 100 to 599 (RFC 9110 §15); the parser lets any three digits pass."""

EARLY_BODY_BYTES = 256 * 1024
"""Body bytes held when an engine answers faster than the request path takes the head up; then reading pauses."""


_KNOWN_SIZES = 4096


def _chunk_start(total_bytes: int) -> bytes:
    """How a read of that size begins if it is exactly one HTTP chunk; empty where no chunk has that size."""
    for digits in (1, 2, 3):
        size = total_bytes - digits - 4
        if size > 0 and len(b"%x" % size) == digits:
            return b"%x\r\n" % size
    return b""


_WHOLE_CHUNK = [_chunk_start(total_bytes) for total_bytes in range(_KNOWN_SIZES)]
"""By size of the read: formatting and comparing the size for each chunk would cost as much as parsing it."""


class UpstreamConnection(asyncio.Protocol):
    """One connection to an engine. Use: `send`, `await head()`, `await relay(sink)`, then `release` it."""

    def __init__(self, on_idle_close: Callable[[UpstreamConnection], None]) -> None:
        self._on_idle_close = on_idle_close
        self._transport: asyncio.Transport | None = None
        self.closed = False
        self._paused = False
        self.reused = False
        self.on_closed: Callable[[], object] | None = None
        """Called once when the connection is really gone."""
        self._loop = asyncio.get_running_loop()
        # One parser for all answers: only a connection whose last one ended cleanly is used again.
        self._parser = httptools.HttpResponseParser(self)
        self._head: asyncio.Future[ResponseHead] | None = None
        self._end: asyncio.Future[None] | None = None
        self._more: asyncio.Future[None] | None = None
        """Done when there is more of a body that nobody relays yet."""
        self._sink: Sink | None = None
        self._reset()

    def _reset(self) -> None:
        self._between_chunks = False
        self._headers: Headers = []
        self._head_bytes = 0
        self._body: list[bytes] = []
        self._early_bytes = 0
        self._answered = False
        self._refused = ""
        self._complete = False
        self._until_close = False
        self._keep_alive = False
        self._failure: GatewayError | None = None

    def send(self, request: bytes) -> None:
        """Writes one whole request."""
        assert self._transport is not None
        self._head = self._loop.create_future()
        self._transport.write(request)

    async def head(self) -> ResponseHead:
        """The head of the answer to what was sent. Raises GatewayError when no proper one comes back."""
        assert self._head is not None
        return await self._head

    async def opening(self, beyond_bytes: int) -> bytes:
        """The body so far, once it has more than `beyond_bytes` or has ended. For between `head` and `relay`.

        Raises GatewayError when it is cut short before.
        """
        while self._early_bytes <= beyond_bytes and not self._complete:
            if self._failure is not None:
                raise self._failure
            self._more = self._loop.create_future()
            await self._more
        return b"".join(self._body)

    def relay(self, sink: Sink) -> asyncio.Future[None]:
        """Hands every body byte to `sink`, starting now with what has arrived already.

        The future is done when the body is complete, and fails with GatewayError when it is cut short.
        """
        self._end = self._loop.create_future()
        self._sink = sink
        self._flush()
        if self._complete:
            self._end.set_result(None)
        elif self._failure is not None:
            self._end.set_exception(self._failure)
        elif self._early_bytes > EARLY_BODY_BYTES:
            self.resume()
        self._more = None
        return self._end

    def pause(self) -> None:
        """Stops reading, so that the engine feels its client's slowness."""
        if self._transport is not None and not self.closed:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and self._transport is not None and not self.closed:
            self._paused = False
            self._transport.resume_reading()

    def fail(self, error: GatewayError) -> None:
        """Ends the request in flight with `error` and cuts the connection."""
        self._failure = self._failure or error
        for waiter in (self._end, self._more) if self._answered else (self._head,):
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
        self.abort()

    def abort(self) -> None:
        """Cuts the connection at once; the engine sees its client leave and stops generating."""
        self.closed = True
        self._sink = None
        if self._transport is not None:
            self._transport.abort()

    @property
    def complete(self) -> bool:
        """The whole answer has arrived."""
        return self._complete

    @property
    def reusable(self) -> bool:
        """Whether the exchange ended exactly where its framing says and both sides keep the connection."""
        return self._complete and self._keep_alive and not self.closed

    def rest(self) -> None:
        """Makes the connection ready for its next request."""
        self._sink = self._head = self._end = self._more = None
        self.reused = True
        self._reset()
        # The last bytes of an answer may have filled the client's buffer; idle, it must hear the engine leave.
        self.resume()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._between_chunks and len(data) < _KNOWN_SIZES:
            # The ordinary read of a stream is one whole chunk, framed as every server frames it. Recognising it here
            # spares the parser, which stays where it is: between two chunks.
            start = _WHOLE_CHUNK[len(data)]
            if start and data.startswith(start) and data.endswith(b"\r\n") and self._sink is not None:
                self._sink(data[len(start) : -2], data)
                return
        if self._head is None or self._complete:
            # Bytes that answer nothing: the framing of this connection can no longer be trusted.
            self.abort()
            self._on_idle_close(self)
            return
        self._parse(data)
        if self.closed:
            return
        if not self._answered:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._broken(f"a response head of more than {MAX_HEAD_BYTES} bytes")
        elif self._sink is not None:
            self._flush()
            self._settle()
        else:
            self._settle()
            if self._early_bytes > EARLY_BODY_BYTES:
                self.pause()

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                self._broken(str(error) or type(error).__name__)
            # Whatever follows a complete answer is not part of it.
            self._keep_alive = False
        if self._refused:
            self._broken(self._refused)

    def _settle(self) -> None:
        """Wakes whoever awaits more of the body, or its end once it is there."""
        if self._more is not None and not self._more.done():
            self._more.set_result(None)
        if self._complete and self._end is not None and not self._end.done():
            self._end.set_result(None)

    def eof_received(self) -> None:
        """Closes our side too; `connection_lost` judges what that means for a request in flight."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        if self.on_closed is not None:
            self.on_closed()
        if self._head is None:
            self._on_idle_close(self)
        elif not self._answered:
            stale = self.reused and self._head_bytes == 0
            self.fail(errors.stale_connection() if stale else errors.closed_before_response())
        elif not self._complete:
            if self._until_close and exc is None:
                self._complete = True
                self._settle()
            else:
                self.fail(errors.truncated("the connection was reset" if exc else "the connection was closed"))

    def _flush(self) -> None:
        if self._body and self._sink is not None:
            data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
            self._body.clear()
            self._sink(data, None)

    def _broken(self, what: str) -> None:
        self.fail(errors.truncated(f"bad framing, {what}") if self._answered else errors.garbage(what))

    # httptools callbacks

    def on_message_begin(self) -> None:
        if self._complete:
            # More than was asked for: whatever it is, it is not this request's answer.
            self._keep_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._complete and not self._answered:
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return
        if status > MAX_STATUS:
            self._refused = f"status {status}"
            return
        assert self._head is not None
        length: int | None = None
        chunked = False
        for name, value in self._headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"transfer-encoding":
                chunked = True
        self._until_close = length is None and not chunked and status not in (204, 304)
        self._keep_alive = not self._until_close and self._parser.should_keep_alive()
        self._answered = True
        self._between_chunks = chunked
        if not self._head.done():
            self._head.set_result(ResponseHead(status=status, headers=self._headers, length=length))

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._body.append(data)
            if self._sink is None:
                self._early_bytes += len(data)

    def on_chunk_header(self) -> None:
        self._between_chunks = False

    def on_chunk_complete(self) -> None:
        self._between_chunks = self._answered and not self._complete

    def on_message_complete(self) -> None:
        self._between_chunks = False
        if self._answered:
            self._complete = True
        else:
            self._headers = []


class UpstreamClient:
    """Connections to every endpoint, opened when needed and kept while fresh."""

    def __init__(self) -> None:
        self._idle: dict[EndpointAddress, IdlePool[UpstreamConnection]] = {}
        self._tls = ssl.create_default_context()
        self._sweep: asyncio.TimerHandle | None = None

    def idle(self, address: EndpointAddress) -> UpstreamConnection | None:
        """A kept-alive connection to `address`, if a fresh one is at hand."""
        pool = self._idle.get(address)
        while pool:
            connection = pool.take(monotonic())
            if connection is None:
                break
            if not connection.closed:
                return connection
        return None

    async def connect(self, address: EndpointAddress, timeout_s: float) -> UpstreamConnection:
        """A new connection. Raises GatewayError when none can be had in time."""
        loop = asyncio.get_running_loop()
        pool = self._idle.setdefault(address, IdlePool())
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: UpstreamConnection(pool.discard),
                    address.host,
                    address.port,
                    ssl=self._tls if address.tls else None,
                )
        except TimeoutError:
            raise errors.connect_timeout(timeout_s) from None
        except OSError as error:
            raise errors.connect_failed(error.strerror or type(error).__name__) from None
        return connection

    def release(self, address: EndpointAddress, connection: UpstreamConnection) -> None:
        """Takes a connection back after its exchange: kept if it can serve another, cut otherwise."""
        if not connection.reusable:
            connection.abort()
            return
        connection.rest()
        self._idle[address].put(connection, monotonic())
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(1.0, self._close_expired)

    def close(self) -> None:
        """Closes every idle connection; those in use belong to their requests."""
        if self._sweep is not None:
            self._sweep.cancel()
        for pool in self._idle.values():
            for connection in pool.expired(float("inf")):
                connection.abort()

    def _close_expired(self) -> None:
        for pool in self._idle.values():
            for connection in pool.expired(monotonic()):
                connection.abort()
        waiting = any(len(pool) for pool in self._idle.values())
        self._sweep = asyncio.get_running_loop().call_later(1.0, self._close_expired) if waiting else None
