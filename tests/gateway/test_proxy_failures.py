"""Engines that fail: what the client is told, in whichever way is still open, and what the record says."""

from __future__ import annotations

import asyncio

import pytest

from tests.gateway.conftest import CHAT, STREAMED, StartGateway, error_of
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Conversation,
    Received,
    answer,
    chunk,
    hang_up,
    json_response,
    running,
    silence,
    token,
)


async def test_an_engine_that_is_down_is_503_with_retry_after(start_gateway: StartGateway) -> None:
    async with running(answer) as engine:
        gone = engine.url
    async with start_gateway([gone], pool={"health": {"interval_s": 5.0, "healthy_after": 2}}) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)
        [record] = await gateway.records()
    assert response.status_code == 503
    assert response.headers["retry-after"] == "10"
    assert error_of(response.content)["type"] == "no_endpoint"
    assert gone not in response.text
    assert (record.attempts, record.error_kind) == (6, "no_endpoint")


async def test_a_dead_endpoint_is_passed_over_for_a_live_one(start_gateway: StartGateway) -> None:
    async with running(answer) as dead:
        gone = dead.url
    async with running(answer) as engine:
        async with start_gateway([gone, engine.url], pool={"health": {"interval_s": 60.0}}) as gateway:
            responses = [await gateway.client.post("/v1/chat/completions", json=CHAT) for _ in range(4)]
            records = await gateway.records()
    assert [response.status_code for response in responses] == [200] * 4
    assert {record.endpoint for record in records} == {"p-1"}
    assert sorted(record.attempts for record in records) == [1, 1, 2, 2]


async def garbage(request: Received, conversation: Conversation) -> None:
    await conversation.send(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    await conversation.until_left()


async def endless_head(request: Received, conversation: Conversation) -> None:
    await conversation.send(b"HTTP/1.1 200 OK\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"y" * 999) for n in range(100)))
    await conversation.until_left()


@pytest.mark.parametrize(
    ("script", "status", "kind"),
    [
        (garbage, 502, "garbage"),
        (endless_head, 502, "garbage"),
        (hang_up, 502, "closed_before_response"),
        (silence, 504, "first_byte_timeout"),
    ],
)
async def test_an_engine_that_misbehaves_before_its_answer(
    start_gateway: StartGateway, script: object, status: int, kind: str
) -> None:
    async with (
        running(script) as engine,  # type: ignore[arg-type]
        start_gateway([engine.url], pool={"timeouts": {"first_byte_s": 0.2}}) as gateway,
    ):
        response = await gateway.client.post("/v1/chat/completions", json=CHAT)
        [record] = await gateway.records()
        await asyncio.wait_for(engine.conversations[-1].left.wait(), 2)
    assert (response.status_code, error_of(response.content)["type"]) == (status, kind)
    assert (record.outcome, record.error_source, record.error_kind) == ("error", "upstream", kind)


async def reset_midway(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await asyncio.sleep(0.01)
    conversation.reset()


async def broken_chunk(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")) + b"zz\r\nnonsense")
    await conversation.until_left()


async def ends_without_saying_so(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")) + LAST_CHUNK)


async def stalls(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await conversation.until_left()


@pytest.mark.parametrize(
    ("script", "outcome", "kind"),
    [
        (reset_midway, "truncated", "truncated"),
        (broken_chunk, "truncated", "truncated"),
        (ends_without_saying_so, "truncated", "truncated"),
        (stalls, "error", "chunk_gap_timeout"),
    ],
)
async def test_a_stream_that_breaks_off_ends_in_an_in_band_error(
    start_gateway: StartGateway, script: object, outcome: str, kind: str
) -> None:
    async with (
        running(script) as engine,  # type: ignore[arg-type]
        start_gateway([engine.url], pool={"timeouts": {"chunk_gap_s": 0.2}}) as gateway,
    ):
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    first, last = response.content.strip().split(b"\n\n")
    assert first + b"\n\n" == token("a")
    error = error_of(last.removeprefix(b"data: "))
    assert (error["type"], error["request_id"]) == (kind, record.request_id)
    assert (record.outcome, record.error_kind, record.status) == (outcome, kind, 200)


async def test_a_json_answer_that_breaks_off_is_cut_for_the_client_too(start_gateway: StartGateway) -> None:
    async def cut(request: Received, conversation: Conversation) -> None:
        await conversation.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{")
        conversation.writer.close()

    async with running(cut) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n\r\n" + b'{"model":"m"}')
        seen = b""
        try:
            while data := await reader.read(65536):
                seen += data
        except ConnectionError:
            pass
        writer.close()
        [record] = await gateway.records()
    assert seen.endswith(b"\r\n\r\n{")
    assert record.outcome == "truncated"


async def test_an_error_inside_a_stream_passes_and_is_counted(start_gateway: StartGateway) -> None:
    failure = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'

    async def dies(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")) + chunk(failure) + chunk(DONE) + LAST_CHUNK)

    async with running(dies) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    assert response.content == token("a") + failure + DONE
    assert (record.outcome, record.error_source, record.error_kind) == ("error", "upstream", "error_in_stream")


async def test_an_engines_error_response_passes_with_status_and_body(start_gateway: StartGateway) -> None:
    body = b'{"object":"error","message":"The request queue is full.","type":"503","param":null,"code":503}'

    async def full(request: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(body, status=503, extra=b"retry-after: 7\r\n"))

    async with running(full) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
    assert (response.status_code, response.content, response.headers["retry-after"]) == (503, body, "7")
    assert response.headers["content-type"] == "application/json"
