"""The request path. One request is one call of `handle`, read from top to bottom: eight phases, in order.

    receive  admit  route  connect  send  first_byte  relay  finish

The phases' names are also the marks of its record, labels of its metrics and headings of
`docs/life-of-a-request.md`. A client that leaves cancels the call wherever it stands; `finish` always runs. While
`relay` waits, the body moves from the engine's read callback straight to the client's transport.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from random import Random
from time import monotonic, monotonic_ns, time_ns

from gateway import errors, headers
from gateway.config import Config
from gateway.errors import GatewayError
from gateway.exchange import Attempt, Exchange
from gateway.failover import Failover, Step
from gateway.fleet import Fleet
from gateway.model import Downstream, ResponseHead
from gateway.passage import Passage
from gateway.policy.breaker import is_fault
from gateway.policy.retry import Stop
from gateway.policy.routing import WeightedSplit
from gateway.race import Race
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.records import RecordWriter
from gateway.upstream.client import UpstreamClient
from protocol import openai, traceparent
from protocol.continuation import Refusal, Target, can_continue, continuation
from protocol.first_event import NEED_MORE, ErrorInfo, first_event_error
from protocol.joining import Transcript
from protocol.openai import family_of
from protocol.traceparent import TraceParent
from protocol.usage import inject_usage

_log = logging.getLogger("weir.proxy")

_COUNTED = ("chat", "completions")
"""Families whose streams report usage only when asked."""


class Proxy:
    """What every request needs, and every request in flight."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        upstream: UpstreamClient,
        metrics: GatewayMetrics,
        records: RecordWriter,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._upstream = upstream
        self._metrics = metrics
        self._records = records
        self._keep_alives = {route.model: route.keep_alive_s for route in config.routes}
        self._continuing = {route.model for route in config.routes if route.continuation}
        self._splits = {route.model: WeightedSplit(route.split) for route in config.routes}
        self._rng = Random()
        self._wall_anchor_ns = time_ns() - monotonic_ns()
        self._tasks: set[asyncio.Task[None]] = set()
        self.live: set[Exchange] = set()
        self.ready = True
        """False from the first sign of shutdown on: load balancers should look elsewhere."""
        self._draining = False

    def accept(self, downstream: Downstream) -> asyncio.Task[None]:
        """Starts handling a request whose head has arrived."""
        task = asyncio.get_running_loop().create_task(self.handle(downstream))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def handle(self, downstream: Downstream) -> None:
        """The life of one request. Never raises for anything that client or engine did."""
        x = self._begin(downstream)
        try:
            await self.receive(x)
            self.admit(x)
            self.route(x)
            attempt = await self._first_answer(x)
            await self.relay(x, attempt)
        except GatewayError as error:
            self._refuse(x, error)
        except asyncio.CancelledError:
            self._cut(x)
            if x.interrupt is None and not downstream.gone:
                raise
        except Exception:  # noqa: BLE001 - a fault of ours is the client's 500, and the log's traceback
            _log.exception("request %s failed inside the gateway", x.request_id.decode())
            self._refuse(x, errors.internal())
        finally:
            self.finish(x)

    def _begin(self, downstream: Downstream) -> Exchange:
        fields, random = downstream.head.fields, self._rng.randbytes(40)
        request_id = fields.get(b"x-request-id")
        if request_id is None or not headers.acceptable_request_id(request_id):
            request_id = random[24:].hex().encode()
        given = fields.get(b"traceparent")
        parent = traceparent.parse(given) if given else None
        if parent is None:
            sampled = self._rng.random() < self._config.trace.sample_ratio
            trace = traceparent.new(random[:24], sampled=sampled)
        else:
            trace = traceparent.child(parent, random[:8])
        x = Exchange(downstream, request_id, trace, parent)
        x.task = asyncio.current_task()
        assert x.task is not None
        downstream.on_gone = partial(self._client_left, x)
        self.live.add(x)
        if downstream.gone:
            self._client_left(x)
        return x

    async def receive(self, x: Exchange) -> None:
        """The whole body, and the few fields of it that decide where it goes."""
        x.mark("receive")
        limits = self._config.limits
        x.body = await x.downstream.read_body(limits.body_bytes, limits.receive_s)
        if headers.carries_json(x.downstream.head.fields):
            try:
                x.peek = openai.peek_request(x.body)
            except openai.BadRequest as bad:
                raise errors.invalid_request(bad.message, bad.param) from None
            if x.peek.stream and self._config.usage.inject and family_of(x.downstream.head.path) in _COUNTED:
                asking = inject_usage(x.body, x.peek)
                x.injected = asking is not None
                x.body = asking or x.body

    def admit(self, x: Exchange) -> None:
        """Whether this gateway takes the request on now."""
        x.mark("admit")
        if self._draining:
            raise errors.draining()
        if len(self.live) > self._config.limits.in_flight:
            raise errors.overloaded(self._config.limits.in_flight)

    def route(self, x: Exchange) -> None:
        """The model's route, and a pool of its split; one with a healthy endpoint where there is one."""
        x.mark("route")
        x.route = self._route_name(x)
        split = self._splits[x.route]
        chosen = split.pick(self._fleet.available) or split.pick(self._fleet.pools)
        assert chosen is not None, "a split has at least one pool with a weight"
        x.pool = self._fleet.pools[chosen]

    async def _first_answer(self, x: Exchange) -> Attempt:
        """Connect, send and first byte, on one endpoint after another until one has an answer for the client."""
        assert x.pool is not None
        x.way = way = Failover(x.pool, self._rng, monotonic())
        step = way.first(monotonic())
        if step is None:
            raise errors.no_endpoint(x.pool.name, x.pool.retry_after_s)
        self._keep_alive(x)
        while True:
            if step.delay_s:
                await asyncio.sleep(step.delay_s)
            hedge_after_s = way.hedge_delay_s(monotonic())
            if hedge_after_s is None:
                attempt = await self._try(x, way, step)
            else:
                attempt = await self._try_hedged(x, way, step, hedge_after_s)
            failure = attempt.failure(time_ns() * 1e-9)
            if failure is None:
                return attempt
            following = way.after(attempt.endpoint, failure, monotonic())
            if isinstance(following, Stop):
                if attempt.error is not None:
                    raise way.give_up(attempt.error)
                return attempt
            x.end(attempt, self._upstream)
            step = following

    async def _try_hedged(self, x: Exchange, way: Failover, step: Step, delay_s: float) -> Attempt:
        """One attempt, and another beside it when it is later than `delay_s`. Whichever answers first wins."""
        # A quick refusal does not beat an engine that is about to answer.
        async with Race[Attempt](lambda attempt: attempt.failure(time_ns() * 1e-9) is None) as tries:
            tries.start(self._try(x, way, step))
            attempt = await tries.winner(delay_s)
            if attempt is None:
                if (second := way.hedge(monotonic())) is not None:
                    tries.start(self._try(x, way, second))
                attempt = await tries.winner()
        assert attempt is not None, "a race without a time limit has a winner"
        for other in [other for other in x.open if other is not attempt]:
            x.end(other, self._upstream)
        return attempt

    async def _try(self, x: Exchange, way: Failover, step: Step) -> Attempt:
        """One attempt on one endpoint, with its answer's head or its error; nothing of a failed one is left behind."""
        assert x.pool is not None
        attempt, began_s = x.begin(step.endpoint, self._span(x)), monotonic()
        begun = way.begin(step.endpoint, began_s)
        cause: str | int | None = None
        try:
            await self.connect(x, attempt, fresh=step.fresh)
            self.send(x, attempt, step.body or x.body)
            attempt.head = await self.first_byte(x, attempt)
            cause = attempt.head.status
        except GatewayError as error:
            attempt.error, cause = error, error.cause
            self._metrics.attempt_failed(x.pool.name, attempt.endpoint.address.name, error.kind)
            x.end(attempt, self._upstream)
        finally:
            now_s = monotonic()
            # How soon a refusal came says nothing; a try that lost its race has waited this long at least.
            if cause is None or cause == 200:
                x.pool.first_bytes.note(now_s, now_s - began_s)
            way.report(step.endpoint, begun, cause, now_s)
            if cause is None:
                x.end(attempt, self._upstream)
        return attempt

    async def connect(self, x: Exchange, attempt: Attempt, *, fresh: bool) -> None:
        """A kept-alive connection that is still fresh, or a new one."""
        attempt.mark("connect")
        assert x.pool is not None
        address = attempt.endpoint.address
        attempt.connection = None if fresh else self._upstream.idle(address)
        if attempt.connection is None:
            attempt.connection = await self._upstream.connect(address, x.pool.config.timeouts.connect_s)

    def send(self, x: Exchange, attempt: Attempt, body: bytes) -> None:
        """The whole request in one write, under the client's request id and this attempt's trace context."""
        attempt.mark("send")
        assert attempt.connection is not None
        attempt.connection.send(
            headers.request_bytes(
                x.downstream.head,
                attempt.endpoint.address,
                body,
                request_id=x.request_id,
                traceparent=traceparent.header(attempt.trace),
            )
        )

    async def first_byte(self, x: Exchange, attempt: Attempt) -> ResponseHead:
        """Waits for the answer: the engine's queue and its prefill, mostly.

        Of a stream that is its first event, not its head: engines send the head of a stream at once, and report a full
        queue as the first event of a success. Such an error becomes what it should have been.
        """
        attempt.mark("first_byte")
        assert x.pool is not None
        assert attempt.connection is not None
        timeouts = x.pool.config.timeouts
        total_left_s = timeouts.total_s - (monotonic_ns() - x.origin_ns) * 1e-9
        attempt.timer = asyncio.get_running_loop().call_later(
            min(timeouts.first_byte_s, timeouts.chunk_gap_s, total_left_s), self._check_time, x, attempt
        )
        head = await attempt.connection.head()
        attempt.streams = headers.is_event_stream(head)
        if head.status == 200 and attempt.streams:
            try:
                opening = await attempt.connection.opening(0)
                while (error := first_event_error(opening)) is NEED_MORE and not attempt.connection.complete:
                    opening = await attempt.connection.opening(len(opening))
            except GatewayError as failure:
                # A head that is sent at once is no answer yet.
                raise errors.closed_before_response() if failure.kind == errors.TRUNCATED else failure from None
            if isinstance(error, ErrorInfo):
                raise errors.answered_in_stream(error)
        return head

    async def relay(self, x: Exchange, attempt: Attempt) -> None:
        """Head and body to the client as they arrive; then whether the stream was whole."""
        x.mark("relay")
        x.attempt, head, connection = attempt, attempt.head, attempt.connection
        assert x.pool is not None
        assert head is not None
        assert connection is not None
        downstream = x.downstream
        x.quiet()
        streams = attempt.streams
        if downstream.started and not (streams and head.status == 200):
            raise errors.answered_too_late(head.status)
        watch = x.observe(streams=streams)
        if not downstream.started:
            x.status = head.status
            downstream.start(
                head.status,
                headers.response_fields(head, request_id=x.request_id, pool=x.pool.name.encode(), stream=streams),
            )

        passage = Passage(x, watch, Transcript() if self._may_continue(x, head) else None)
        leg: Attempt | None = attempt
        while leg is not None:
            failure = await self._pass(x, leg, passage)
            leg = await self._carry_on(x, leg, passage, failure) if failure is not None else None
        passage.close()
        if streams and head.status == 200:
            self._judge(x)
        downstream.end()

    async def _pass(self, x: Exchange, attempt: Attempt, passage: Passage) -> GatewayError | None:
        """One engine's bytes to the client, to their end; what was wrong with it, if anything was."""
        connection = attempt.connection
        assert connection is not None

        def flow(paused: bool) -> None:
            x.paused, x.resumed_ns = paused, monotonic_ns()
            (connection.pause if paused else connection.resume)()

        x.downstream.on_flow = flow
        # Its transport may be full already: of an earlier answer, or of what a lost engine said.
        flow(x.downstream.paused)
        ended = connection.relay(passage.sink())
        x.downstream.flush()
        try:
            await ended
        except GatewayError as error:
            if is_fault(error.cause):
                attempt.endpoint.breaker.note(monotonic(), attempt.endpoint.breaker.openings, ok=False)
            return error
        return passage.failure()

    def _may_continue(self, x: Exchange, head: ResponseHead) -> bool:
        if x.route not in self._continuing or not x.streams or head.status != 200:
            return False
        return can_continue(family_of(x.downstream.head.path), x.body)

    async def _carry_on(self, x: Exchange, lost: Attempt, passage: Passage, failure: GatewayError) -> Attempt:
        """Another endpoint that goes on where `lost` stopped. Raises `failure` where there is none, or no sure way."""
        answered, transcript, way = x.attempt, passage.transcript, x.way
        assert x.pool is not None
        if transcript is None or way is None:
            raise failure
        x.end(lost, self._upstream)
        while (endpoint := way.elsewhere(monotonic())) is not None:
            target = Target(prefill=endpoint.kind.prefill)
            rest = continuation(family_of(x.downstream.head.path), x.body, transcript, target)
            if isinstance(rest, Refusal) or not x.pool.retries.take(monotonic()):
                break
            attempt = await self._try(x, way, Step(endpoint=endpoint, body=rest.body))
            x.attempt = answered
            if attempt.head is not None and attempt.head.status == 200 and attempt.streams:
                transcript.resume()
                passage.joiner = rest.joiner
                x.continuations += 1
                return attempt
            x.end(attempt, self._upstream)
        raise failure

    def _keep_alive(self, x: Exchange) -> None:
        """Where the route wants it: comments to a client whose stream is still waiting for its first byte."""
        interval_s = self._keep_alives[x.route] if x.route is not None else None
        if interval_s is None or x.peek is None or not x.peek.stream:
            return

        def comment() -> None:
            if not x.downstream.started:
                x.status, x.streams = 200, True
                x.downstream.start(200, headers.comment_fields(request_id=x.request_id))
            x.downstream.write(b": keep-alive\n\n")
            x.comment_timer = asyncio.get_running_loop().call_later(interval_s, comment)

        x.comment_timer = asyncio.get_running_loop().call_later(interval_s, comment)

    def _client_left(self, x: Exchange) -> None:
        """Engines' connections are cut at once; the task learns of it where it waits."""
        assert x.task is not None
        gone_ns = monotonic_ns()
        for attempt in x.open:
            if attempt.connection is not None:
                attempt.connection.on_closed = lambda: self._metrics.cancelled((monotonic_ns() - gone_ns) * 1e-9)
                attempt.connection.abort()
        x.task.cancel()

    def _check_time(self, x: Exchange, attempt: Attempt) -> None:
        """Ends a request whose engine stalls or takes too long; else sleeps until one of the two could be true.

        One timer serves an attempt, whatever arrives in between. While the client reads too slowly the engine is held
        back on purpose, and only the whole counts.
        """
        assert x.pool is not None
        assert attempt.connection is not None
        timeouts, now_ns = x.pool.config.timeouts, monotonic_ns()
        if attempt.head is None:
            quiet_s = (now_ns - attempt.marks["first_byte"]) * 1e-9
            left_s, overdue = timeouts.first_byte_s - quiet_s, errors.first_byte_timeout(timeouts.first_byte_s)
        else:
            since_ns = max(x.watch.last_byte_ns or 0, x.resumed_ns) if x.watch is not None else now_ns
            quiet_s = 0.0 if x.paused else (now_ns - since_ns) * 1e-9
            left_s, overdue = timeouts.chunk_gap_s - quiet_s, errors.chunk_gap_timeout(timeouts.chunk_gap_s)
        total_left_s = timeouts.total_s - (now_ns - x.origin_ns) * 1e-9
        if total_left_s < left_s:
            left_s, overdue = total_left_s, errors.total_timeout(timeouts.total_s)
        if left_s <= 0:
            attempt.connection.fail(overdue)
        else:
            attempt.timer = asyncio.get_running_loop().call_later(left_s, self._check_time, x, attempt)

    def _judge(self, x: Exchange) -> None:
        """A stream that HTTP calls complete may still carry an error, or stop in the middle of an answer."""
        seen = x.seen()
        if seen.error is not None:
            x.outcome, x.error = "error", errors.error_in_stream()
        elif not seen.complete and family_of(x.downstream.head.path) is not None:
            raise errors.cut_stream()

    def _refuse(self, x: Exchange, error: GatewayError) -> None:
        """Tells the client what went wrong, in the only way that is still open."""
        x.error = error
        x.outcome = "truncated" if error.kind == errors.TRUNCATED else "error"
        downstream = x.downstream
        body = error.body(x.request_id.decode())
        if not downstream.started:
            x.status = error.status
            body = openai.error_for(downstream.head.path, body)
            fields = [
                (b"content-type", b"application/json"),
                (b"content-length", b"%d" % len(body)),
                (b"x-request-id", x.request_id),
            ]
            if error.retry_after_s is not None:
                fields.append((b"retry-after", b"%d" % error.retry_after_s))
            downstream.start(error.status, fields)
            downstream.write(body)
            downstream.end()
        elif x.streams:
            if x.seen().cut:
                # Ends the event that broke off; the error would be read as the rest of it.
                downstream.write(b"\n\n")
            downstream.write(openai.stream_error(downstream.head.path, body, x.seen().events))
            downstream.end()
        else:
            downstream.abort()

    def _cut(self, x: Exchange) -> None:
        """The task was cancelled: by the client's leaving, by our own shutdown, or from outside."""
        if x.downstream.gone:
            # Who leaves behind the last event has the whole answer: some clients do not wait for the end of the body.
            x.outcome = "ok" if x.streams and x.seen().done and x.seen().error is None else "client_gone"
        else:
            self._refuse(x, x.interrupt or errors.cut_by_shutdown())

    def finish(self, x: Exchange) -> None:
        """Lets go of everything the request held and leaves its evidence."""
        x.mark("finish")
        x.quiet()
        for attempt in list(x.open):
            try:
                x.end(attempt, self._upstream)
            except Exception:  # noqa: BLE001 - a connection that cannot even be closed must not cost the record
                _log.exception("request %s could not let go of its engine", x.request_id.decode())
        self.live.discard(x)
        x.mark("end")
        record = x.record(self._wall_anchor_ns)
        saved = 0
        if x.outcome == "client_gone" and x.peek is not None and x.peek.max_tokens is not None:
            saved = max(0, x.peek.max_tokens * x.peek.n - record.events)
        self._metrics.observe(record, saved)
        self._records.write(record)

    def _route_name(self, x: Exchange) -> str:
        known = list(self._splits)
        if x.peek is None and len(known) == 1:
            # A body that is not JSON names its model where only the engine looks.
            return known[0]
        if x.peek is None:
            raise errors.unreadable_body(known)
        model = x.peek.model
        if model is None:
            raise errors.missing_model(known)
        if model not in self._splits:
            raise errors.unknown_model(model, known)
        return model

    def _span(self, x: Exchange) -> TraceParent:
        """A span for the next attempt; the first one is the request's own."""
        return traceparent.child(x.trace, self._rng.randbytes(8)) if x.attempts else x.trace

    async def drain(self, timeout_s: float) -> None:
        """Takes nothing new, waits for what is in flight, and ends what is left when the time is up."""
        self.ready = False
        self._draining = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        self.interrupt_all()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)
        self._records.flush()

    def interrupt_all(self) -> None:
        """Ends everything in flight with an error that says why."""
        for x in list(self.live):
            if x.task is not None and not x.task.done():
                x.interrupt = errors.cut_by_shutdown()
                x.task.cancel()
