"""The values and the one interface that the rooms of the gateway share. No behaviour beyond the trivial.

`Downstream` is the client as the request path sees it; `server.py` implements it on uvicorn's transport and
`asgi.py` on any ASGI server.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Headers = list[tuple[bytes, bytes]]
"""Header fields in order; names in lower case, duplicates kept."""


class RequestHead:
    """What the client asked for; `target` is the request target as sent, path and query.

    `fields` finds a header by its name in lower case; of a repeated one it has the last.
    """

    __slots__ = ("fields", "headers", "path", "target")

    def __init__(self, *, path: str, target: bytes, headers: Headers) -> None:
        self.path = path
        self.target = target
        self.headers = headers
        self.fields = dict(headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """An engine's answer before its body. `length` is None unless Content-Length was given."""

    status: int
    headers: Headers
    length: int | None

    def header(self, name: bytes) -> bytes | None:
        """First value of the field `name` (lower case)."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointAddress:
    """Where one engine listens. `base_path` has no trailing slash; `authority` is the Host header."""

    name: str
    host: str
    port: int
    tls: bool
    base_path: bytes
    authority: bytes

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.authority.decode()}{self.base_path.decode()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSeries:
    """What an engine kind calls its load on `/metrics`, names as they are scraped."""

    running: str
    waiting: str
    kv_usage: str
    prefix_hits: str
    prefix_queries: str
    rank_label: str
    """Tells data-parallel ranks apart, each with a queue and a cache of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """What an engine says of itself; None where it says nothing."""

    running: float | None
    """Requests that it works on, in all ranks."""
    waiting: float | None
    """Requests in its queues."""
    kv_usage: float | None
    """Share of the KV cache in use, 0 to 1, of the fullest rank."""
    prefix_hit_tokens: float | None
    """Prompt tokens found in the prefix cache since the engine started, out of `prefix_query_tokens`."""
    prefix_query_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """What the gateway must know of an engine kind (`reference`: each kind's own module)."""

    name: str
    health_path: str
    """Answers at once, 200 when the engine can take requests."""
    prefill: bool
    """Chat requests may end in an assistant message to be continued (`continue_final_message`)."""
    load: LoadSeries | None
    """None for a kind of which no series is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSnapshot:
    """What the admin API and the metrics show of one endpoint."""

    pool: str
    name: str
    url: str
    engine: str
    healthy: bool
    draining: bool
    breaker: str
    """`closed`, `open` or `half_open`."""
    in_flight: int
    last_failure: str | None
    models: list[dict[str, object]]
    load: EngineLoad | None
    """As last read; None when it cannot be."""


class Downstream(Protocol):
    """One request's client. Everything but `read_body` is synchronous and never blocks.

    Order of calls: `read_body`, then `start` once, `write` and `flush` any number of times, then `end` or `abort`.
    Calls after the client has gone are ignored. At most one of `on_gone`'s calls happens.
    """

    head: RequestHead
    gone: bool
    started: bool
    on_gone: Callable[[], object]
    """Called once when the client leaves before `end`."""
    on_flow: Callable[[bool], None]
    """Called with True when the client reads too slowly, with False when it has caught up."""

    async def read_body(self, limit_bytes: int, timeout_s: float) -> bytes:
        """The whole request body. Raises GatewayError when it is too large or too slow."""

    def start(self, status: int, headers: Headers) -> None:
        """Takes the response head; it leaves with the next write, `flush` or `end`.

        Framing is the downstream's own: pass Content-Length or nothing.
        """

    @property
    def paused(self) -> bool:
        """The client reads too slowly at the moment."""

    @property
    def chunk_writer(self) -> Callable[[bytes], None] | None:
        """After `start`: takes body bytes that are framed as one HTTP chunk already, once the head has left.

        None where this downstream does not send chunks. Not to be called once the client has gone.
        """

    def write(self, data: bytes) -> None:
        """Sends body bytes now."""

    def flush(self) -> None:
        """Sends the head now if it is still here."""

    def end(self) -> None:
        """The response is complete."""

    def abort(self) -> None:
        """Cuts the connection, so that the client cannot take what it has for a complete response."""
