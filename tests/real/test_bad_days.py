"""Real engines that die, hang or starve while a client reads: what the client is told, and what the record says.

Each test starts an engine of its own, since it does not survive.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest

from protocol.continuation import continuation
from protocol.records import GatewayRecord
from tests.chaos.clients import post
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.real.conftest import FLAGS, ROUTES, chat, note_start, pool_of, until_idle
from tests.real.test_answers import PATH, events, text_of
from tools.engines.launch import RunningEngine, running

pytestmark = pytest.mark.timeout(300)

HEART = {"vllm": "EngineCore", "sglang": "scheduler"}
"""In the command line of the process that generates."""


@contextmanager
def mortal(config: pytest.Config, kind: str, *flags: str, size: str = "small") -> Iterator[RunningEngine]:
    with running(kind, *FLAGS[kind].split(), *flags, size=size) as engine:
        note_start(config, engine)
        yield engine


async def read_events(reader: asyncio.StreamReader, count: int) -> bytes:
    """The head of a response and its first events, as they came."""
    data = b""
    for _ in range(count):
        data += await reader.readuntil(b"\n\n")
    return data


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """To the end of the chunked body."""
    return await reader.readuntil(b"0\r\n\r\n")


def data_of(wire: bytes) -> list[bytes]:
    return [line[6:].strip() for line in wire.split(b"\n") if line.startswith(b"data: ")]


async def open_stream(gateway: RunningGateway, **more: Any) -> tuple[asyncio.StreamReader, bytes]:
    """A stream that has begun, and what has come of it."""
    reader, writer = await gateway.connect()
    writer.write(post(chat(stream=True, **more)))
    return reader, await read_events(reader, 6)


async def the_record(gateway: RunningGateway) -> GatewayRecord:
    (record,) = await gateway.records()
    return record


async def test_an_engine_that_is_killed_mid_stream_ends_in_an_error_or_is_continued(
    engine: RunningEngine,
    start_gateway: StartGateway,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM says so in the stream, within a second; SGLang cuts the connection some seconds later."""
    asked = {"content": "A river dies slowly.", "max_tokens": 120}
    pool = pool_of(engine, policy="round_robin", health={"interval_s": 60, "timeout_s": 25})
    continued = noting_continuations(monkeypatch)
    with mortal(request.config, engine.kind) as dying:
        async with (
            start_gateway([dying.url], pool=pool, routes=ROUTES) as plain,
            start_gateway(
                [dying.url, engine.url], pool=pool, routes=[{**ROUTES[0], "continuation": True}], name="continuing"
            ) as second,
        ):
            reader, begun = await open_stream(plain, **asked)
            # Turns begin with the second endpoint.
            await second.client.post(PATH, json=chat(max_tokens=1), timeout=60)
            saved, opening = await open_stream(second, **asked)
            (heart,) = [pid for pid, command in dying.children().items() if HEART[engine.kind] in command]
            os.kill(heart, signal.SIGKILL)
            async with asyncio.timeout(30):
                failed = data_of(begun + await rest_of(reader))
                whole = data_of(opening + await rest_of(saved))
            record, (_, kept) = await the_record(plain), await second.records()
    # vLLM sends [DONE] behind its error.
    error = next(msgspec.json.decode(one)["error"] for one in failed[-2:] if one.startswith(b'{"error"'))
    assert error["message"]
    assert record.outcome in ("error", "truncated")
    assert record.usage_partial
    assert (kept.outcome, kept.continuations, kept.finish_reason) == ("ok", 1, "length"), (kept, whole[-1])
    text = text_of([msgspec.json.decode(one) for one in whole[:-1]])
    (again,) = continued
    said = msgspec.json.decode(again)["messages"][-1]["content"]
    assert said
    # Nothing is lost or said twice at the seam: the rest is what the other engine says behind what had been said.
    assert text == said + await answer_of(engine, again)


