"""Streams that outlive their engine: over real sockets, with engines that die after the first byte."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.gateway.conftest import CHAT, STREAMED, StartGateway
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STREAM,
    Conversation,
    Received,
    chunk,
    running,
    token,
)

ROUTES = [{"model": "m", "split": {"p": 1}, "continuation": True}]
ROLE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
    b'"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
)


def usage(completion_tokens: int) -> bytes:
    counts = {"prompt_tokens": 7, "total_tokens": 7 + completion_tokens, "completion_tokens": completion_tokens}
    body = {"id": "x", "object": "chat.completion.chunk", "created": 9, "model": "m", "choices": [], "usage": counts}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def dies(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(ROLE) + chunk(token("one")) + chunk(token(" two")[:40]))
    await asyncio.sleep(0.01)
    conversation.reset()


async def says_it_dies(request: Received, conversation: Conversation) -> None:
    failure = b'data: {"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}\n\n'
    await conversation.send(SSE_HEAD + chunk(ROLE) + chunk(token("one")) + chunk(failure) + chunk(DONE) + LAST_CHUNK)


async def stops_short(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(ROLE) + chunk(token("one")) + LAST_CHUNK)


async def stalls(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(ROLE) + chunk(token("one")))
    await conversation.until_left()


async def goes_on(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(ROLE) + chunk(token(" two")) + chunk(token(" three", "stop")))
    await conversation.send(chunk(usage(2)) + chunk(DONE) + LAST_CHUNK)


async def refuses(request: Received, conversation: Conversation) -> None:
    body = b'{"error":{"message":"Cannot set continue_final_message","code":400}}'
    await conversation.send(b"HTTP/1.1 400 Bad\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


def text_of(body: bytes) -> str:
    events = [event.removeprefix(b"data: ") for event in body.strip().split(b"\n\n") if event != b"data: [DONE]"]
    chunks: list[Any] = [msgspec.json.decode(event) for event in events]
    return "".join(part["choices"][0]["delta"].get("content", "") for part in chunks if part.get("choices"))


@pytest.mark.parametrize("first", [dies, says_it_dies, stops_short, stalls])
async def test_another_endpoint_goes_on_without_a_gap_or_a_repeat(start_gateway: StartGateway, first: Any) -> None:
    async with running(first) as broken, running(goes_on) as whole:
        pool = {"timeouts": {"chunk_gap_s": 0.3}}
        async with start_gateway([broken.url, whole.url], routes=ROUTES, pool=pool) as gateway:
            while not broken.requests:
                response = await gateway.client.post("/v1/chat/completions", json={**STREAMED, "max_tokens": 9})
            record = (await gateway.records())[-1]
            states = gateway.gateway.fleet.pools["p"].endpoints
            assert [endpoint.in_flight for endpoint in states] == [0, 0]
    assert text_of(response.content) == "one two three"
    assert response.content.endswith(DONE)
    assert response.content.count(b'"role":"assistant"') == 1
    assert response.content.count(b'"id":"chatcmpl-1"') == response.content.count(b'"id"')
    sent = msgspec.json.decode(whole.requests[-1].body)
    assert sent["messages"][-1] == {"role": "assistant", "content": "one"}
    assert sent["continue_final_message"] is True
    assert (record.outcome, record.continuations, record.finish_reason) == ("ok", 1, "stop")
    assert record.completion_tokens == 3


async def test_where_nobody_can_go_on_the_stream_ends_in_an_error(start_gateway: StartGateway) -> None:
    async with running(dies) as broken, running(refuses) as strict:
        async with start_gateway([broken.url, strict.url], routes=ROUTES) as gateway:
            while not broken.requests:
                response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
            record = (await gateway.records())[-1]
    *_, last = response.content.strip().split(b"\n\n")
    assert b'"type":"truncated"' in last
    assert text_of(b"\n\n".join(response.content.strip().split(b"\n\n")[:-1])) == "one"
    assert (record.outcome, record.continuations) == ("truncated", 0)


async def test_a_request_that_cannot_be_continued_is_relayed_as_ever(start_gateway: StartGateway) -> None:
    async with running(dies) as broken, running(goes_on) as whole:
        async with start_gateway([broken.url, whole.url], routes=ROUTES) as gateway:
            while not broken.requests:
                asked = {**STREAMED, "tools": [{"type": "function", "function": {"name": "f"}}]}
                response = await gateway.client.post("/v1/chat/completions", json=asked)
    assert b'"type":"truncated"' in response.content
    assert all(b"continue_final_message" not in request.body for request in whole.requests)


async def test_usage_that_was_not_asked_for_stays_hidden_across_the_join(start_gateway: StartGateway) -> None:
    async with running(dies) as broken, running(goes_on) as whole:
        async with start_gateway([broken.url, whole.url], routes=ROUTES) as gateway:
            while not broken.requests:
                response = await gateway.client.post("/v1/chat/completions", json={**CHAT, "stream": True})
            record = (await gateway.records())[-1]
    assert b'"usage"' not in response.content
    assert text_of(response.content) == "one two three"
    assert (record.completion_tokens, record.continuations) == (3, 1)


async def test_a_whole_stream_is_the_same_with_continuation_on(start_gateway: StartGateway) -> None:
    async def dribbled(request: Received, conversation: Conversation) -> None:
        wire = SSE_HEAD + b"".join(chunk(event) for event in STREAM) + LAST_CHUNK
        for start in range(0, len(wire), 11):
            await conversation.send(wire[start : start + 11])

    async with running(dribbled) as engine, start_gateway([engine.url], routes=ROUTES) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    assert response.content == b"".join(STREAM)
    assert (record.outcome, record.completion_tokens, record.continuations) == ("ok", 3, 0)
