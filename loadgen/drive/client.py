"""The load generator's own HTTP/1.1 client: one request out in one write, every read stamped.

Each read of a response is stamped with the monotonic clock before anything looks at it, and its body bytes
are kept; all other work waits until the response has ended. Connections are kept alive and taken last-in
first-out. The client never limits how many requests are in flight, never retries an answered request and
never follows redirects.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import httptools

from protocol.records import RequestErrorKind, RequestOutcome

IDLE_LIMIT_S = 4.0
"""vLLM and SGLang close a connection after 5 s idle; reusing one later than this races that close."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where requests go, from a URL without `/v1`."""

    tls: bool
    host: str
    port: int
    path: str
    """Prefix of every path, without a slash at its end."""

    @property
    def authority(self) -> str:
        """Value of the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"


def parse_target(url: str) -> Target:
    """Reads `http(s)://host[:port][/prefix]`; a final `/v1` is dropped. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
        raise ValueError(f"URL {url!r}: expected http(s)://host[:port][/prefix]")
    tls = parts.scheme == "https"
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Target(tls=tls, host=parts.hostname, port=parts.port or (443 if tls else 80), path=path)


class Exchange:
    """One request and what came back; every time is `time.monotonic_ns()`."""

    __slots__ = (
        "attempts",
        "connected_ns",
        "dequeued_ns",
        "end_ns",
        "error",
        "error_kind",
        "first_byte_ns",
        "headers",
        "headers_ns",
        "new_connection",
        "outcome",
        "read_ns",
        "reads",
        "secured_ns",
        "sent_ns",
        "status",
        "wire",
    )

    def __init__(self, wire: bytes) -> None:
        self.wire = wire
        """Head and body of the request."""
        self.dequeued_ns: int | None = None
        """When its turn came; `send` sets it unless the caller has."""
        self.connected_ns: int | None = None
        """When a new TCP connection was there; None on a kept-alive one."""
        self.secured_ns: int | None = None
        """When its TLS handshake was done."""
        self.sent_ns: int | None = None
        """The first attempt's write, also when there was another."""
        self.first_byte_ns: int | None = None
        self.headers_ns: int | None = None
        self.end_ns: int | None = None
        self.status: int | None = None
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case."""
        self.read_ns: list[int] = []
        """When each of `reads` came. Two flat lists: a pair for each read would give the garbage collector work."""
        self.reads: list[bytes] = []
        """Body bytes of every read that had any, without HTTP framing."""
        self.outcome: RequestOutcome | None = None
        """None while going on; `ok` when a response ended as its framing says, whatever its status."""
        self.error: str | None = None
        self.error_kind: RequestErrorKind | None = None
        self.new_connection = False
        self.attempts = 1
        """2 when it was sent again because a kept-alive connection died without a byte of response."""

    def end(self, outcome: RequestOutcome, error: str | None = None, kind: RequestErrorKind | None = None) -> None:
        """Notes how and when the exchange ended; the first call wins."""
        if self.outcome is None:
            self.end_ns = time.monotonic_ns()
            self.outcome = outcome
            self.error = error
            self.error_kind = kind

    def header(self, name: bytes) -> bytes | None:
        """Value of the first header called `name` (lower case)."""
        return next((value for key, value in self.headers if key == name), None)

    def body(self) -> bytes:
        return b"".join(self.reads)


class _Connection(asyncio.Protocol):
    """One connection; carries one exchange at a time. Callbacks named `on_*` are httptools'."""

    def __init__(self, on_idle: Callable[[_Connection], None], on_lost: Callable[[_Connection], None]) -> None:
        self._on_idle = on_idle
        self._on_lost = on_lost
        self._transport: asyncio.Transport
        self._parser: httptools.HttpResponseParser
        self._exchange: Exchange | None = None
        self._ended: asyncio.Future[None]
        self._now_ns = 0
        self._body: list[bytes] = []
        self._heard = False
        self._framed = False
        self._whole = False
        self._surplus = False
        self._reusable = False
        self.idle_since_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports behave as asyncio.Transport without being one.
        self._transport = cast("asyncio.Transport", transport)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: Exchange) -> asyncio.Future[None]:
        """Writes the request; the future ends with the response or with the connection."""
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._heard = self._framed = self._whole = self._surplus = self._reusable = False
        if exchange.sent_ns is None:
            exchange.sent_ns = time.monotonic_ns()
        if self.closing:
            # The peer left between accepting and now; no callback will tell.
            self._finish(exchange, "error", "connection closed before the request")
        else:
            self._transport.write(exchange.wire)
        return self._ended

    def drop(self) -> None:
        """Closes at once; an exchange under way is left as it is."""
        self._exchange = None
        self._transport.abort()

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        self._now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self._transport.abort()
            return
        if not self._heard:
            self._heard = True
            exchange.first_byte_ns = self._now_ns
        fault = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            fault = f"not an HTTP/1.1 response: {error}"
        if self._body:
            exchange.read_ns.append(self._now_ns)
            exchange.reads.append(self._body[0] if len(self._body) == 1 else b"".join(self._body))
            self._body.clear()
        if self._whole:
            self._finish(exchange, "ok", None)
        elif fault is not None:
            self._finish(exchange, "error", fault)

    def on_message_begin(self) -> None:
        # A second answer to one request: what it says is nobody's, and neither is the connection any more.
        self._surplus = self._whole

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._exchange is not None and not self._surplus:
            self._exchange.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange = self._exchange
        if exchange is None or self._surplus:
            return
        status = self._parser.get_status_code()
        if status < 200:
            exchange.headers.clear()
            return
        exchange.status = status
        exchange.headers_ns = self._now_ns
        names = {name for name, _ in exchange.headers}
        self._framed = b"content-length" in names or b"transfer-encoding" in names

    def on_body(self, body: bytes) -> None:
        if not self._surplus:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self._exchange is not None and self._exchange.status is not None:
            self._whole = True
            self._reusable = self._parser.should_keep_alive()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)
        exchange = self._exchange
        if exchange is None:
            return
        cause = "reset" if exc is not None else "closed"
        if exchange.status is None:
            stale = not self._heard and not exchange.new_connection
            self._finish(exchange, None if stale else "error", f"connection {cause} before the response head")
        elif exc is None and not self._framed:
            self._finish(exchange, "ok", None)
        else:
            self._finish(exchange, "truncated", f"connection {cause} inside the body")

    def _finish(self, exchange: Exchange, outcome: RequestOutcome | None, error: str | None) -> None:
        """Gives the connection back when it can carry another request. No outcome: the client decides."""
        if outcome is not None:
            exchange.end(outcome, error, None if outcome == "ok" else "connection")
        self._exchange = None
        if not self._ended.done():
            self._ended.set_result(None)
        if self._reusable and not self._surplus and not self.closing and not self._transport.get_write_buffer_size():
            self._on_idle(self)
        else:
            self._transport.abort()


