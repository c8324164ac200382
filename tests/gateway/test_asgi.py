"""The proxy behind plain ASGI behaves as it does on the transport: served by an unmodified uvicorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import uvicorn

from gateway.app import Gateway
from tests.gateway.conftest import CHAT, STREAMED, RunningGateway, make_config
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STREAM,
    Conversation,
    Received,
    chunk,
    json_response,
    running,
    token,
    whole_stream,
)


@asynccontextmanager
async def asgi_gateway(engine_url: str, records: Path, **sections: Any) -> AsyncIterator[RunningGateway]:
    gateway = Gateway(make_config([engine_url], records, **sections))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(gateway.asgi(), log_config=None, ws="none", access_log=False))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.001)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        yield RunningGateway(gateway=gateway, port=port, client=client, records_path=records)
    server.should_exit = True
    await serving


async def test_a_stream_and_its_record_are_the_same(tmp_path: Path) -> None:
    async with running(whole_stream) as engine, asgi_gateway(engine.url, tmp_path / "r") as gateway:
        response = await gateway.client.post("/v1/chat/completions?a=b", json=STREAMED)
        [record] = await gateway.records()
        models = await gateway.client.get("/v1/models")
    assert response.content == b"".join(STREAM)
    assert response.headers["x-weir-pool"] == "p"
    assert engine.requests[0].path == "/v1/chat/completions?a=b"
    assert (record.outcome, record.completion_tokens) == ("ok", 3)
    assert models.json()["data"][0]["id"] == "m"


async def test_a_refusal_is_the_same(tmp_path: Path) -> None:
    async with running(whole_stream) as engine:
        async with asgi_gateway(engine.url, tmp_path / "r", limits={"body_bytes": 100, "receive_s": 0.2}) as gateway:
            unknown = await gateway.client.post("/v1/chat/completions", json={"model": "x"})
            large = await gateway.client.post("/v1/chat/completions", content=b"x" * 101)
            reader, writer = await gateway.connect()
            writer.write(b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            slow = await asyncio.wait_for(reader.readuntil(b"\r\n"), 3)
            writer.close()
            await gateway.settled()
    assert (unknown.status_code, large.status_code, slow) == (404, 413, b"HTTP/1.1 408 Request Timeout\r\n")


async def silence(request: Received, conversation: Conversation) -> None:
    await conversation.until_left()


async def headers_then_silence(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD)
    await conversation.until_left()


@pytest.mark.parametrize("script", [silence, headers_then_silence])
async def test_a_client_that_leaves_frees_the_engine(tmp_path: Path, script: object) -> None:
    body = msgspec.json.encode(CHAT)
    async with running(script) as engine, asgi_gateway(engine.url, tmp_path / "r") as gateway:  # type: ignore[arg-type]
        _, writer = await gateway.connect()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        async with asyncio.timeout(2):
            while not engine.requests:
                await asyncio.sleep(0.001)
        writer.close()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        [record] = await gateway.records()
    assert record.outcome == "client_gone"


async def test_a_slow_reader_pauses_the_engine_and_loses_nothing(tmp_path: Path) -> None:
    block = b"data: " + b"x" * 65_000 + b"\n\n"
    sent = 0

    async def flood(request: Received, conversation: Conversation) -> None:
        nonlocal sent
        await conversation.send(SSE_HEAD)
        for _ in range(300):
            await conversation.send(chunk(block))
            sent += 1
        await conversation.send(chunk(DONE) + LAST_CHUNK)

    async with running(flood) as engine, asgi_gateway(engine.url, tmp_path / "r") as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
            before = -1
            while sent == 0 or sent != before:
                before = sent
                await asyncio.sleep(0.1)
            held = sent
            received = sum([len(piece) async for piece in response.aiter_raw()])
    assert held < 300
    assert received == 300 * len(block) + len(DONE)


async def test_an_answer_cut_short_is_cut_for_the_client(tmp_path: Path) -> None:
    async def cut(request: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(b"x" * 50)[:-10])
        conversation.writer.close()

    async with running(cut) as engine, asgi_gateway(engine.url, tmp_path / "r") as gateway:
        with pytest.raises(httpx.RemoteProtocolError):
            await gateway.client.post("/v1/chat/completions", json=CHAT)
        [record] = await gateway.records()
    assert record.outcome == "truncated"


async def test_a_broken_stream_ends_in_band(tmp_path: Path) -> None:
    async def broken(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")) + LAST_CHUNK)

    async with running(broken) as engine, asgi_gateway(engine.url, tmp_path / "r") as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)
    assert b'"type":"truncated"' in response.content
