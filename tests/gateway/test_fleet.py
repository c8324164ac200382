"""Health, model lists and turns of endpoints; checks run for real against a small scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gateway.config import Config
from gateway.discovery import static
from gateway.fleet import Endpoint, Fleet, Pool

HANG = b""
"""An answer that never comes."""

NOW_S = 1000.0


class Engine:
    """Answers each path as scripted, closes the connection after it, and notes what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {"/health": answer(200), "/v1/models": answer(200, b'{"data":[{"id":"m"}]}')}
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].decode()
            self.asked.put_nowait(path)
            data = self.answers[path]
            if data == HANG:
                await reader.read()
            writer.write(data)
            if data.endswith(b"..."):
                # Trickles: each byte comes well before any timeout of a single read.
                while not reader.at_eof():
                    writer.write(b".")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(reader.read(1), 0.01)
        writer.close()

    async def was_asked(self, *paths: str) -> None:
        """Waits for these requests, in this order, whatever came between."""
        for path in paths:
            while await self.asked.get() != path:
                pass


def answer(status: int, body: bytes = b"") -> bytes:
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status, len(body), body)


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    server = await asyncio.start_server(engine.handle, "127.0.0.1", 0, backlog=200)
    engine.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield engine


class Changes(logging.Handler):
    """The fleet's own words about endpoints that changed."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.told.put_nowait(record.getMessage())


@pytest.fixture
def changes() -> Iterator[Changes]:
    handler, logger = Changes(), logging.getLogger("weir.fleet")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def config(*urls: str, pool: dict[str, Any] | None = None, **health: Any) -> Config:
    settings = {
        "engine": "vllm",
        "endpoints": [{"url": url} for url in urls],
        "health": {"interval_s": 0.01, "timeout_s": 1.0, "unhealthy_after": 1, **health},
        **(pool or {}),
    }
    return Config.model_validate({"pools": {"p": settings}, "routes": [{"model": "m", "split": {"p": 1}}]})


def pool_of(count: int, policy: str = "least_in_flight", *, health: dict[str, Any] | None = None, **pool: Any) -> Pool:
    urls = [f"http://10.0.0.{number}" for number in range(1, count + 1)]
    settings = config(*urls, pool={"policy": policy, **pool}, **(health or {}))
    return Fleet(settings, static.addresses).pools["p"]


@asynccontextmanager
async def checking(settings: Config) -> AsyncIterator[Fleet]:
    fleet = Fleet(settings, static.addresses)
    run = asyncio.create_task(fleet.run())
    try:
        yield fleet
    finally:
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


def checked(endpoint: Endpoint, checks: str) -> str:
    """Health after each check: `.` passes and `x` fails in, `H` healthy and `u` unhealthy out."""
    states = ""
    for check in checks:
        endpoint.note_check("/health answered 500" if check == "x" else None, NOW_S)
        states += "H" if endpoint.healthy else "u"
    return states


@pytest.mark.parametrize(
    ("unhealthy_after", "healthy_after", "checks", "states"),
    [
        (1, 1, "..x.x", "HHuHu"),
        (2, 1, "x.xxx.x", "HHHuuHH"),
        (3, 2, "xxx.x..xx.xxx", "HHuuuuHHHHHHu"),
        (1, 3, "x..x...x", "uuuuuuHu"),
    ],
)
def test_each_change_takes_that_many_equal_results_in_a_row(
    unhealthy_after: int, healthy_after: int, checks: str, states: str
) -> None:
    pool = pool_of(1, health={"unhealthy_after": unhealthy_after, "healthy_after": healthy_after})
    [endpoint] = pool.endpoints
    assert endpoint.healthy
    assert checked(endpoint, checks) == states


def test_the_last_failure_outlives_the_recovery_and_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = pool_of(1).endpoints[0]
    assert endpoint.last_failure is None
    checked(endpoint, "xxx..")
    assert endpoint.last_failure == "/health answered 500"
    assert caplog.messages == ["endpoint p-0 is unhealthy: /health answered 500", "endpoint p-0 is healthy again"]


def names(endpoints: list[Endpoint]) -> list[str]:
    return [endpoint.address.name for endpoint in endpoints]


def first_names(pool: Pool, times: int, now_s: float = NOW_S) -> list[str]:
    """Which endpoint each of so many new requests would go to first."""
    firsts = []
    for _ in range(times):
        pool.advance()
        firsts.append(pool.candidates(now_s)[0].address.name)
    return firsts


def test_candidates_are_all_healthy_endpoints_best_first() -> None:
    pool = pool_of(4)
    for endpoint, in_flight in zip(pool.endpoints, (3, 0, 2, 1), strict=True):
        endpoint.in_flight = in_flight
    pool.endpoints[3].healthy = False
    assert names(pool.candidates(NOW_S)) == ["p-1", "p-2", "p-0"]


@pytest.mark.parametrize("policy", ["round_robin", "least_in_flight"])
def test_idle_endpoints_take_turns_under_either_policy(policy: str) -> None:
    pool = pool_of(3, policy)
    firsts = first_names(pool, 6)
    assert sorted(firsts[:3]) == ["p-0", "p-1", "p-2"]
    assert firsts[3:] == firsts[:3]
    pool.endpoints[1].healthy = False
    assert sorted(first_names(pool, 4)) == ["p-0", "p-0", "p-2", "p-2"]


def test_only_least_in_flight_looks_at_load() -> None:
    for policy, firsts in (("round_robin", {"p-0", "p-1"}), ("least_in_flight", {"p-1"})):
        pool = pool_of(2, policy)
        pool.endpoints[0].in_flight = 5
        assert set(first_names(pool, 4)) == firsts


def test_a_pool_without_healthy_endpoints_has_no_candidates() -> None:
    pool = pool_of(2)
    assert pool.available
    pool.endpoints[0].healthy = False
    assert pool.available
    assert pool.candidates(NOW_S) == [pool.endpoints[1]]
    pool.endpoints[1].healthy = False
    assert not pool.available
    assert pool.candidates(NOW_S) == []


def trip(endpoint: Endpoint, now_s: float) -> None:
    """As many failed requests in a row as open the endpoint's breaker."""
    for _ in range(5):
        endpoint.breaker.note(now_s, endpoint.breaker.begin(now_s), ok=False)


