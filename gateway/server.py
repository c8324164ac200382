"""uvicorn with the request path underneath: POST /v1/* goes to the proxy, everything else to FastAPI.

This is the one module that touches uvicorn's internals, which is why uvicorn is pinned; `tests/gateway/
test_server.py` is the contract that an upgrade has to pass. Handled here, below ASGI, a request costs no scope,
no cycle and no task switch per chunk, and a client that leaves is noticed in every phase, since the transport
itself says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway import errors
from gateway.config import Config, DrainConfig
from gateway.model import Headers, RequestHead
from gateway.proxy import Proxy

LINGER_S = 2.0
"""How long a refused client may go on sending its body before the connection is cut under it. Closing at once
would reset the connection and could destroy the refusal on its way; nginx lingers likewise."""

UNSENT_BYTES = 4 * 1024
"""What may wait for a client beyond the kernel's buffer before its engine is held back. With the one read that may be
on its way (uvloop reads 256,000 bytes at most) a client that stops reading makes us hold less than 256 KiB."""

_log = logging.getLogger("weir.server")


def _ignore(*_: object) -> None:
    pass


class HttpDownstream:
    """One request of an HTTP/1.1 connection (`gateway.model.Downstream`)."""

    __slots__ = (
        "_arrived",
        "_body",
        "_chunked",
        "_head",
        "_protocol",
        "_received_bytes",
        "_transport",
        "ended",
        "gone",
        "head",
        "keep_alive",
        "on_flow",
        "on_gone",
        "started",
        "whole",
    )

    def __init__(self, protocol: WeirProtocol, head: RequestHead, *, keep_alive: bool) -> None:
        self.head = head
        self.keep_alive = keep_alive
        self.gone = False
        self.started = False
        self.ended = False
        self.whole = False
        """The request has arrived to its end."""
        self.on_gone: Callable[[], object] = _ignore
        self.on_flow: Callable[[bool], None] = _ignore
        self._protocol = protocol
        self._transport = protocol.transport
        self._body: list[bytes] = []
        self._received_bytes = 0
        self._chunked = False
        self._head = b""
        """The response head while it waits for the first body bytes, to leave in one write with them."""
        self._arrived: asyncio.Event | None = None

    async def read_body(self, limit_bytes: int, timeout_s: float) -> bytes:
        length = self.head.fields.get(b"content-length")
        if length is not None and int(length) > limit_bytes:
            raise errors.body_too_large(limit_bytes)
        if not self.whole:
            if b"expect" in self.head.fields:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await self._wait_for_body(limit_bytes, timeout_s)
        if self._received_bytes > limit_bytes:
            raise errors.body_too_large(limit_bytes)
        return self._body[0] if len(self._body) == 1 else b"".join(self._body)

    async def _wait_for_body(self, limit_bytes: int, timeout_s: float) -> None:
        self._arrived = asyncio.Event()
        try:
            async with asyncio.timeout(timeout_s):
                while not self.whole and self._received_bytes <= limit_bytes:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise errors.slow_request(timeout_s) from None

    def start(self, status: int, fields: Headers) -> None:
        if self.gone:
            return
        self.started = True
        if not self.whole:
            self.keep_alive = False
        parts = [STATUS_LINE[status]]
        self._chunked = True
        for name, value in fields:
            if name == b"content-length":
                self._chunked = False
            parts += (name, b": ", value, b"\r\n")
        if status in (204, 304):
            self._chunked = False
        elif self._chunked and self._protocol.http_1_0:
            # The end of the connection is the end of the body: HTTP/1.0 knows no chunks.
            self._chunked = self.keep_alive = False
        elif self._chunked:
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self.keep_alive:
            parts.append(b"connection: close\r\n")
        elif self._protocol.http_1_0:
            parts.append(b"connection: keep-alive\r\n")
        parts.append(b"\r\n")
        self._head = b"".join(parts)

    @property
    def paused(self) -> bool:
        return self._protocol.flow.write_paused

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        return self._transport.write if self._chunked else None

    def write(self, data: bytes) -> None:
        if self.gone:
            return
        if self._chunked:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def flush(self) -> None:
        if self._head and not self.gone:
            self._transport.write(self._head)
            self._head = b""

    def end(self) -> None:
        if self.gone:
            return
        if self._chunked:
            self._transport.write(self._head + b"0\r\n\r\n")
            self._head = b""
        self.flush()
        self._finish()

    def abort(self) -> None:
        if not self.gone:
            self._finish()
            self._transport.abort()

    def _finish(self) -> None:
        self.ended = True
        self._body.clear()
        # Nothing may keep a finished request alive: without this, its state and this object would hold each other.
        self.on_gone = self.on_flow = _ignore
        self._protocol.on_downstream_end(self)

    # What the protocol tells

    def body_arrived(self, data: bytes) -> None:
        if self.ended:
            return
        self._body.append(data)
        self._received_bytes += len(data)
        if self._arrived is not None:
            self._arrived.set()

    def request_complete(self) -> None:
        self.whole = True
        if self._arrived is not None:
            self._arrived.set()

    def lost(self) -> None:
        if not self.ended and not self.gone:
            self.gone = True
            self.on_gone()
            self.on_gone = self.on_flow = _ignore


class WeirProtocol(HttpToolsProtocol):
    """One client connection. Requests on it are answered one after the other.

    A request that is pipelined behind one still being answered is not taken up: the connection closes after the
    current answer, and the client sends it again (RFC 9112 §9.3.2). No HTTP client library pipelines POSTs.
    """

    def __init__(self, proxy: Proxy, **uvicorn_arguments: Any) -> None:
        super().__init__(**uvicorn_arguments)
        self._proxy = proxy
        self._current: HttpDownstream | None = None
        self._skipping = False
        self.http_1_0 = False
        self._last_used_s = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=UNSENT_BYTES)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._current is not None:
            self._current.lost()
            self._current = None
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._current is not None:
            self._current.on_flow(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._current is not None:
            self._current.on_flow(False)

    def shutdown(self) -> None:
        if self._current is None or self._current.ended:
            super().shutdown()
        else:
            self._current.keep_alive = False

    def send_400_response(self, msg: str) -> None:
        if self._current is not None and not self._current.ended:
            # Garbage behind a request that is being answered: that answer is finished, then the connection closes.
            self._current.keep_alive = False
        else:
            super().send_400_response(msg)

    # httptools callbacks

    def on_message_begin(self) -> None:
        current = self._current
        self._skipping = (current is not None and not current.ended) or self._asgi_busy()
        if self._skipping:
            if current is not None and not current.ended:
                current.keep_alive = False
            else:
                self.cycle.keep_alive = False
            return
        self._current = None
        self.url = b""
        self.headers = []

    def on_url(self, url: bytes) -> None:
        if not self._skipping:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._skipping:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._skipping:
            return
        if self.url.startswith(b"/v1/") and self.parser.get_method() == b"POST":
            self.http_1_0 = self.parser.get_http_version() == "1.0"
            path, _, _ = self.url.partition(b"?")
            head = RequestHead(path=path.decode("latin-1"), target=self.url, headers=self.headers)
            self._current = HttpDownstream(self, head, keep_alive=self.parser.should_keep_alive())
            self._proxy.accept(self._current)
        else:
            self._hand_to_asgi()

    def on_body(self, body: bytes) -> None:
        if self._skipping:
            return
        if self._current is not None:
            self._current.body_arrived(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._skipping:
            return
        if self._current is None:
            super().on_message_complete()
            return
        self._current.request_complete()
        if self._current.ended:
            self.on_downstream_end(self._current)

    def on_downstream_end(self, downstream: HttpDownstream) -> None:
        """The answer is written: keep the connection for the next request, or close it."""
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if downstream.keep_alive:
            self._last_used_s = self.loop.time()
            if self._idle_timer is None:
                self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._close_if_idle)
        elif downstream.whole:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(LINGER_S, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        lingering = self._current is not None and self._current.ended and not self._current.whole
        if not lingering:
            super().data_received(data)
            return
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.timeout_keep_alive_task is None and not self.transport.is_closing():
            self.timeout_keep_alive_task = timer

    def _close_if_idle(self) -> None:
        """One timer per connection, not one per request: when it fires it looks whether its time has really come."""
        self._idle_timer = None
        busy = (self._current is not None and not self._current.ended) or self._asgi_busy()
        left_s = self._last_used_s + self.timeout_keep_alive - self.loop.time()
        if busy or left_s > 0:
            delay_s = self.timeout_keep_alive if busy else left_s
            self._idle_timer = self.loop.call_later(delay_s, self._close_if_idle)
        elif not self.transport.is_closing():
            self.transport.close()

    def _asgi_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _hand_to_asgi(self) -> None:
        self._last_used_s = self.loop.time()
        url, fields = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in fields:
            super().on_header(name, value)
        super().on_headers_complete()


class WeirServer(uvicorn.Server):
    """uvicorn's life cycle, with a drain between the signal and the closing of connections.

    The first SIGTERM or SIGINT drains; another one ends at once what is still in flight.
    """

    def __init__(self, uvicorn_config: uvicorn.Config, drain: DrainConfig, proxy: Proxy) -> None:
        super().__init__(uvicorn_config)
        self._drain = drain
        self._proxy = proxy
        self._loop: asyncio.AbstractEventLoop | None = None
        self.on_started: Callable[[], object] = _ignore
        """Called once requests are being taken and signals are heard."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Not ready at once; after the settle time no new connection; then what is in flight gets its time."""
        _log.info("draining: %d requests in flight", len(self._proxy.live))
        self._proxy.ready = False
        await asyncio.sleep(self._drain.settle_s)
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._proxy.drain(self._drain.timeout_s)
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._proxy.interrupt_all)
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, but a drain that a signal asked for is a success: the signal is not raised again."""
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def make_server(app: ASGIApp, config: Config, proxy: Proxy) -> WeirServer:
    """The server of one process, not yet started; `app` answers what the proxy does not."""
    uvicorn_config = uvicorn.Config(
        app,
        http=partial(WeirProtocol, proxy),  # type: ignore[arg-type]
        ws="none",
        loop="uvloop",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_keep_alive=max(1, round(config.listen.keep_alive_s)),
        timeout_graceful_shutdown=2,
    )
    return WeirServer(uvicorn_config, config.drain, proxy)
