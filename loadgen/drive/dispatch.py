"""Sends a schedule: every request leaves at its own time, whatever became of the others.

One coroutine walks the schedule against the monotonic clock, so lateness never adds up. It waits for a
response only under a limit that was asked for, or in a closed loop, where that is the schedule. Bodies are
made ahead of their time, within a small window; a request that is late all the same is sent at once, and its
record shows by how much.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Client, Exchange
from loadgen.drive.evidence import record, unsent
from protocol.records import ChunkRecord, RequestRecord, ScheduledRequest
from timing.alarm import Alarm

_NS_PER_S = 1_000_000_000

_LONGEST_SLEEP_NS = 50_000_000
"""A stop is noticed this soon."""

_SPARE_NS = 1_000_000
"""Nothing is begun this shortly before a request is due."""

_AHEAD_REQUESTS = 64
_AHEAD_BYTES = 16 * 1024 * 1024

Keep = Callable[[RequestRecord, ChunkRecord | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `requests` wait for their answers at once; the next one is held back until one has ended."""

    requests: int
    closed: bool
    """A closed loop: being held back is the schedule, and a request is due when its turn comes."""


class _Ahead:
    """Requests built before their time: at most 64, or 16 MiB of them."""

    def __init__(self, requests: Sequence[ScheduledRequest], build: Callable[[ScheduledRequest], Outgoing]) -> None:
        self._requests = iter(requests)
        self._build = build
        self._built: deque[Outgoing] = deque()
        self._bytes = 0
        self._next = next(self._requests, None)

    def build_within(self, slack_ns: int) -> bool:
        """Builds one more request if there is room, and time for one of its size."""
        upcoming = self._next
        if upcoming is None or len(self._built) >= _AHEAD_REQUESTS or self._bytes >= _AHEAD_BYTES:
            return False
        if slack_ns < _SPARE_NS + 200 * upcoming.prompt_tokens:
            return False
        self._push(upcoming)
        return True

    def take(self) -> Outgoing:
        """The next request, in order of the schedule."""
        if not self._built and self._next is not None:
            self._push(self._next)
        outgoing = self._built.popleft()
        self._bytes -= len(outgoing.wire)
        return outgoing

    def _push(self, request: ScheduledRequest) -> None:
        outgoing = self._build(request)
        self._built.append(outgoing)
        self._bytes += len(outgoing.wire)
        self._next = next(self._requests, None)


class OpenLoop:
    """One walk of one schedule. `origin_ns` is offset 0 of every record, on `time.monotonic_ns()`."""

    def __init__(
        self,
        client: Client,
        *,
        build: Callable[[ScheduledRequest], Outgoing],
        keep: Keep,
        run_id: str,
        origin_ns: int,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._build = build
        self._keep = keep
        self._run_id = run_id
        self._origin_ns = origin_ns
        self._timeout_s = timeout_s
        # Those that wait for their answers. One whose answer has ended is no longer among them: it will be kept.
        self._in_flight: set[asyncio.Task[None]] = set()
        self._answered = asyncio.Event()
        # Ended responses are examined one after another: each turn of the loop pays for a slice of one.
        self._examining = asyncio.Lock()
        self.sent = 0

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    async def run(
        self,
        requests: Sequence[ScheduledRequest],
        *,
        stop: asyncio.Event,
        halt: asyncio.Event,
        grace_s: float,
        limit: Limit | None = None,
    ) -> None:
        """Sends all requests and keeps the record of each.

        When `stop` is set, nothing more is sent (the rest is kept as `unsent`) and what is in flight has
        `grace_s` to end before it is `cancelled`; `halt` cancels at once.
        """
        alarm = Alarm()
        try:
            async with asyncio.TaskGroup() as group:
                await self._walk(requests, group, alarm, stop, limit)
                await self._drain(stop, halt, grace_s)
        finally:
            alarm.close()
        for request in requests[self.sent :]:
            self._keep(unsent(request, self._run_id), None)

    async def _walk(
        self,
        requests: Sequence[ScheduledRequest],
        group: asyncio.TaskGroup,
        alarm: Alarm,
        stop: asyncio.Event,
        limit: Limit | None,
    ) -> None:
        ahead = _Ahead(requests, self._build)
        for request in requests:
            due_ns = self._origin_ns + request.at_ns
            while (now_ns := time.monotonic_ns()) < due_ns and not stop.is_set():
                if ahead.build_within(due_ns - now_ns):
                    await asyncio.sleep(0)
                else:
                    await alarm.until(min(due_ns, now_ns + _LONGEST_SLEEP_NS))
            if limit is not None:
                await self._below(limit.requests, stop)
            if stop.is_set():
                return
            dequeued_ns = time.monotonic_ns()
            due = request
            if limit is not None and limit.closed:
                due = msgspec.structs.replace(request, at_ns=dequeued_ns - self._origin_ns)
            self._in_flight.add(group.create_task(self._exchange(due, ahead.take(), dequeued_ns)))
            self.sent += 1
            # The task writes the request when the loop comes to it, which is now.
            await asyncio.sleep(0)

    async def _below(self, requests: int, stop: asyncio.Event) -> None:
        while len(self._in_flight) >= requests and not stop.is_set():
            self._answered.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LONGEST_SLEEP_NS / _NS_PER_S):
                    await self._answered.wait()

    async def _exchange(self, request: ScheduledRequest, outgoing: Outgoing, dequeued_ns: int) -> None:
        exchange = Exchange(outgoing.wire)
        exchange.dequeued_ns = dequeued_ns
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._client.send(exchange)
        except TimeoutError:
            exchange.end("timeout", f"no whole response within {self._timeout_s:g} s")
        except asyncio.CancelledError:
            exchange.end("cancelled", "the run was stopped")
        task = asyncio.current_task()
        assert task is not None
        self._in_flight.discard(task)
        self._answered.set()
        async with self._examining:
            self._keep(*await record(request, outgoing, exchange, origin_ns=self._origin_ns))

    async def _drain(self, stop: asyncio.Event, halt: asyncio.Event, grace_s: float) -> None:
        """Waits for what is in flight; each request has its own timeout, so this ends."""
        patience_ns: int | None = None
        while self._in_flight:
            now_ns = time.monotonic_ns()
            if stop.is_set() and patience_ns is None:
                patience_ns = now_ns + round(grace_s * _NS_PER_S)
            if halt.is_set() or (patience_ns is not None and now_ns >= patience_ns):
                for task in self._in_flight:
                    task.cancel()
                return
            await asyncio.sleep(_LONGEST_SLEEP_NS / _NS_PER_S)
