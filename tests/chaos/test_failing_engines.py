"""Engines that fail, hang or come back, as peers made an outage of one bad engine (reports 25, 26, 28, 29, 31)."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from itertools import pairwise

import msgspec
import pytest

from gateway.upstream.pool import MAX_IDLE_S
from tests.chaos.clients import CHAT_PATH, head_only, in_flight, post, silence, until
from tests.gateway.conftest import CHAT, STREAMED, StartGateway
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Conversation,
    Received,
    Script,
    chunk,
    json_response,
    running,
    token,
    whole_stream,
)

UVICORN_KEEP_ALIVE_S = 5.0
"""How long vLLM and SGLang keep an idle connection by default."""


def answering(status: int, extra: bytes = b"") -> Script:
    async def script(_: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(b"{}", status=status, extra=extra))

    return script


async def reset(_: Received, conversation: Conversation) -> None:
    conversation.reset()


async def test_two_bad_requests_do_not_close_a_pool(start_gateway: StartGateway) -> None:
    """vllm-router PR#60, sglang#25811, and the probe: two requests that got a 500 were retried five times each, and for
    45 s all good ones were refused. At the defaults every good one is served, at once."""
    async with running(answering(500)) as engine, start_gateway([engine.url]) as gateway:
        bad = [(await gateway.client.post(CHAT_PATH, json=CHAT)).status_code for _ in range(2)]
        tried = len(engine.requests)
        engine.script = whole_stream
        good = [(await gateway.client.post(CHAT_PATH, json=STREAMED)).status_code for _ in range(32)]
    assert bad == [500, 500]
    # A request that may kill engines meets two of them (`retry.max_crashes`).
    assert tried == 4
    assert good == [200] * 32


@pytest.mark.parametrize("status", [400, 401, 404, 422, 429])
async def test_client_errors_do_not_open_a_circuit(start_gateway: StartGateway, status: int) -> None:
    """sglang#13894, sglang#25811: 4xx tripped breakers, and the whole fleet was 503."""
    rules = {"retry": {"max_attempts": 1}, "breaker": {"consecutive_failures": 2, "min_volume": 2}}
    async with running(answering(status)) as one, running(answering(status)) as other:
        async with start_gateway([one.url, other.url], pool=rules) as gateway:
            seen = [(await gateway.client.post(CHAT_PATH, json=CHAT)).status_code for _ in range(20)]
            openings = [endpoint.breaker.openings for endpoint in gateway.gateway.fleet.pools["p"].endpoints]
    assert seen == [status] * 20
    assert (openings, len(one.requests), len(other.requests)) == ([0, 0], 10, 10)


@pytest.mark.parametrize("endpoints", [1, 3])
async def test_the_last_engines_are_never_left_out(start_gateway: StartGateway, endpoints: int) -> None:
    """sglang#25811: with every circuit open, nothing was left to ask. All engines fail here, and requests still go to
    them, so that the first good answer is seen."""
    rules = {"retry": {"max_attempts": 1}, "breaker": {"consecutive_failures": 1, "open_s": 60.0, "max_open_s": 60.0}}
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(answering(500))) for _ in range(endpoints)]
        async with start_gateway([engine.url for engine in engines], pool=rules) as gateway:
            outage = [(await gateway.client.post(CHAT_PATH, json=CHAT)).status_code for _ in range(6)]
            for engine in engines:
                engine.script = answering(200)
            after = [(await gateway.client.post(CHAT_PATH, json=CHAT)).status_code for _ in range(6)]
    assert outage == [500] * 6
    assert after == [200] * 6