def test_later_tries_of_a_request_keep_to_its_order() -> None:
    pool = pool_of(3, "round_robin")
    pool.advance()
    assert names(pool.candidates(NOW_S)) == names(pool.candidates(NOW_S)) == ["p-1", "p-2", "p-0"]


def test_a_draining_endpoint_gets_nothing_new_and_counts_as_not_available() -> None:
    pool = pool_of(2)
    pool.endpoints[0].draining = True
    assert names(pool.candidates(NOW_S)) == ["p-1"]
    pool.endpoints[1].draining = True
    assert pool.candidates(NOW_S) == []
    assert not pool.available


def test_an_endpoint_whose_breaker_is_open_is_left_out_until_it_has_rested() -> None:
    pool = pool_of(3)
    trip(pool.endpoints[1], NOW_S)
    assert names(pool.candidates(NOW_S)) == ["p-0", "p-2"]
    rested_s = pool.endpoints[1].breaker.until_s
    assert rested_s == NOW_S + pool.config.breaker.open_s
    assert sorted(names(pool.candidates(rested_s))) == ["p-0", "p-1", "p-2"]
    pool.endpoints[1].breaker.begin(rested_s)
    assert names(pool.candidates(rested_s)) == ["p-0", "p-2"], "one probe is out; it decides"


def test_the_last_endpoint_is_never_left_out() -> None:
    alone = pool_of(1, max_ejection_share=1.0)
    trip(alone.endpoints[0], NOW_S)
    assert alone.candidates(NOW_S) == alone.endpoints
    pair = pool_of(2, max_ejection_share=1.0)
    trip(pair.endpoints[0], NOW_S)
    pair.endpoints[1].healthy = False
    assert names(pair.candidates(NOW_S)) == ["p-0"], "the other one is known to be down"


@pytest.mark.parametrize(
    ("share", "left"),
    # Tripped first, p-0 has rested longest and is the first to be taken back.
    [(0.0, ["p-0", "p-1", "p-2"]), (0.25, ["p-0", "p-1", "p-2"]), (0.5, ["p-0", "p-1"]), (1.0, ["p-0"])],
)
def test_breakers_leave_out_no_more_than_their_share_of_the_pool(share: float, left: list[str]) -> None:
    pool = pool_of(4, max_ejection_share=share)
    for number, endpoint in enumerate(pool.endpoints):
        trip(endpoint, NOW_S + number * 0.1)
    assert sorted(names(pool.candidates(NOW_S + 0.5))) == left


def recovered(pool: Pool, position: int, now_s: float) -> None:
    endpoint = pool.endpoints[position]
    endpoint.note_check("/health answered 500", now_s)
    endpoint.note_check(None, now_s)
    assert (endpoint.healthy, endpoint.healthy_since_s) == (True, now_s)


@pytest.mark.parametrize("policy", ["round_robin", "least_in_flight"])
def test_an_endpoint_that_is_healthy_again_starts_slowly(policy: str) -> None:
    pool = pool_of(2, policy, slow_start_s=10.0)
    recovered(pool, 0, NOW_S)
    share = [first_names(pool, 1100, NOW_S + age_s).count("p-0") / 1100 for age_s in (0.0, 5.0, 10.0)]
    # Weights 0.1, 0.5 and 1 beside the other one's 1.
    assert share == pytest.approx([1 / 11, 1 / 3, 1 / 2], abs=0.01)


