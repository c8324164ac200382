"""Clients that leave, and clients that read slowly: what becomes of their engines, ledgers and records."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from tests.gateway.conftest import CHAT, STREAMED, StartGateway, until
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Conversation,
    Received,
    chunk,
    only_the_head,
    running,
    silence,
    stream_for_ever,
)


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [silence, only_the_head, stream_for_ever])
async def test_a_client_that_leaves_frees_the_engine_in_every_phase(
    start_gateway: StartGateway, script: object, stream: bool, reset: bool
) -> None:
    body = msgspec.json.encode({**CHAT, "stream": stream})
    async with running(script) as engine, start_gateway([engine.url]) as gateway:  # type: ignore[arg-type]
        _, writer = await gateway.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await until(lambda: engine.requests)
        await asyncio.sleep(0.02)
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        [record] = await gateway.records()
        assert [endpoint.in_flight for endpoint in gateway.gateway.fleet.pools["p"].endpoints] == [0]
    assert (record.outcome, record.error_kind) == ("client_gone", None)


async def test_a_slow_reader_pauses_the_engine_and_loses_nothing(start_gateway: StartGateway) -> None:
    block = b"data: " + b"x" * 65_000 + b"\n\n"
    sent = 0

    async def flood(request: Received, conversation: Conversation) -> None:
        nonlocal sent
        await conversation.send(SSE_HEAD)
        for _ in range(400):
            await conversation.send(chunk(block))
            sent += 1
        await conversation.send(chunk(DONE) + LAST_CHUNK)

    body = msgspec.json.encode(STREAMED)
    async with running(flood) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        before = -1
        async with asyncio.timeout(5):
            while sent == 0 or sent != before:
                before = sent
                await asyncio.sleep(0.1)
        held = sent
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 0
        async with asyncio.timeout(20):
            while received < 400 * len(block):
                received += len(await reader.read(1 << 20))
        writer.close()
        [record] = await gateway.records()
    assert held < 400, "the engine was never held back"
    assert record.response_bytes == 400 * len(block) + len(DONE)