@pytest.mark.parametrize("script", [answering(503), reset, silence], ids=["503", "reset", "silence"])
async def test_an_outage_ends_within_one_rest(start_gateway: StartGateway, script: Script) -> None:
    """sglang#31206, litellm#30192: a breaker stuck half-open, 408s until the restart. After an outage of several rests
    the engine serves again no later than one rest after it works; meanwhile the other one serves everybody."""
    pool = {
        "timeouts": {"first_byte_s": 0.05},
        "retry": {"base_delay_s": 0.001, "budget_share": 1.0, "budget_min_per_s": 100.0},
        "breaker": {"consecutive_failures": 2, "open_s": 0.1, "max_open_s": 0.3},
        "slow_start_s": 0.0,
    }
    async with running(script) as sick, running(whole_stream) as well:
        async with start_gateway([well.url, sick.url], pool=pool) as gateway:
            loop = asyncio.get_running_loop()
            until_s = loop.time() + 0.8
            while loop.time() < until_s:
                assert (await gateway.client.post(CHAT_PATH, json=STREAMED)).status_code == 200
                await asyncio.sleep(0.01)
            breaker = gateway.gateway.fleet.pools["p"].endpoints[1].breaker
            assert breaker.openings >= 2
            sick.script, before = whole_stream, len(sick.requests)
            recovered_s = loop.time()
            while breaker.closed_s < recovered_s and loop.time() < recovered_s + 2:
                assert (await gateway.client.post(CHAT_PATH, json=STREAMED)).status_code == 200
                await asyncio.sleep(0.01)
            assert breaker.closed_s - recovered_s <= 0.3 + 0.1
            for _ in range(8):
                await gateway.client.post(CHAT_PATH, json=STREAMED)
            assert len(sick.requests) - before >= 4