def test_a_slow_start_holds_for_load_too_and_for_an_endpoint_whose_breaker_closed() -> None:
    pool = pool_of(2, slow_start_s=10.0)
    endpoint, other = pool.endpoints
    trip(endpoint, NOW_S)
    closed_s = endpoint.breaker.until_s
    endpoint.breaker.note(closed_s, endpoint.breaker.begin(closed_s), ok=True)
    endpoint.in_flight, other.in_flight = 1, 9
    assert first_names(pool, 3, closed_s) == ["p-1"] * 3, "one request is to it as ten are to the other"
    other.in_flight = 11
    assert first_names(pool, 3, closed_s) == ["p-0"] * 3
    assert first_names(pool, 3, closed_s + 10) == ["p-0"] * 3


def test_without_slow_start_a_recovered_endpoint_has_its_share_at_once() -> None:
    pool = pool_of(2, slow_start_s=0)
    recovered(pool, 0, NOW_S)
    assert first_names(pool, 4).count("p-0") == 2


def test_a_pool_that_hedges_has_a_budget_of_its_own_for_that() -> None:
    assert pool_of(2).hedges is None
    pool = pool_of(2, hedge={"budget_min_per_s": 0.2}, retry={"budget_min_per_s": 0.5})
    assert pool.hedges is not None
    assert (pool.hedges.balance(NOW_S), pool.retries.balance(NOW_S)) == (pytest.approx(2.0), pytest.approx(5.0))


def test_an_endpoint_is_found_by_its_name() -> None:
    fleet = Fleet(config("http://10.0.0.1", "http://10.0.0.2"), static.addresses)
    assert fleet.endpoint("p-1") is fleet.pools["p"].endpoints[1]
    assert fleet.endpoint("q-0") is None


def test_the_pools_that_can_serve_are_known_after_a_refresh() -> None:
    fleet = Fleet(config("http://10.0.0.1"), static.addresses)
    assert fleet.available == {"p"}
    fleet.pools["p"].endpoints[0].draining = True
    fleet.refresh()
    assert fleet.available == set()


@pytest.mark.parametrize(
    ("interval_s", "healthy_after", "expected"), [(2.0, 1, 2), (2.0, 3, 6), (0.1, 1, 1), (0.6, 3, 2)]
)
def test_a_client_may_come_back_when_an_endpoint_can(interval_s: float, healthy_after: int, expected: int) -> None:
    assert pool_of(1, health={"interval_s": interval_s, "healthy_after": healthy_after}).retry_after_s == expected


async def test_the_snapshot_shows_every_endpoint_as_it_is() -> None:
    fleet = Fleet(config("http://10.0.0.1:8000/x", "http://10.0.0.2"), static.addresses)
    endpoint = fleet.pools["p"].endpoints[1]
    endpoint.note_check("/health answered 500", NOW_S)
    endpoint.draining = True
    trip(endpoint, asyncio.get_running_loop().time())
    endpoint.in_flight, endpoint.models = 3, [{"id": "m"}]
    first, second = fleet.snapshot()
    assert (first.pool, first.name, first.url, first.engine) == ("p", "p-0", "http://10.0.0.1:8000/x", "vllm")
    assert (first.healthy, first.in_flight, first.last_failure, first.models) == (True, 0, None, [])
    assert (first.draining, first.breaker, first.load) == (False, "closed", None)
    assert (second.draining, second.breaker) == (True, "open")
    assert (second.healthy, second.in_flight, second.last_failure, second.models) == (
        False, 3, "/health answered 500", [{"id": "m"}],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (answer(500), "/health answered 500"),
        (answer(404), "/health answered 404"),
        (b"HTTP/1.1 302 X\r\nlocation: /v1/models\r\ncontent-length: 0\r\n\r\n", "/health answered 302"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "/health: "),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "/health: "),
    ],
)
async def test_an_endpoint_that_answers_otherwise_is_unhealthy(
    data: bytes, failure: str, engine: Engine, changes: Changes
) -> None:
    engine.answers["/health"] = data
    async with checking(config(engine.url)) as fleet:
        assert (await changes.told.get()).startswith(f"endpoint p-0 is unhealthy: {failure}")
        assert not fleet.pools["p"].available


@pytest.mark.parametrize("data", [HANG, b"HTTP/1.1 200 OK\r\nx: ...", answer(200)[:-4] + b"\r\n\r\n..."])
async def test_a_check_that_takes_too_long_fails_even_when_bytes_trickle_in(
    data: bytes, engine: Engine, changes: Changes
) -> None:
    engine.answers["/health"] = data.replace(b"content-length: 0", b"content-length: 10000")
    async with checking(config(engine.url, timeout_s=0.1)):
        assert await changes.told.get() == "endpoint p-0 is unhealthy: /health: TimeoutError"


