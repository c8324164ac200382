"""The request path. One request is one call of `handle`, read from top to bottom: eight phases, in order.

    receive  admit  route  connect  send  first_byte  relay  finish

The phases' names are also the marks of its record, labels of its metrics and headings of
`docs/life-of-a-request.md`. A client that leaves cancels the call wherever it stands; `finish` always runs. While
`relay` waits, the body moves from the engine's read callback straight to the client's transport.
"""

from __future__ import annotations

import asyncio
import logging
from random import Random
from time import monotonic_ns, time_ns

from gateway import errors, headers
from gateway.config import Config
from gateway.errors import GatewayError
from gateway.exchange import Exchange
from gateway.fleet import Endpoint, Fleet
from gateway.model import Downstream, ResponseHead
from gateway.policy.routing import WeightedSplit
from gateway.telemetry.metrics import GatewayMetrics
from gateway.telemetry.records import RecordWriter
from gateway.upstream.client import UpstreamClient
from protocol import openai, traceparent

_log = logging.getLogger("weir.proxy")

_GENERATES = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"})
"""Paths whose streams say when they are complete; a stream that ends without saying so was cut."""


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
            for endpoint in x.candidates:
                with endpoint:
                    head = await self._first_answer(x, endpoint)
                    if head is not None:
                        await self.relay(x, head)
                        return
            raise errors.no_endpoint(x.pool.name if x.pool else "any pool", self._retry_after_s(x))
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
        downstream.on_gone = x.leave
        self.live.add(x)
        if downstream.gone:
            x.leave()
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

    def admit(self, x: Exchange) -> None:
        """Whether this gateway takes the request on now."""
        x.mark("admit")
        if self._draining:
            raise errors.draining()
        if len(self.live) > self._config.limits.in_flight:
            raise errors.overloaded(self._config.limits.in_flight)

    def route(self, x: Exchange) -> None:
        """The model's route, a pool of its split, and the pool's endpoints in the order to try them."""
        x.mark("route")
        x.route = self._route_name(x)
        split = self._splits[x.route]
        chosen = split.pick(self._fleet.available) or split.pick(self._fleet.pools)
        assert chosen is not None, "a split has at least one pool with a weight"
        x.pool = self._fleet.pools[chosen]
        x.candidates = x.pool.candidates()

    async def _first_answer(self, x: Exchange, endpoint: Endpoint) -> ResponseHead | None:
        """Connect, send and wait for the first byte; None when another endpoint may be tried.

        A kept-alive connection that turns out to be dead before a single byte came back was closed by the engine
        while idle; the request was not taken up, so it is sent again on a fresh connection.
        """
        x.endpoint, fresh = endpoint, False
        while True:
            if x.attempts:
                x.again()
            x.attempts += 1
            try:
                await self.connect(x, endpoint, fresh=fresh)
                self.send(x, endpoint)
                return await self.first_byte(x)
            except GatewayError as error:
                assert x.pool is not None
                self._metrics.attempt_failed(x.pool.name, endpoint.address.name, error.kind)
                self._let_go(x)
                if error.kind == errors.STALE:
                    fresh = True
                elif error.retryable:
                    return None
                else:
                    raise

    async def connect(self, x: Exchange, endpoint: Endpoint, *, fresh: bool) -> None:
        x.mark("connect")
        assert x.pool is not None
        x.connection = None if fresh else self._upstream.idle(endpoint.address)
        if x.connection is None:
            x.connection = await self._upstream.connect(endpoint.address, x.pool.config.timeouts.connect_s)

    def send(self, x: Exchange, endpoint: Endpoint) -> None:
        """The whole request in one write, under the client's request id and this attempt's trace context."""
        x.mark("send")
        assert x.connection is not None
        x.connection.send(
            headers.request_bytes(
                x.downstream.head,
                endpoint.address,
                x.body,
                request_id=x.request_id,
                traceparent=traceparent.header(x.trace),
            )
        )

    async def first_byte(self, x: Exchange) -> ResponseHead:
        """Waits for the head of the engine's answer: its queue and its prefill, mostly."""
        x.mark("first_byte")
        assert x.pool is not None
        assert x.connection is not None
        timeouts = x.pool.config.timeouts
        x.timer = asyncio.get_running_loop().call_later(
            min(timeouts.first_byte_s, timeouts.chunk_gap_s), self._check_time, x
        )
        return await x.connection.head()

    async def relay(self, x: Exchange, head: ResponseHead) -> None:
        """Head and body to the client as they arrive; then whether the stream was whole."""
        x.mark("relay")
        assert x.pool is not None
        assert x.connection is not None
        downstream, connection = x.downstream, x.connection
        watch = x.observe(streams=headers.is_event_stream(head))
        x.status = head.status
        downstream.start(
            head.status,
            headers.response_fields(head, request_id=x.request_id, pool=x.pool.name.encode(), stream=x.streams),
        )
        feed, write, write_chunk = watch.feed, downstream.write, downstream.chunk_writer

        def forward(data: bytes, chunk: bytes | None) -> None:
            feed(data, monotonic_ns())
            if chunk is not None and write_chunk is not None:
                write_chunk(chunk)
            else:
                write(data)

        def flow(paused: bool) -> None:
            x.paused = paused
            (connection.pause if paused else connection.resume)()

        downstream.on_flow = flow
        ended = connection.relay(forward)
        downstream.flush()
        await ended
        if x.streams and head.status == 200:
            self._judge(x)
        downstream.end()

    def _check_time(self, x: Exchange) -> None:
        """Ends a request whose engine stalls or takes too long; else sleeps until one of the two could be true.

        One timer serves a request, whatever arrives in between. While the client reads too slowly the engine is held
        back on purpose, and only the whole counts.
        """
        assert x.pool is not None
        assert x.connection is not None
        timeouts, now_ns = x.pool.config.timeouts, monotonic_ns()
        if x.watch is None:
            quiet_s = (now_ns - x.origin_ns - x.marks["first_byte"]) * 1e-9
            left_s, overdue = timeouts.first_byte_s - quiet_s, errors.first_byte_timeout(timeouts.first_byte_s)
        else:
            since_ns = x.watch.last_byte_ns or x.origin_ns + x.marks["relay"]
            quiet_s = 0.0 if x.paused else (now_ns - since_ns) * 1e-9
            left_s, overdue = timeouts.chunk_gap_s - quiet_s, errors.chunk_gap_timeout(timeouts.chunk_gap_s)
        total_left_s = timeouts.total_s - (now_ns - x.origin_ns) * 1e-9
        if total_left_s < left_s:
            left_s, overdue = total_left_s, errors.total_timeout(timeouts.total_s)
        if left_s <= 0:
            x.connection.fail(overdue)
        else:
            x.timer = asyncio.get_running_loop().call_later(left_s, self._check_time, x)

    def _judge(self, x: Exchange) -> None:
        """A stream that HTTP calls complete may still carry an error, or stop in the middle of an answer."""
        seen = x.seen()
        if seen.error is not None:
            x.outcome, x.error = "error", errors.error_in_stream()
        elif not seen.complete and x.downstream.head.path in _GENERATES:
            raise errors.truncated("the stream stopped without a finish_reason or [DONE]")

    def _refuse(self, x: Exchange, error: GatewayError) -> None:
        """Tells the client what went wrong, in the only way that is still open."""
        x.error = error
        x.outcome = "truncated" if error.kind == errors.TRUNCATED else "error"
        downstream = x.downstream
        body = openai.error_body(
            error.message, kind=error.kind, code=error.status, param=error.param, request_id=x.request_id.decode()
        )
        if not downstream.started:
            x.status = error.status
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
            downstream.write(openai.stream_error(downstream.head.path, body))
            downstream.end()
        else:
            downstream.abort()

    def _cut(self, x: Exchange) -> None:
        """The task was cancelled: by the client's leaving, by our own shutdown, or from outside."""
        if x.downstream.gone:
            x.outcome = "client_gone"
        else:
            self._refuse(x, x.interrupt or errors.cut_by_shutdown())

    def finish(self, x: Exchange) -> None:
        """Lets go of everything the request held and leaves its evidence."""
        x.mark("finish")
        self._let_go(x)
        self.live.discard(x)
        x.mark("end")
        record = x.record(self._wall_anchor_ns)
        self._metrics.observe(record)
        self._records.write(record)

    def _let_go(self, x: Exchange) -> None:
        if x.timer is not None:
            x.timer.cancel()
            x.timer = None
        if x.connection is not None and x.endpoint is not None:
            self._upstream.release(x.endpoint.address, x.connection)
            x.connection = None

    def _route_name(self, x: Exchange) -> str:
        known = list(self._splits)
        if x.peek is None and len(known) == 1:
            # A body that is not JSON names its model where only the engine looks.
            return known[0]
        model = x.peek.model if x.peek else None
        if model is None:
            raise errors.missing_model(known)
        if model not in self._splits:
            raise errors.unknown_model(model, known)
        return model

    def _retry_after_s(self, x: Exchange) -> int:
        return x.pool.retry_after_s if x.pool else 1

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
