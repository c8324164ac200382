"""Full, left, ordered and drained: real engines under more than one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from protocol.prometheus import parse
from tests.chaos.clients import post
from tests.gateway.conftest import RunningGateway, StartGateway, error_of
from tests.real.conftest import QUEUE, ROUTES, SLOTS, chat, in_flight_settles, pool_of, until_busy, until_idle
from tests.real.test_answers import PATH, events
from tests.scripted_engine import running as scripted
from tests.scripted_engine import whole_stream
from tools.engines.launch import RunningEngine

pytestmark = pytest.mark.timeout(240)

LONG = {"max_tokens": 4000, "stream": True}
"""Longer than any of these tests."""


async def leave(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    if reset:
        writer.transport.abort()
    else:
        writer.close()


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("phase", ["streaming", "waiting", "unstreamed"])
async def test_a_client_that_leaves_frees_the_engine(
    engine: RunningEngine, start_gateway: StartGateway, phase: str, reset: bool
) -> None:
    """`waiting`: queued behind others at the engine, so nothing has come back yet."""
    body = chat(f"Leaving, {phase}, {reset}.", **{**LONG, "stream": phase != "unstreamed"})
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        others = []
        if phase == "waiting":
            for number in range(SLOTS):
                reader, writer = await running.connect()
                writer.write(post(chat(f"In the way, {number}.", **LONG)))
                others.append(writer)
                await reader.readuntil(b"\n\n")
        reader, writer = await running.connect()
        writer.write(post(body))
        await until_busy(engine, len(others) + 1)
        if phase == "streaming":
            await reader.readuntil(b"data: ")
        await leave(writer, reset=reset)
        async with asyncio.timeout(2):
            while len(running.gateway.proxy.live) > len(others):
                await asyncio.sleep(0.002)
        for other in others:
            await leave(other, reset=reset)
        await until_idle(engine)
        await in_flight_settles(running)
        records = await running.records()
    assert {record.outcome for record in records} == {"client_gone"}
    assert all(record.completion_tokens is None or record.usage_partial for record in records)


async def ask(running: RunningGateway, number: int, **more: Any) -> httpx.Response:
    return await running.client.post(PATH, json=chat(f"Question {number}.", max_tokens=40, **more), timeout=120)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_full_engine_is_a_503_whatever_it_calls_it(
    engine: RunningEngine, start_gateway: StartGateway, stream: bool
) -> None:
    """Both report a full queue of a stream as the first event of a 200."""
    pool = pool_of(engine, retry={"max_attempts": 1})
    count = 3 * (SLOTS + QUEUE)
    async with start_gateway([engine.url], pool=pool, routes=ROUTES) as running:
        answers = await asyncio.gather(*(ask(running, number, stream=stream) for number in range(count)))
        await until_idle(engine)
        records = await running.records()
    served = [answer for answer in answers if answer.status_code == 200]
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(served) + len(refused) == count
    assert len(served) >= SLOTS
    assert len(refused) >= SLOTS
    # A whole answer is the engine's own, and SGLang's is flat.
    assert all((error_of(answer.content) if stream else flat(answer.json()))["message"] for answer in refused)
    if stream:
        assert all(len(events(answer.content)) > 1 for answer in served)
    assert sorted(record.status or 0 for record in records) == sorted(answer.status_code for answer in answers)


def flat(body: dict[str, Any]) -> dict[str, Any]:
    return body.get("error", body)


async def test_what_a_full_engine_refuses_goes_elsewhere(engine: RunningEngine, start_gateway: StartGateway) -> None:
    count = 2 * (SLOTS + QUEUE)
    async with scripted(whole_stream) as other:
        # Turns are taken, so half of the requests begin at the engine, more than it takes.
        pool = pool_of(engine, policy="round_robin", retry={"budget_share": 1.0})
        async with start_gateway([engine.url, other.url], pool=pool, routes=ROUTES) as running:
            answers = await asyncio.gather(*(ask(running, number, stream=True) for number in range(2 * count)))
            records = await running.records()
            await until_idle(engine)
    assert {answer.status_code for answer in answers} == {200}
    moved = [record for record in records if record.attempts > 1]
    assert len(moved) >= SLOTS
    assert len({record.endpoint for record in moved}) == 1


async def test_priority_has_the_engines_own_direction(engine: RunningEngine, start_gateway: StartGateway) -> None:
    """vLLM serves the lowest number first, SGLang the highest; the gateway passes the field on as it is."""
    urgent, patient = (-5, 5) if engine.kind == "vllm" else (5, -5)
    finished: list[str] = []

    async def one(running: RunningGateway, name: str, priority: int, tokens: int) -> None:
        body = chat(f"I am {name}.", priority=priority, max_tokens=tokens, stream=True)
        answer = await running.client.post(PATH, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        finished.append(name)

    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        async with asyncio.TaskGroup() as tasks:
            for number in range(SLOTS):
                tasks.create_task(one(running, f"first {number}", 0, 300))
            await until_busy(engine, SLOTS)
            for number in range(2):
                tasks.create_task(one(running, f"patient {number}", patient, 30))
            await until_busy(engine, SLOTS + 2)
            for number in range(2):
                tasks.create_task(one(running, f"urgent {number}", urgent, 30))
    places = {name: place for place, name in enumerate(finished)}
    assert max(places["urgent 0"], places["urgent 1"]) < min(places["patient 0"], places["patient 1"]), finished


PREFIX = "The history of every river begins with rain. " * 100
TOLD = (
    "running_requests",
    "waiting_requests",
    "kv_usage_ratio",
    "prefix_hit_tokens_total",
    "prefix_query_tokens_total",
)

RESET = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}


async def test_a_repeated_prefix_is_seen_as_cached_until_the_cache_is_reset(
    engine: RunningEngine, start_gateway: StartGateway
) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        for reset in (True, False, True):
            if reset:
                await until_idle(engine)
                async with httpx.AsyncClient(trust_env=False) as client:
                    answer = await client.post(engine.url + RESET[engine.kind], timeout=30)
                assert answer.status_code == 200, answer.text
            await running.client.post(PATH, json=chat(PREFIX, stream=True), timeout=120)
        cold, warm, again = await running.records()
    assert not cold.cached_tokens
    assert warm.cached_tokens is not None
    assert warm.prompt_tokens is not None
    # Both engines keep whole blocks, and compute the last token anew.
    assert 0.9 * warm.prompt_tokens < warm.cached_tokens < warm.prompt_tokens
    assert not again.cached_tokens


async def test_a_connection_that_the_engine_closes_idle_costs_no_request(
    engine: RunningEngine, start_gateway: StartGateway
) -> None:
    """Both close after 5 s."""
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        for pause_s in (4.0, 4.9, 5.05, 0):
            assert (await running.client.post(PATH, json=chat(), timeout=60)).status_code == 200
            await asyncio.sleep(pause_s)
        records = await running.records()
    assert [record.outcome for record in records] == ["ok"] * 4


async def test_a_draining_gateway_finishes_its_streams(engine: RunningEngine, start_gateway: StartGateway) -> None:
    async with start_gateway(
        [engine.url], pool=pool_of(engine), routes=ROUTES, drain={"settle_s": 0.1, "timeout_s": 60}
    ) as running:
        reader, writer = await running.connect()
        writer.write(post(chat(max_tokens=100, stream=True)))
        await reader.readuntil(b"data: ")
        running.gateway.proxy.ready = False
        draining = asyncio.create_task(running.gateway.proxy.drain(60))
        rest = await reader.readuntil(b"data: [DONE]\n\n")
        await draining
        refused = await running.client.post(PATH, json=chat(), timeout=60)
        stream, _ = await running.records()
    assert b'"finish_reason":"length"' in rest
    assert (stream.outcome, stream.completion_tokens) == ("ok", 100)
    assert refused.status_code == 503


async def test_both_kinds_tell_their_load_under_the_same_names(
    engine: RunningEngine, start_gateway: StartGateway
) -> None:
    """More streams than it works on: as many as it has slots run, the rest waits, and the cache fills and is hit."""
    waiting = 2
    pool = pool_of(engine, load_interval_s=0.1)
    async with start_gateway([engine.url], pool=pool, routes=ROUTES) as running:
        await until_idle(engine)
        for _ in range(2):
            assert (await running.client.post(PATH, json=chat(PREFIX), timeout=120)).status_code == 200
        before = await until_told(running, lambda load: load["prefix_hit_tokens_total"] > 0)
        writers = []
        for number in range(SLOTS + waiting):
            _, writer = await running.connect()
            writer.write(post(chat(f"{PREFIX} {number}", **LONG)))
            writers.append(writer)
        busy = await until_told(running, lambda load: requests(load) == (SLOTS, waiting))
        for writer in writers:
            await leave(writer, reset=False)
        await until_told(running, lambda load: requests(load) == (0, 0))
    assert 0 < busy["kv_usage_ratio"] < 1
    assert before["prefix_hit_tokens_total"] < before["prefix_query_tokens_total"]


def requests(load: dict[str, float]) -> tuple[float, float]:
    """How many run and how many wait."""
    return load["running_requests"], load["waiting_requests"]


async def until_told(
    running: RunningGateway, holds: Callable[[dict[str, float]], bool], within_s: float = 30.0
) -> dict[str, float]:
    """The engine's load on the gateway's `/metrics`, once all of it is there and as it should be."""
    load: dict[str, float] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            while len(load) < len(TOLD) or not holds(load):
                await asyncio.sleep(0.05)
                page = (await running.client.get("/metrics")).text
                found = {sample.name.removeprefix("weir_engine_"): sample.value for sample in parse(page)}
                load = {name: found[name] for name in TOLD if name in found}
            return load
    pytest.fail(f"never told: {load}")