async def test_an_endpoint_that_nobody_listens_at_is_unhealthy(changes: Changes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with checking(config(url)):
        assert await changes.told.get() == "endpoint p-0 is unhealthy: /health: All connection attempts failed"


async def test_an_endpoint_recovers_and_its_models_are_learned_anew(engine: Engine, changes: Changes) -> None:
    async with checking(config(engine.url)) as fleet:
        endpoint = fleet.pools["p"].endpoints[0]
        await engine.was_asked("/v1/models", "/health")
        assert endpoint.models == [{"id": "m"}]
        engine.answers["/health"] = answer(503)
        assert await changes.told.get() == "endpoint p-0 is unhealthy: /health answered 503"
        await engine.was_asked("/health", "/health")
        assert endpoint.models == []
        engine.answers["/v1/models"] = answer(200, b'{"object":"list","data":[{"id":"n","max_model_len":4096}]}')
        engine.answers["/health"] = answer(200)
        assert await changes.told.get() == "endpoint p-0 is healthy again"
        await engine.was_asked("/v1/models", "/health", "/health")
        assert endpoint.models == [{"id": "n", "max_model_len": 4096}]


@pytest.mark.parametrize(
    "data",
    [
        answer(404, b"Not Found"),
        answer(200, b"[]"),
        answer(200, b'{"data": 1}'),
        answer(200, b'{"data": [{"\xff": 1}]}'),
        answer(200, b'{"data": [{"a": ' + b"[" * 100_000),
        b"gibberish\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n...",
    ],
    ids=lambda data: repr(data[-30:]),
)
async def test_an_engine_that_does_not_say_its_models_is_still_healthy_and_asked_again(
    data: bytes, engine: Engine
) -> None:
    engine.answers["/v1/models"] = data
    async with checking(config(engine.url, timeout_s=0.2)) as fleet:
        await engine.was_asked("/v1/models", "/health", "/v1/models", "/health")
        endpoint = fleet.pools["p"].endpoints[0]
        assert (endpoint.models, endpoint.healthy, endpoint.last_failure) == ([], True, None)
        engine.answers["/v1/models"] = answer(200, b'{"data":[{"id":"m"}]}')
        await engine.was_asked("/v1/models", "/health", "/health")
        assert endpoint.models == [{"id": "m"}]


async def test_each_engine_kind_is_asked_at_its_own_health_path(engine: Engine) -> None:
    engine.answers["/ready"] = answer(200)
    async with checking(config(engine.url, pool={"engine": "sglang"})):
        await engine.was_asked("/ready", "/v1/models", "/ready")


async def test_engines_that_hang_do_not_hold_up_the_checks_of_the_others(engine: Engine, changes: Changes) -> None:
    hanging = [f"{engine.url}/{number}" for number in range(110)]
    engine.answers.update({f"/{number}/health": HANG for number in range(110)})
    async with checking(config(*hanging, engine.url, timeout_s=2.0, interval_s=60)) as fleet:
        told = {await changes.told.get() for _ in hanging}
        assert told == {f"endpoint p-{number} is unhealthy: /health: TimeoutError" for number in range(110)}
        last = fleet.pools["p"].endpoints[-1]
        assert (last.healthy, last.last_failure, last.models) == (True, None, [{"id": "m"}])


BUSY = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n"


@pytest.mark.parametrize(
    "then", [answer(500), answer(200, b"vllm:num_requests_running{")], ids=["refused", "malformed"]
)
async def test_an_engines_load_is_what_it_last_said_or_nothing(engine: Engine, then: bytes) -> None:
    engine.answers["/metrics"] = answer(200, BUSY)
    async with checking(config(engine.url, pool={"load_interval_s": 0.01})) as fleet:
        await engine.was_asked("/metrics", "/metrics")
        endpoint = fleet.pools["p"].endpoints[0]
        load = endpoint.load
        assert load is not None
        assert (load.running, load.waiting, load.kv_usage) == (3, 1, None)
        assert fleet.snapshot()[0].load == load
        engine.answers["/metrics"] = then
        engine.asked = asyncio.Queue()
        await engine.was_asked("/metrics", "/metrics")
        assert endpoint.load is None
        assert endpoint.healthy


async def test_an_engine_is_not_asked_for_its_load_when_nobody_wants_it(engine: Engine) -> None:
    async with checking(config(engine.url, pool={"load_interval_s": None})):
        asked = {await engine.asked.get() for _ in range(5)}
    assert asked == {"/health", "/v1/models"}