@pytest.mark.parametrize("policy", ["round_robin", "least_in_flight"])
async def test_a_burst_of_equal_prompts_spreads(start_gateway: StartGateway, policy: str) -> None:
    """llm-d-router PR#2515, sglang PR#27547, smg PR#1714, sglang PR#14305: scores that were counted too late sent a
    whole burst to one engine. Of 64 equal prompts at once each of eight idle engines gets its eighth."""
    burst = 64
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(silence)) for _ in range(8)]
        async with start_gateway([engine.url for engine in engines], pool={"policy": policy}) as gateway:
            asking = [asyncio.create_task(gateway.client.post(CHAT_PATH, json=CHAT)) for _ in range(burst)]
            await until(lambda: sum(len(engine.requests) for engine in engines) == burst, within_s=5)
            assert in_flight(gateway) == burst
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await until(lambda: in_flight(gateway) == 0)
    assert [len(engine.requests) for engine in engines] == [burst // 8] * 8


async def test_one_engine_that_hangs_holds_up_nobody_else(start_gateway: StartGateway) -> None:
    """production-stack#749: one hung backend froze all. While 20 requests hang at one engine, those to the other take
    as long as ever, and each hanging one ends after its own time."""
    pool = {"policy": "round_robin", "timeouts": {"first_byte_s": 0.5}, "retry": {"max_attempts": 1}}
    async with running(head_only) as hung, running(whole_stream) as well:
        async with start_gateway([hung.url, well.url], pool=pool) as gateway:
            loop = asyncio.get_running_loop()

            async def ask() -> tuple[int, float]:
                started_s = loop.time()
                response = await gateway.client.post(CHAT_PATH, json=STREAMED)
                return response.status_code, loop.time() - started_s

            answers = await asyncio.gather(*(ask() for _ in range(40)))
    statuses = Counter(status for status, _ in answers)
    assert statuses == {200: 20, 504: 20}
    assert max(took_s for status, took_s in answers if status == 200) <= 0.4
    assert max(took_s for status, took_s in answers if status == 504) <= 1.0


async def test_two_thousand_streams_at_once(start_gateway: StartGateway) -> None:
    """production-stack#448, #680: crashes from a thousand connections on. Two thousand streams are open together, then
    all of them end well."""
    streams = 2000
    release = asyncio.Event()

    async def hold(_: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await conversation.send(chunk(token(" b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with running(hold) as engine, start_gateway([engine.url]) as gateway:
        whole = asyncio.gather(*(read_stream(gateway.port) for _ in range(streams)))
        await until(lambda: in_flight(gateway) == len(engine.requests) == streams, within_s=30)
        release.set()
        assert await whole == [True] * streams
        records = await gateway.records()
    assert Counter(record.outcome for record in records) == {"ok": streams}


async def read_stream(port: int) -> bool:
    """Whether a stream came to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(post(STREAMED))
    seen = await reader.readuntil(LAST_CHUNK)
    writer.close()
    return DONE in seen


@pytest.mark.parametrize(
    ("script", "status", "attempts"),
    [(answering(500), 500, 2), (reset, 502, 2), (answering(503), 503, 3), (answering(429), 429, 3)],
    ids=["500", "reset", "503", "429"],
)
async def test_attempts_are_few_and_the_last_answer_is_told(
    start_gateway: StartGateway, script: Script, status: int, attempts: int
) -> None:
    """Probe rows "500/503/429 attempts" and "RSTs before headers" at the defaults: peers tried up to ten times, and
    their message told the engine's URL."""
    async with running(script) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=CHAT)
    assert (response.status_code, len(engine.requests)) == (status, attempts)
    assert f":{engine.port}" not in response.text


@pytest.mark.parametrize("status", [429, 503])
async def test_a_retry_after_is_waited_for_or_passed_on(start_gateway: StartGateway, status: int) -> None:
    """Probe rows "503/429 attempts": every peer ignored `Retry-After: 2` or dropped it. What is short is waited for;
    what is too long reaches the client, header included, after one attempt."""
    times: list[float] = []
    wait = b"0.2"

    async def busy(_: Received, conversation: Conversation) -> None:
        times.append(asyncio.get_running_loop().time())
        await conversation.send(json_response(b"{}", status=status, extra=b"retry-after: %b\r\n" % wait))

    async with running(busy) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=CHAT)
        assert response.status_code == status
        assert min(after - before for before, after in pairwise(times)) >= 0.2
        wait = b"30"
        response = await gateway.client.post(CHAT_PATH, json=CHAT)
        assert response.headers["retry-after"] == "30"
        assert len(engine.requests) == 3 + 1


async def test_names_from_outside_are_no_labels(start_gateway: StartGateway) -> None:
    """litellm#35666, litellm PR#39136: mistyped models and raw paths became labels without bound."""
    async with running(answering(404)) as engine, start_gateway([engine.url]) as gateway:
        for number in range(20):
            body = msgspec.json.encode({**CHAT, "model": f"typo-{number}"})
            await gateway.client.post(f"/v1/made/up/{number}", content=body)
            await gateway.client.post(f"/v1/made/up/{number}", json=CHAT)
        page = (await gateway.client.get("/metrics")).text
    assert "typo-" not in page
    assert "made" not in page
    assert 'weir_requests_total{outcome="error",pool="none",route="none",status="404"} 20.0' in page


async def test_idle_connections_are_given_up_before_the_engine_does(start_gateway: StartGateway) -> None:
    """bifrost#1305, bifrost#2276: every other request met a connection that uvicorn had closed after its 5 s. The
    gateway lets go of an idle one earlier; one that dies under a request is replaced unnoticed."""
    closing = False

    async def leaves(request: Received, conversation: Conversation) -> None:
        if closing and request.connection == engine.requests[0].connection:
            conversation.writer.close()
        else:
            await whole_stream(request, conversation)

    async with running(leaves) as engine, start_gateway([engine.url]) as gateway:
        assert (await gateway.client.post(CHAT_PATH, json=STREAMED)).status_code == 200
        closing = True
        response = await gateway.client.post(CHAT_PATH, json=STREAMED)
        [_, record] = await gateway.records()
    assert DONE in response.content
    assert record.attempts == 2
    assert MAX_IDLE_S < UVICORN_KEEP_ALIVE_S
