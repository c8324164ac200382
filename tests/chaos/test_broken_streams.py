"""Streams that break, as peers hid it from the client or told it in the wrong shape (reports 11, 12, 24, 38)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from protocol.openai import family_of
from protocol.sse import SseEvent, SseParser
from tests.chaos.clients import CHAT_PATH, post, silence
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

BEGINNINGS = {
    "/v1/chat/completions": token("a"),
    "/v1/completions": b'data: {"choices":[{"index":0,"text":"a","finish_reason":null}]}\n\n',
    "/v1/messages": b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"a"}}\n\n',
    "/v1/responses": b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
}
"""By endpoint, a stream's first event."""


def breaking(beginning: bytes, end: str) -> Script:
    """Begins an answer and ends it too early: in the middle of a chunk, with a reset, or as if it were complete."""

    async def script(_: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(beginning))
        # Two writes that arrive as two reads.
        await asyncio.sleep(0.01)
        if end == "complete":
            await conversation.send(LAST_CHUNK)
        elif end == "closed":
            await conversation.send(b"ff\r\ndata: {")
            conversation.writer.close()
        else:
            conversation.reset()

    return script


def told(path: str, event: SseEvent) -> dict[str, object]:
    """The error that an event tells a client of that endpoint; it is not there in another family's shape."""
    data = msgspec.json.decode(event.data)
    family = family_of(path)
    if family == "messages":
        assert (event.event, data["type"]) == (b"error", "error")
    elif family == "responses":
        assert (event.event, data["type"]) == (b"response.failed", "response.failed")
        assert data["response"]["status"] == "failed"
        return data["response"]["error"]  # type: ignore[no-any-return]
    else:
        assert event.event in (b"", b"message")
    return data["error"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("end", ["reset", "closed", "complete"])
async def test_a_stream_that_stops_too_early_says_so_in_its_own_family(start_gateway: StartGateway, end: str) -> None:
    """Portkey#1797, litellm PR#39748, open-webui#29628, and every gateway probed: an answer that broke off ended like a
    good one. Here the last event is an error in the shape of its endpoint, nothing claims an end, and it is counted;
    an end that is clean for HTTP but without finish_reason or [DONE] is no end."""
    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        for path, beginning in BEGINNINGS.items():
            engine.script = breaking(beginning, end)
            response = await gateway.client.post(path, json=STREAMED)
            last = SseParser().feed(response.content)[-1]
            assert "too early" in str(told(path, last)["message"]), path
            assert DONE not in response.content
            assert b'"finish_reason":"' not in response.content
        records = await gateway.records()
        page = (await gateway.client.get("/metrics")).text
    assert {(record.outcome, record.status, record.attempts) for record in records} == {("truncated", 200, 1)}
    assert f'weir_errors_total{{kind="truncated",source="upstream"}} {len(BEGINNINGS)}.0' in page


@pytest.mark.parametrize("status", [400, 404, 429, 503])
async def test_an_error_as_first_event_gets_its_real_status(start_gateway: StartGateway, status: int) -> None:
    """litellm#25492, litellm PR#32237: vLLM and SGLang put errors into a 200. A client error is answered as one, is not
    retried and is not held against the engine."""
    error = {"message": "max_tokens is too large", "type": "BadRequestError", "param": None, "code": status}

    async def in_band(_: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"))
        await conversation.send(chunk(DONE) + LAST_CHUNK)

    pool = {"retry": {"base_delay_s": 0.001}, "breaker": {"consecutive_failures": 2}}
    async with running(in_band) as engine, start_gateway([engine.url], pool=pool) as gateway:
        for _ in range(3):
            response = await gateway.client.post(CHAT_PATH, json=STREAMED)
            assert (response.status_code, response.json()) == (status, {"error": error})
            assert response.headers["content-type"] == "application/json"
        [endpoint] = gateway.gateway.fleet.pools["p"].endpoints
        records = await gateway.records()
    again = status in (429, 503)
    assert len(engine.requests) == (9 if again else 3)
    assert {record.error_source for record in records} == {"upstream" if again else "client"}
    assert endpoint.breaker.openings == (1 if status == 503 else 0)


@pytest.mark.parametrize("end", ["reset", "closed", "complete"])
async def test_nothing_is_sent_again_after_the_first_token(start_gateway: StartGateway, end: str) -> None:
    """shenyu#6647, litellm PR#32835: a retry in the middle of a stream repeated what the client had. No token comes
    twice, and the other engine is not asked."""
    broken = breaking(token("a"), end)
    async with running(broken) as one, running(broken) as other:
        async with start_gateway([one.url, other.url]) as gateway:
            response = await gateway.client.post(CHAT_PATH, json=STREAMED)
    assert response.content.count(token("a")) == 1
    assert len(one.requests + other.requests) == 1


async def test_every_attempt_carries_the_same_bytes(start_gateway: StartGateway) -> None:
    """envoy#45470: a retry doubled the body. Three attempts of a large request have equal bodies and own spans."""
    failures = [b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n", json_response(b"{}", status=429)]

    async def third_time(request: Received, conversation: Conversation) -> None:
        await (conversation.send(failures.pop()) if failures else whole_stream(request, conversation))

    body = msgspec.json.encode({**STREAMED, "prompt": "é" * 300_000})
    pool = {"retry": {"base_delay_s": 0.001}}
    async with running(third_time) as one, running(third_time) as other:
        async with start_gateway([one.url, other.url], pool=pool) as gateway:
            response = await gateway.client.post(CHAT_PATH, content=body)
    requests = one.requests + other.requests
    assert response.status_code == 200
    assert [request.body == body for request in requests] == [True] * 3
    assert len({request.headers["traceparent"] for request in requests}) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500])
async def test_an_error_response_to_a_stream_stays_json(start_gateway: StartGateway, status: int) -> None:
    """vllm-router and sglang-router: the JSON of an error was labelled text/event-stream. Type, status and body are
    the engine's own."""
    body = b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":%d}}' % status

    async def refuse(_: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(body, status=status))

    async with running(refuse) as engine, start_gateway([engine.url], pool={"retry": {"max_attempts": 1}}) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=STREAMED)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/json")
    assert response.content == body
    assert len(engine.requests) == 1


async def test_a_broken_connection_ends_the_clients_response_properly(start_gateway: StartGateway) -> None:
    """vllm-router and sglang-router answered a reset with bare EOF, without a terminal chunk: the error event is
    followed by the end of the HTTP message, and the connection serves the next request."""
    async with running(breaking(token("a"), "reset")) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(STREAMED))
        seen = await asyncio.wait_for(reader.readuntil(LAST_CHUNK), 2)
        engine.script = whole_stream
        writer.write(post({**CHAT, **STREAMED}))
        again = await asyncio.wait_for(reader.readuntil(LAST_CHUNK), 2)
        writer.close()
    assert b'"type":"truncated"' in seen
    assert DONE in again