def noting_continuations(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Bodies of the requests with which the gateway continues streams."""
    bodies: list[bytes] = []

    def noting(*arguments: Any) -> Any:
        found = continuation(*arguments)
        bodies.append(found.body)
        return found

    monkeypatch.setattr("gateway.proxy.continuation", noting)
    return bodies


async def answer_of(engine: RunningEngine, body: bytes) -> str:
    await until_idle(engine)
    async with httpx.AsyncClient(trust_env=False) as client:
        json = {"content-type": "application/json"}
        return text_of(events((await client.post(engine.url + PATH, content=body, headers=json, timeout=60)).content))


async def test_an_engine_that_is_told_to_stop(
    engine: RunningEngine, start_gateway: StartGateway, request: pytest.FixtureRequest
) -> None:
    """SGLang finishes its streams. vLLM lets them hang, without a byte or an end, until their client gives up."""
    timeouts, tokens = {"chunk_gap_s": 3.0}, 1500 if engine.kind == "vllm" else 150
    with mortal(request.config, engine.kind) as leaving:
        async with start_gateway([leaving.url], pool=pool_of(engine, timeouts=timeouts), routes=ROUTES) as gateway:
            reader, begun = await open_stream(gateway, max_tokens=tokens)
            leaving.signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                data = data_of(begun + await rest_of(reader))
            record = await the_record(gateway)
            async with asyncio.timeout(40):
                while (await gateway.client.get("/readyz")).status_code != 503:
                    await asyncio.sleep(0.1)
            refused = await gateway.client.post(PATH, json=chat(), timeout=60)
    if engine.kind == "sglang":
        assert data[-1] == b"[DONE]"
        assert (record.outcome, record.completion_tokens) == ("ok", tokens)
    else:
        assert "chunk" in msgspec.json.decode(data[-1])["error"]["type"]
        assert (record.outcome, record.error_kind, record.usage_partial) == ("error", "chunk_gap_timeout", True)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]


async def test_chunks_that_a_starved_engine_sends_late_are_recorded_late(
    engine: RunningEngine, start_gateway: StartGateway, request: pytest.FixtureRequest
) -> None:
    """A model too small for vLLM leaves its API server no time: a stream's chunks come together, at its end.

    The record's first token is when its client had it, not when the engine made it.
    """
    if engine.kind != "vllm":
        pytest.skip("SGLang's API server has a core to itself")
    with mortal(request.config, engine.kind, size="tiny") as starved:
        async with start_gateway([starved.url], pool=pool_of(engine), routes=ROUTES) as gateway:
            seen_s = dict(await asyncio.gather(*(first_token_s(gateway, number) for number in range(4))))
            records = await gateway.records()
    assert [record.outcome for record in records] == ["ok"] * 4
    assert [record.completion_tokens for record in records] == [400] * 4
    for record in records:
        assert record.first_token_ns is not None
        assert record.marks_ns["first_byte"] < record.first_token_ns <= record.marks_ns["finish"]
        assert record.events <= 403
        # They differ by the way to the client and by what the test's own loop adds.
        assert record.first_token_ns * 1e-9 <= seen_s[record.request_id]
        assert seen_s[record.request_id] - record.first_token_ns * 1e-9 < 0.5


async def first_token_s(gateway: RunningGateway, number: int) -> tuple[str, float]:
    """Request id of a stream, and when its client had the first token, from its sending on."""
    loop = asyncio.get_running_loop()
    body = chat(f"Quick, {number}.", stream=True, max_tokens=400)
    started_s, seen_s = loop.time(), 0.0
    async with gateway.client.stream(
        "POST", PATH, json=body, headers={"x-request-id": f"quick-{number}"}, timeout=120
    ) as answer:
        async for line in answer.aiter_lines():
            if not seen_s and '"content":"' in line and '"content":""' not in line:
                seen_s = loop.time() - started_s
    return f"quick-{number}", seen_s