class Client:
    """Sends exchanges to one target, as many at once as are asked for.

    The host name is resolved once, by `open`; its addresses are tried in order for every new connection.
    """

    def __init__(self, target: Target, addresses: list[str]) -> None:
        self._target = target
        self._addresses = addresses
        self._tls = ssl.create_default_context() if target.tls else None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()

    @classmethod
    async def open(cls, target: Target) -> Client:
        """Raises OSError when the host has no address."""
        found = await asyncio.get_running_loop().getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        return cls(target, list(dict.fromkeys(str(address[0]) for *_, address in found)))

    async def send(self, exchange: Exchange) -> None:
        """Runs one exchange to its end and notes it there; never raises for what the network does.

        A cancelled call closes its connection and leaves the exchange without an outcome.
        """
        if exchange.dequeued_ns is None:
            exchange.dequeued_ns = time.monotonic_ns()
        connection = self._take_idle()
        exchange.new_connection = connection is None
        try:
            if connection is None:
                connection = await self._connect(exchange)
            await connection.send(exchange)
            if exchange.outcome is None:
                exchange.new_connection = True
                exchange.attempts = 2
                connection = await self._connect(exchange)
                await connection.send(exchange)
        except OSError as error:
            exchange.end("error", f"connect: {error}", "connect")
        except asyncio.CancelledError:
            if connection is not None:
                connection.drop()
            raise

    def close(self) -> None:
        """Closes every connection, idle or not."""
        for connection in list(self._open):
            connection.drop()

    def _take_idle(self) -> _Connection | None:
        """The connection used last. When that one has been idle too long, so have all others."""
        oldest_s = asyncio.get_running_loop().time() - IDLE_LIMIT_S
        while self._idle:
            connection = self._idle.pop()
            if connection.idle_since_s >= oldest_s and not connection.closing:
                return connection
            connection.drop()
        return None

    async def _connect(self, exchange: Exchange) -> _Connection:
        """A new connection; its marks are the exchange's, unless that has been sent before."""
        failure: OSError | None = None
        for address in self._addresses:
            try:
                connected_ns, connection = await self._connect_to(address)
            except OSError as error:
                failure = error
                continue
            if exchange.sent_ns is None:
                exchange.connected_ns = connected_ns
                exchange.secured_ns = time.monotonic_ns() if self._tls else None
            self._open.add(connection)
            return connection
        raise failure or OSError(f"{self._target.host} has no address")

    async def _connect_to(self, address: str) -> tuple[int, _Connection]:
        """When the TCP connection was there, and the connection, ready to be written to."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            _, connection = await loop.create_connection(self._new, address, self._target.port)
            return time.monotonic_ns(), connection
        # In two steps, so that the handshake has its own time.
        tcp = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        try:
            tcp.setblocking(False)
            await loop.sock_connect(tcp, (address, self._target.port))
            connected_ns = time.monotonic_ns()
            _, connection = await loop.create_connection(
                self._new, sock=tcp, ssl=self._tls, server_hostname=self._target.host
            )
        except BaseException:
            tcp.close()
            raise
        return connected_ns, connection

    def _new(self) -> _Connection:
        return _Connection(self._keep, self._forget)

    def _keep(self, connection: _Connection) -> None:
        connection.idle_since_s = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _forget(self, connection: _Connection) -> None:
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)


def raise_open_files_limit() -> int:
    """Raises the soft limit on open files to the hard one and returns it: the most connections at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
