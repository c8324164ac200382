"""One request on its way through the gateway: what is known of it so far, and the record made of it at the end.

Holds state and derives the record; it never moves a byte and never decides anything.
"""

from __future__ import annotations

import asyncio
import builtins
from time import monotonic_ns
from typing import Protocol

from gateway.errors import GatewayError
from gateway.failover import Failover
from gateway.fleet import Endpoint, Pool
from gateway.model import Downstream, ResponseHead
from gateway.policy.retry import CONDUCT, Failure, parse_retry_after
from gateway.upstream.client import UpstreamClient, UpstreamConnection
from protocol.openai import RequestPeek, answer_of
from protocol.records import GatewayOutcome, GatewayRecord
from protocol.stream import StreamResult, StreamWatch
from protocol.traceparent import TraceParent

MAX_JSON_BYTES = 4 * 1024 * 1024
"""Largest JSON response that is read for its usage; a longer one is relayed just the same."""

BEFORE_ATTEMPT = ("receive", "admit", "route")
AFTER_ATTEMPT = ("relay", "finish", "end")

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


class Attempt:
    """One try of a request on one endpoint. Counts as in flight there from its making to `let_go`."""

    __slots__ = ("_held", "connection", "endpoint", "error", "head", "marks", "streams", "timer", "trace")

    def __init__(self, endpoint: Endpoint, trace: TraceParent) -> None:
        self.endpoint = endpoint
        self.trace = trace
        """The span that the engine's own is a child of."""
        self.connection: UpstreamConnection | None = None
        self.head: ResponseHead | None = None
        self.streams = False
        """The answer is an event stream."""
        self.error: GatewayError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.marks: dict[str, int] = {}
        self._held = True
        endpoint.in_flight += 1

    def mark(self, phase: str) -> None:
        self.marks[phase] = monotonic_ns()

    def failure(self, now_unix_s: float) -> Failure | None:
        """Why the client should not get this answer yet, if another try may bring a better one."""
        if self.error is not None:
            return Failure(cause=self.error.cause)
        assert self.head is not None
        if self.head.status not in CONDUCT:
            return None
        field = self.head.header(b"retry-after")
        return Failure(
            cause=self.head.status, retry_after_s=parse_retry_after(field, now_unix_s) if field is not None else None
        )

    def let_go(self, upstream: UpstreamClient) -> None:
        """Gives back the connection and the place in the endpoint's ledger; again does nothing."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._held:
            self._held = False
            self.endpoint.in_flight -= 1
        connection, self.connection = self.connection, None
        if connection is not None:
            upstream.release(self.endpoint.address, connection)


class Exchange:
    """State of one request. `marks` are monotonic nanoseconds since its first."""

    __slots__ = (
        "_seen",
        "attempt",
        "attempts",
        "body",
        "comment_timer",
        "continuations",
        "downstream",
        "error",
        "hidden_bytes",
        "injected",
        "interrupt",
        "marks",
        "open",
        "origin_ns",
        "outcome",
        "parent",
        "paused",
        "peek",
        "pool",
        "request_id",
        "resumed_ns",
        "route",
        "status",
        "streams",
        "task",
        "trace",
        "watch",
        "way",
    )

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
        self.comment_timer: asyncio.TimerHandle | None = None
        self.body = b""
        self.peek: RequestPeek | None = None
        self.route: str | None = None
        self.pool: Pool | None = None
        self.attempts = 0
        self.open: list[Attempt] = []
        """Attempts that hold something at an engine."""
        self.attempt: Attempt | None = None
        """The one that answered, or the last."""
        self.way: Failover | None = None
        """Where it has been and may still go."""
        self.continuations = 0
        """How often another endpoint went on with a stream that had begun."""
        self.injected = False
        """The engine was asked for usage that the client did not ask for."""
        self.hidden_bytes = 0
        """Of the body, what the client did not get: the usage event."""
        self.paused = False
        self.resumed_ns = 0
        """When the engine was held back or let go on last, for the client's sake; monotonic clock."""
        self.streams = False
        self.watch: Watch | None = None
        self.status: int | None = None
        self.outcome: GatewayOutcome = "ok"
        self.error: GatewayError | None = None
        self._seen: StreamResult | None = None

    def quiet(self) -> None:
        """No more comments to the client: the answer is here, or never will be."""
        if self.comment_timer is not None:
            self.comment_timer.cancel()
            self.comment_timer = None

    def mark(self, phase: str) -> None:
        """Notes that `phase` starts now."""
        self.marks[phase] = monotonic_ns() - self.origin_ns

    def begin(self, endpoint: Endpoint, trace: TraceParent) -> Attempt:
        """A further attempt, on `endpoint`."""
        self.attempts += 1
        self.attempt = Attempt(endpoint, trace)
        self.open.append(self.attempt)
        return self.attempt

    def end(self, attempt: Attempt, upstream: UpstreamClient) -> None:
        """Lets go of an attempt, whatever became of it."""
        if attempt in self.open:
            self.open.remove(attempt)
        attempt.let_go(upstream)

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

    def timeline(self) -> dict[str, int]:
        """Start of each phase in order. Of several attempts, the marks are those of the last, the one that counts."""
        marks, tried = self.marks, self.attempt.marks if self.attempt is not None else {}
        line = {phase: marks[phase] for phase in BEFORE_ATTEMPT if phase in marks}
        for phase, at_ns in tried.items():
            line[phase] = at_ns - self.origin_ns
        for phase in AFTER_ATTEMPT:
            if phase in marks:
                line[phase] = marks[phase]
        return line

    def record(self, wall_anchor_ns: int) -> GatewayRecord:
        """The evidence. `wall_anchor_ns` is wall clock minus monotonic clock of this process."""
        seen, watch, peek, attempt = self.seen(), self.watch, self.peek, self.attempt
        first_token_ns = watch.first_token_ns - self.origin_ns if watch and watch.first_token_ns else None
        usage, partial = seen.usage, False
        completion_tokens = usage.completion_tokens if usage else None
        if usage is None and self.outcome != "ok" and watch is not None and self.streams:
            # The engine never came to report its usage: what was relayed is the best account of what was generated.
            completion_tokens, partial = seen.events, True
        return GatewayRecord(
            request_id=self.request_id.decode("ascii"),
            trace_id=self.trace.trace_id,
            span_id=attempt.trace.span_id if attempt else self.trace.span_id,
            parent_span_id=self.parent.span_id if self.parent else None,
            received_unix_ns=wall_anchor_ns + self.origin_ns,
            path=self.downstream.head.path,
            model=peek.model if peek else None,
            stream=peek.stream if peek else False,
            route=self.route,
            pool=self.pool.name if self.pool else None,
            endpoint=attempt.endpoint.address.name if attempt else None,
            attempts=self.attempts,
            status=self.status,
            outcome=self.outcome,
            error_source=self.error.source if self.error else None,
            error_kind=self.error.kind if self.error else None,
            request_bytes=len(self.body),
            response_bytes=watch.bytes - self.hidden_bytes if watch else 0,
            marks_ns=self.timeline(),
            first_token_ns=first_token_ns,
            chunks=watch.reads if watch else 0,
            gap_max_ns=watch.gap_max_ns if watch else None,
            events=seen.events,
            prompt_tokens=usage.prompt_tokens if usage else None,
            completion_tokens=completion_tokens,
            cached_tokens=usage.cached_tokens if usage else None,
            usage_partial=partial,
            continuations=self.continuations,
            finish_reason=seen.finish_reason,
        )
