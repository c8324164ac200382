"""One HTTP exchange over ASGI: request in, response out, and evidence of the bytes written.

It hides ASGI messages, the headers every response carries, and the digest of a response's body. It knows
neither engines nor JSON.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from protocol.records import StreamRecord, encode_line

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON = b"application/json"
SSE = b"text/event-stream; charset=utf-8"
Header = tuple[bytes, bytes]

_VARY = (b"vary", b"Origin")


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


class Recorder:
    """Appends records to a file, each in one write, so every complete line survives a kill."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def add(self, record: StreamRecord) -> None:
        os.write(self._file, encode_line(record))

    def close(self) -> None:
        os.close(self._file)


class Exchange:
    """A request and the response to it. `record` is called at the end of each answer, if at all."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self._headers: list[Header] = scope["headers"]
        self._receive = receive
        self._send = send
        self._digest = hashlib.sha256()
        self._bytes = 0
        self.status: int | None = None
        self.completed = False

    def header(self, name: bytes) -> str | None:
        """Value of a request header, by its lower-case name."""
        return next((value.decode("latin-1") for key, value in self._headers if key == name), None)

    async def body(self) -> bytes:
        """The whole request body. Raises ClientGone."""
        parts: list[bytes] = []
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                return b"".join(parts)

    async def client_leaves(self) -> None:
        """Return when the client closes its connection. Only after `body`."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def start(self, status: int, content_type: bytes, *more: Header) -> None:
        """Begin a response whose length is not known."""
        self.status = status
        headers = [(b"content-type", content_type), _VARY, *more]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes) -> None:
        """One chunk; waits while the client does not read."""
        self._count(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        self.completed = True

    async def reply(self, status: int, body: bytes = b"", content_type: bytes | None = JSON, *more: Header) -> None:
        """A whole response; some of SGLang's have no media type."""
        self.status = status
        self._count(body)
        kind = [(b"content-type", content_type)] if body and content_type else []
        headers = [(b"content-length", b"%d" % len(body)), *kind, _VARY, *more]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.completed = True

    def record(self, request_id: str | None) -> StreamRecord | None:
        """What was written; None when there was no response."""
        if self.status is None:
            return None
        return StreamRecord(
            trace_id=_trace_id(self.header(b"traceparent")),
            request_id=request_id,
            path=self.path,
            status=self.status,
            bytes=self._bytes,
            sha256=self._digest.hexdigest(),
            completed=self.completed,
        )

    def _count(self, data: bytes) -> None:
        self._digest.update(data)
        self._bytes += len(data)


def _trace_id(traceparent: str | None) -> str | None:
    """Trace id of a W3C traceparent (`00-<32 hex>-<16 hex>-<2 hex>`)."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) >= 4 and len(parts[1]) == 32 else None
