"""The same proxy behind plain ASGI, for other servers and for tests: slower, equal in behaviour.

A server below ASGI tells of a client's leaving only to whoever awaits `receive`, so one task does nothing else
from the first phase on. Writes are handed to another one; when it falls behind, the engine is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import errors
from gateway.model import Headers, RequestHead
from gateway.proxy import Proxy

HIGH_WATER_BYTES = 64 * 1024
"""Unsent bytes above which the engine is paused, asyncio's own default for a transport."""


class AsgiDownstream:
    """One request of an ASGI server (`gateway.model.Downstream`)."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("raw_path") or scope["path"].encode()
        target = path + b"?" + scope["query_string"] if scope["query_string"] else path
        self.head = RequestHead(path=scope["path"], target=target, headers=list(scope["headers"]))
        self.gone = False
        self.started = False
        self.on_gone: Callable[[], object] = lambda: None
        self.on_flow: Callable[[bool], None] = lambda paused: None
        self.chunk_writer = None
        self._receive = receive
        self._send = send
        self._body: list[bytes] = []
        self._received_bytes = 0
        self._whole = False
        self._arrived = asyncio.Event()
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue()
        self._unsent_bytes = 0
        self.paused = False
        self._ended = False

    async def read_body(self, limit_bytes: int, timeout_s: float) -> bytes:
        try:
            async with asyncio.timeout(timeout_s):
                while not self._whole and self._received_bytes <= limit_bytes:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise errors.slow_request(timeout_s) from None
        if self._received_bytes > limit_bytes:
            raise errors.body_too_large(limit_bytes)
        return b"".join(self._body)

    def start(self, status: int, fields: Headers) -> None:
        self.started = True
        self._outgoing.put_nowait(
            {"type": "http.response.start", "status": status, "headers": fields, "trailers": False}
        )

    def write(self, data: bytes) -> None:
        self._outgoing.put_nowait({"type": "http.response.body", "body": data, "more_body": True})
        self._unsent_bytes += len(data)
        if self._unsent_bytes > HIGH_WATER_BYTES and not self.paused:
            self.paused = True
            self.on_flow(True)

    def flush(self) -> None:
        """Nothing waits here: `start` has handed the head on."""

    def end(self) -> None:
        self._ended = True
        self._outgoing.put_nowait({"type": "http.response.body", "body": b"", "more_body": False})
        self._outgoing.put_nowait(None)

    def abort(self) -> None:
        # Returning without `more_body: False` is how an ASGI application cuts a response.
        self._ended = True
        self._outgoing.put_nowait(None)

    async def watch_client(self) -> None:
        """Takes in the body, then waits for the client to leave."""
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                if not self._ended:
                    self.gone = True
                    self._outgoing.put_nowait(None)
                    self.on_gone()
                return
            if message["type"] == "http.request":
                self._body.append(message.get("body", b""))
                self._received_bytes += len(self._body[-1])
                self._whole = not message.get("more_body", False)
                self._arrived.set()

    async def send_all(self) -> None:
        """Sends what was written, in order, until the end or the client's leaving."""
        while (message := await self._outgoing.get()) is not None:
            await self._send(message)
            if message["type"] == "http.response.body":
                self._unsent_bytes -= len(message["body"])
            if self.paused and self._unsent_bytes <= HIGH_WATER_BYTES // 4:
                self.paused = False
                self.on_flow(False)


class WeirAsgi:
    """The whole gateway as one ASGI application: POST /v1/* to the proxy, the rest to the control plane."""

    def __init__(self, proxy: Proxy, control: ASGIApp) -> None:
        self._proxy = proxy
        self._control = control

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].startswith("/v1/"):
            await self._control(scope, receive, send)
            return
        downstream = AsgiDownstream(scope, receive, send)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(downstream.watch_client())
            group.create_task(self._proxy.handle(downstream))
            await downstream.send_all()
            watching.cancel()
