"""The request path through real sockets: what reaches the engine, what reaches the client, what is recorded.

Failures, retries, first events and leaving clients have files of their own beside this one.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from protocol.records import PHASES
from tests.gateway.conftest import CHAT, STREAMED, StartGateway, error_of, until
from tests.scripted_engine import (
    ANSWER,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STREAM,
    USAGE,
    Conversation,
    Received,
    answer,
    chunk,
    json_response,
    running,
    saying,
    silence,
    token,
    whole_stream,
)


async def test_a_json_answer_passes_untouched_and_is_recorded(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(
            "/v1/chat/completions?beta=1", json={**CHAT, "x_unknown": [1, {"a": None}]}, headers={"X-Custom": "1"}
        )
        [record] = await gateway.records()

    assert (response.status_code, response.content) == (200, ANSWER)
    assert response.headers["x-engine"] == "yes"
    assert response.headers["x-weir-pool"] == "p"
    [seen] = engine.requests
    assert seen.path == "/v1/chat/completions?beta=1"
    assert msgspec.json.decode(seen.body) == {**CHAT, "x_unknown": [1, {"a": None}]}
    assert seen.headers["x-custom"] == "1"
    assert seen.headers["host"] == f"127.0.0.1:{engine.port}"
    assert (record.outcome, record.status, record.model, record.pool, record.endpoint) == ("ok", 200, "m", "p", "p-0")
    assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (5, 1, "stop")
    assert record.response_bytes == len(ANSWER)
    assert list(record.marks_ns) == [*PHASES, "end"]
    assert sorted(record.marks_ns.values()) == list(record.marks_ns.values())


async def test_a_stream_arrives_byte_for_byte_with_its_usage_recorded(start_gateway: StartGateway) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()

    assert response.content == b"".join(STREAM)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["cache-control"] == "no-cache"
    assert (record.outcome, record.events, record.stream) == ("ok", 5, True)
    assert (record.prompt_tokens, record.completion_tokens, record.finish_reason) == (7, 3, "length")
    assert record.first_token_ns is not None
    assert record.marks_ns["relay"] <= record.first_token_ns <= record.marks_ns["end"]


async def test_chunks_arrive_when_the_engine_writes_them(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()

    async def hesitant(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")))
        await go_on.wait()
        await conversation.send(chunk(token("b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with running(hesitant) as engine, start_gateway([engine.url]) as gateway:
        async with gateway.client.stream("POST", "/v1/chat/completions", json=STREAMED) as response:
            pieces = response.aiter_raw()
            assert await anext(pieces) == token("a")
            go_on.set()
            rest = b"".join([piece async for piece in pieces])
    assert rest == token("b", "stop") + DONE


@pytest.mark.parametrize("size", [1, 7])
async def test_any_split_of_the_engines_bytes_gives_the_same_stream(start_gateway: StartGateway, size: int) -> None:
    wire = SSE_HEAD + b"".join(chunk(event) for event in STREAM) + LAST_CHUNK

    async def dribble(request: Received, conversation: Conversation) -> None:
        for start in range(0, len(wire), size):
            await conversation.send(wire[start : start + size])
            await asyncio.sleep(0)

    async with running(dribble) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    assert response.content == b"".join(STREAM)
    assert (record.outcome, record.completion_tokens, record.events) == ("ok", 3, 5)


async def test_the_trace_continues_and_the_request_id_is_kept(start_gateway: StartGateway) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(
            "/v1/chat/completions",
            json=CHAT,
            headers={
                "traceparent": f"00-{trace_id}-b7ad6b7169203331-01",
                "tracestate": "a=1",
                "x-request-id": "mine-1",
            },
        )
        [record] = await gateway.records()
    sent = engine.requests[0].headers
    assert sent["traceparent"] == f"00-{trace_id}-{record.span_id}-01"
    assert sent["tracestate"] == "a=1"
    assert sent["x-request-id"] == response.headers["x-request-id"] == record.request_id == "mine-1"
    assert (record.trace_id, record.parent_span_id) == (trace_id, "b7ad6b7169203331")


async def test_ids_are_made_where_the_client_sent_none_or_nonsense(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url], trace={"sample_ratio": 0}) as gateway:
        response = await gateway.client.post(
            "/v1/chat/completions", json=CHAT, headers={"x-request-id": "has space", "traceparent": "00-zz"}
        )
        [record] = await gateway.records()
    assert len(response.headers["x-request-id"]) == 32
    assert engine.requests[0].headers["traceparent"] == f"00-{record.trace_id}-{record.span_id}-00"
    assert record.parent_span_id is None


async def test_hop_by_hop_fields_end_at_the_gateway_in_both_directions(start_gateway: StartGateway) -> None:
    async def hoppy(request: Received, conversation: Conversation) -> None:
        await conversation.send(
            json_response(b"{}", extra=b"connection: keep-alive, x-secret\r\nx-secret: 1\r\nkeep-alive: timeout=5\r\n")
        )

    async with running(hoppy) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(
            "/v1/chat/completions", json=CHAT, headers={"Connection": "x-hop", "X-Hop": "1", "TE": "trailers"}
        )
    assert {"x-secret", "keep-alive"}.isdisjoint(response.headers)
    assert {"x-hop", "te", "accept-encoding"}.isdisjoint(engine.requests[0].headers)


@pytest.mark.parametrize(
    ("body", "status", "kind", "param", "words"),
    [
        (b'{"model": "m"', 400, "invalid_request", None, "JSON"),
        (b"[1]", 400, "invalid_request", None, "object"),
        (b"", 400, "invalid_request", None, "JSON"),
        (b'{"model": 3}', 400, "invalid_request", "model", "str"),
        (b'{"messages": []}', 400, "invalid_request", "model", "one of: m"),
        (b'{"model": "gpt-9"}', 404, "model_not_found", "model", "available models: m"),
    ],
)
async def test_a_bad_request_is_refused_with_its_reason(
    start_gateway: StartGateway, body: bytes, status: int, kind: str, param: str | None, words: str
) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", content=body, headers={"x-request-id": "r1"})
        [record] = await gateway.records()
    error = error_of(response.content)
    assert (response.status_code, error["code"], error["type"], error["param"]) == (status, status, kind, param)
    assert words in str(error["message"])
    assert response.headers["x-request-id"] == error["request_id"] == "r1"
    assert (record.outcome, record.status, record.error_source, record.error_kind) == ("error", status, "client", kind)
    assert engine.requests == []


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
async def test_a_compressed_body_passes_as_it_is_and_needs_a_single_route(
    start_gateway: StartGateway, encoding: str
) -> None:
    packed = b"\x1f\x8b or whatever the engine can read"
    two = [{"model": model, "split": {"p": 1}} for model in ("m", "n")]
    async with running(answer) as engine:
        async with start_gateway([engine.url]) as gateway:
            passed = await gateway.client.post(
                "/v1/chat/completions", content=packed, headers={"content-encoding": encoding}
            )
        async with start_gateway([engine.url], routes=two) as gateway:
            refused = await gateway.client.post(
                "/v1/chat/completions", content=packed, headers={"content-encoding": encoding}
            )
    assert passed.status_code == 200
    [seen] = engine.requests
    assert (seen.body, seen.headers["content-encoding"]) == (packed, encoding)
    assert refused.status_code == 400
    assert "compressed" in refused.json()["error"]["message"]


async def test_a_broken_responses_stream_fails_with_the_next_number(start_gateway: StartGateway) -> None:
    events = b"".join(
        b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":%d}\n\n' % n
        for n in range(3)
    )
    script = saying(SSE_HEAD + chunk(events) + LAST_CHUNK)
    async with running(script) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/responses", json={"model": "m", "stream": True, "input": "x"})
    last = response.content.strip().split(b"\n\n")[-1]
    assert last.startswith(b'event: response.failed\ndata: {"type":"response.failed","sequence_number":3,')


async def test_a_body_that_is_not_json_goes_to_the_only_route(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/audio/transcriptions", files={"file": b"RIFF"}, data={"model": "m"})
    assert response.status_code == 200
    assert engine.requests[0].headers["content-type"].startswith("multipart/form-data; boundary=")


async def test_a_connection_is_used_again_and_a_stale_one_replaced(start_gateway: StartGateway) -> None:
    async def leaves_after_second(request: Received, conversation: Conversation) -> None:
        if len(engine.requests) == 3 and request.connection == first_connection:
            # The engine's keep-alive timer fires as the request arrives: closed without a byte.
            conversation.writer.close()
            return
        await conversation.send(json_response(ANSWER))

    async with running(leaves_after_second) as engine, start_gateway([engine.url]) as gateway:
        first_connection = -1
        await gateway.client.post("/v1/chat/completions", json=CHAT)
        first_connection = engine.requests[0].connection
        for _ in range(2):
            response = await gateway.client.post("/v1/chat/completions", json=CHAT)
            assert response.status_code == 200
        records = await gateway.records()
    assert [request.connection == first_connection for request in engine.requests] == [True, True, True, False]
    assert [record.attempts for record in records] == [1, 1, 2]


async def test_the_in_flight_limit_turns_away_the_next_request(start_gateway: StartGateway) -> None:
    async with running(silence) as engine, start_gateway([engine.url], limits={"in_flight": 1}) as gateway:
        first = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=CHAT))
        await until(lambda: engine.requests)
        second = await gateway.client.post("/v1/chat/completions", json=CHAT)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    assert second.status_code == 503
    assert second.headers["retry-after"] == "1"
    assert error_of(second.content)["type"] == "overloaded"


async def test_split_weights_hold_exactly(start_gateway: StartGateway) -> None:
    async with running(answer) as left, running(answer) as right:
        pools = {
            "a": {"engine": "vllm", "endpoints": [{"url": left.url}]},
            "b": {"engine": "sglang", "endpoints": [{"url": right.url}]},
        }
        routes = [{"model": "m", "split": {"a": 3, "b": 1}}]
        async with start_gateway([], pools=pools, routes=routes) as gateway:
            arms = [
                (await gateway.client.post("/v1/chat/completions", json=CHAT)).headers["x-weir-pool"] for _ in range(8)
            ]
    assert arms == ["a", "a", "b", "a"] * 2
    assert (len(left.requests), len(right.requests)) == (6, 2)


async def test_usage_is_recorded_when_the_stream_is_one_read(start_gateway: StartGateway) -> None:
    async def all_at_once(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a", "stop") + USAGE + DONE) + LAST_CHUNK)

    async with running(all_at_once) as engine, start_gateway([engine.url]) as gateway:
        await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    assert (record.chunks, record.events, record.completion_tokens) == (1, 3, 3)
