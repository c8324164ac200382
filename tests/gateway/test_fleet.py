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

from gateway.config import Config, HealthConfig
from gateway.discovery import static
from gateway.fleet import Endpoint, Fleet, Pool

HANG = b""
"""An answer that never comes."""


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


def config(*urls: str, policy: str = "least_in_flight", engine: str = "vllm", **health: Any) -> Config:
    pool = {
        "engine": engine,
        "endpoints": [{"url": url} for url in urls],
        "policy": policy,
        "health": {"interval_s": 0.01, "timeout_s": 1.0, "unhealthy_after": 1, **health},
    }
    return Config.model_validate({"pools": {"p": pool}, "routes": [{"model": "m", "split": {"p": 1}}]})


def pool_of(count: int, policy: str = "least_in_flight", **health: Any) -> Pool:
    urls = [f"http://10.0.0.{number}" for number in range(1, count + 1)]
    return Fleet(config(*urls, policy=policy, **health), static.addresses).pools["p"]


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
        endpoint.note_check("/health answered 500" if check == "x" else None)
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
    health = HealthConfig(unhealthy_after=unhealthy_after, healthy_after=healthy_after)
    endpoint = pool_of(1).endpoints[0]
    fresh = Endpoint(endpoint.address, endpoint.kind, health)
    assert fresh.healthy
    assert checked(fresh, checks) == states


def test_the_last_failure_outlives_the_recovery_and_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = pool_of(1).endpoints[0]
    assert endpoint.last_failure is None
    checked(endpoint, "xxx..")
    assert endpoint.last_failure == "/health answered 500"
    assert caplog.messages == ["endpoint p-0 is unhealthy: /health answered 500", "endpoint p-0 is healthy again"]


def test_leases_are_counted_however_they_end() -> None:
    endpoint = pool_of(1).endpoints[0]
    with endpoint:
        with endpoint:
            assert endpoint.in_flight == 2
        assert endpoint.in_flight == 1
        for failure in (ValueError, asyncio.CancelledError, GeneratorExit):
            with pytest.raises(failure), endpoint:
                raise failure
    assert endpoint.in_flight == 0


async def test_a_lease_ends_with_a_cancelled_task() -> None:
    endpoint = pool_of(1).endpoints[0]

    async def hold() -> None:
        with endpoint:
            await asyncio.Event().wait()

    task = asyncio.create_task(hold())
    await asyncio.sleep(0)
    assert endpoint.in_flight == 1
    task.cancel()
    await asyncio.wait([task])
    assert endpoint.in_flight == 0


def first_names(pool: Pool, times: int) -> list[str]:
    return [pool.candidates()[0].address.name for _ in range(times)]


def test_candidates_are_all_healthy_endpoints_best_first() -> None:
    pool = pool_of(4)
    for endpoint, in_flight in zip(pool.endpoints, (3, 0, 2, 1), strict=True):
        endpoint.in_flight = in_flight
    pool.endpoints[3].healthy = False
    assert [endpoint.address.name for endpoint in pool.candidates()] == ["p-1", "p-2", "p-0"]


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
    assert pool.candidates() == [pool.endpoints[1]]
    pool.endpoints[1].healthy = False
    assert not pool.available
    assert pool.candidates() == []


@pytest.mark.parametrize(
    ("interval_s", "healthy_after", "expected"), [(2.0, 1, 2), (2.0, 3, 6), (0.1, 1, 1), (0.6, 3, 2)]
)
def test_a_client_may_come_back_when_an_endpoint_can(interval_s: float, healthy_after: int, expected: int) -> None:
    assert pool_of(1, interval_s=interval_s, healthy_after=healthy_after).retry_after_s == expected


def test_the_snapshot_shows_every_endpoint_as_it_is() -> None:
    fleet = Fleet(config("http://10.0.0.1:8000/x", "http://10.0.0.2"), static.addresses)
    endpoint = fleet.pools["p"].endpoints[1]
    endpoint.note_check("/health answered 500")
    endpoint.in_flight, endpoint.models = 3, [{"id": "m"}]
    first, second = fleet.snapshot()
    assert (first.pool, first.name, first.url, first.engine) == ("p", "p-0", "http://10.0.0.1:8000/x", "vllm")
    assert (first.healthy, first.in_flight, first.last_failure, first.models) == (True, 0, None, [])
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
    async with checking(config(engine.url, engine="sglang")):
        await engine.was_asked("/ready", "/v1/models", "/ready")


async def test_engines_that_hang_do_not_hold_up_the_checks_of_the_others(engine: Engine, changes: Changes) -> None:
    hanging = [f"{engine.url}/{number}" for number in range(110)]
    engine.answers.update({f"/{number}/health": HANG for number in range(110)})
    async with checking(config(*hanging, engine.url, timeout_s=2.0, interval_s=60)) as fleet:
        told = {await changes.told.get() for _ in hanging}
        assert told == {f"endpoint p-{number} is unhealthy: /health: TimeoutError" for number in range(110)}
        last = fleet.pools["p"].endpoints[-1]
        assert (last.healthy, last.last_failure, last.models) == (True, None, [{"id": "m"}])
