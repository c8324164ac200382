"""One request on its way through the gateway: what is known of it so far, and the record made of it at the end.

Holds state and derives the record; it never moves a byte and never decides anything.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Iterable
from time import monotonic_ns
from typing import Protocol

from gateway.errors import GatewayError
from gateway.fleet import Endpoint, Pool
from gateway.model import Downstream
from gateway.upstream.client import UpstreamConnection
from protocol.openai import RequestPeek, answer_of
from protocol.records import GatewayOutcome, GatewayRecord
from protocol.stream import StreamResult, StreamWatch
from protocol.traceparent import TraceParent

MAX_JSON_BYTES = 4 * 1024 * 1024
"""Largest JSON response that is read for its usage; a longer one is relayed just the same."""

ATTEMPT_PHASES = ("connect", "send", "first_byte")

NOTHING_SEEN = StreamResult(events=0, done=False, finish_reason=None, usage=None, error=None, cut=False)


class Watch(Protocol):
    """Sees every read of a response body; `result` is asked for once, after the end."""

    reads: int
    bytes: int
    first_token_ns: int | None
    last_byte_ns: int | None

    @property
    def gap_max_ns(self) -> int | None: ...

    def feed(self, data: builtins.bytes, now_ns: int) -> None: ...

    def result(self) -> StreamResult: ...


class BodyWatch:
    """The watch of a response that is not a stream: counts, and keeps a JSON body of bounded size."""

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0
        self.first_token_ns: int | None = None
        self.last_byte_ns: int | None = None
        self.gap_max_ns: int | None = None
        self._parts: list[bytes] = []

    def feed(self, data: bytes, now_ns: int) -> None:
        if self.last_byte_ns is not None:
            self.gap_max_ns = max(self.gap_max_ns or 0, now_ns - self.last_byte_ns)
        self.reads += 1
        self.bytes += len(data)
        self.last_byte_ns = now_ns
        if self.bytes <= MAX_JSON_BYTES:
            self._parts.append(data)
        else:
            self._parts.clear()

    def result(self) -> StreamResult:
        answer = answer_of(b"".join(self._parts))
        return StreamResult(
            events=0, done=True, finish_reason=answer.finish_reason, usage=answer.usage, error=None, cut=False
        )


class Exchange:
    """State of one request. `marks` are monotonic nanoseconds since its first."""

    def __init__(
        self, downstream: Downstream, request_id: bytes, trace: TraceParent, parent: TraceParent | None
    ) -> None:
        self.downstream = downstream
        self.request_id = request_id
        self.trace = trace
        self.parent = parent
        self.origin_ns = monotonic_ns()
        self.marks: dict[str, int] = {}
        self.task: asyncio.Task[None] | None = None
        self.interrupt: GatewayError | None = None
        """Why the gateway itself cancelled the task, when it did."""
        self.body = b""
        self.peek: RequestPeek | None = None
        self.route: str | None = None
        self.pool: Pool | None = None
        self.candidates: Iterable[Endpoint] = ()
        self.endpoint: Endpoint | None = None
        self.connection: UpstreamConnection | None = None
        self.attempts = 0
        self.timer: asyncio.TimerHandle | None = None
        self.paused = False
        self.streams = False
        self.watch: Watch | None = None
        self.status: int | None = None
        self.outcome: GatewayOutcome = "ok"
        self.error: GatewayError | None = None
        self._seen: StreamResult | None = None

    def leave(self) -> None:
        """The client is gone: the engine's connection goes at once, and the task learns of it where it waits."""
        if self.connection is not None:
            self.connection.abort()
        if self.task is not None:
            self.task.cancel()

    def mark(self, phase: str) -> None:
        """Notes that `phase` starts now."""
        self.marks[phase] = monotonic_ns() - self.origin_ns

    def again(self) -> None:
        """Another attempt: what the one before marked is void, and its time falls to `route`."""
        for phase in ATTEMPT_PHASES:
            self.marks.pop(phase, None)

    def observe(self, *, streams: bool) -> Watch:
        """The watch for this response, from here on."""
        self.streams = streams
        self.watch = StreamWatch() if streams else BodyWatch()
        return self.watch

    def seen(self) -> StreamResult:
        """What the watch made of the body; final, so asked for only after its end."""
        if self._seen is None:
            self._seen = self.watch.result() if self.watch is not None else NOTHING_SEEN
        return self._seen

    def record(self, wall_anchor_ns: int) -> GatewayRecord:
        """The evidence. `wall_anchor_ns` is wall clock minus monotonic clock of this process."""
        seen, watch, peek = self.seen(), self.watch, self.peek
        first_token_ns = watch.first_token_ns - self.origin_ns if watch and watch.first_token_ns else None
        return GatewayRecord(
            request_id=self.request_id.decode("ascii"),
            trace_id=self.trace.trace_id,
            span_id=self.trace.span_id,
            parent_span_id=self.parent.span_id if self.parent else None,
            received_unix_ns=wall_anchor_ns + self.origin_ns,
            path=self.downstream.head.path,
            model=peek.model if peek else None,
            stream=peek.stream if peek else False,
            route=self.route,
            pool=self.pool.name if self.pool else None,
            endpoint=self.endpoint.address.name if self.endpoint else None,
            attempts=self.attempts,
            status=self.status,
            outcome=self.outcome,
            error_source=self.error.source if self.error else None,
            error_kind=self.error.kind if self.error else None,
            request_bytes=len(self.body),
            response_bytes=watch.bytes if watch else 0,
            marks_ns=self.marks,
            first_token_ns=first_token_ns,
            chunks=watch.reads if watch else 0,
            gap_max_ns=watch.gap_max_ns if watch else None,
            events=seen.events,
            prompt_tokens=seen.usage.prompt_tokens if seen.usage else None,
            completion_tokens=seen.usage.completion_tokens if seen.usage else None,
            cached_tokens=seen.usage.cached_tokens if seen.usage else None,
            finish_reason=seen.finish_reason,
        )
