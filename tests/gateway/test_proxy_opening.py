"""The beginning of a stream: its first event judged, comments while it is awaited, usage asked for and hidden."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    Script,
    answer,
    chunk,
    hang_up,
    in_turn,
    json_response,
    refusing,
    running,
    saying,
    silence,
    token,
    whole_stream,
)

PLAIN = {**CHAT, "stream": True}
"""A stream whose client does not ask for usage."""

SEEN = b"".join(event for event in STREAM if event != USAGE)
"""What such a client gets of STREAM."""

ONCE = {"retry": {"max_attempts": 1}}
QUICK = {"retry": {"base_delay_s": 0.002, "max_delay_s": 0.004}}

VLLM_BUSY = (
    b'data: {"error": {"message": "The engine is currently busy and cannot accept new requests. Please try again later '
    b'or on a different instance.", "type": "Service Unavailable", "param": null, "code": 503}}\n\ndata: [DONE]\n\n'
)
"""vLLM 0.32, `--max-num-queued-reqs` reached: the whole body of a 200 stream."""
SGLANG_BUSY = (
    b'data: {"error": {"object": "error", "message": "The request queue is full.", "type": "SERVICE_UNAVAILABLE", '
    b'"param": null, "code": 503}}\n\ndata: [DONE]\n\n'
)
"""SGLang, `--max-queued-requests` reached: likewise."""
BAD_REQUEST = (
    b'data: {"error": {"object": "error", "message": "The input is too long.", "type": "BadRequestError", '
    b'"param": null, "code": 400}}\n\ndata: [DONE]\n\n'
)

BUSY = pytest.mark.parametrize("body", [VLLM_BUSY, SGLANG_BUSY], ids=["vllm", "sglang"])


def streaming(body: bytes) -> Script:
    return saying(SSE_HEAD + chunk(body) + LAST_CHUNK)


def error_event(body: bytes) -> dict[str, Any]:
    """The error of the last event before the end."""
    events = [event for event in body.split(b"\n\n") if event and event != DONE.strip()]
    return error_of(events[-1].removeprefix(b"data: "))


@BUSY
async def test_an_overload_told_inside_a_success_is_tried_elsewhere(start_gateway: StartGateway, body: bytes) -> None:
    script = in_turn(streaming(body), whole_stream)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=QUICK) as gateway:
            response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0, 0]
    assert (response.status_code, response.content) == (200, b"".join(STREAM))
    assert [len(left.requests), len(right.requests)] == [1, 1]
    assert (record.attempts, record.outcome, record.completion_tokens) == (2, "ok", 3)


@BUSY
async def test_an_overload_with_nowhere_else_to_go_becomes_a_real_503(start_gateway: StartGateway, body: bytes) -> None:
    async with running(streaming(body)) as engine, start_gateway([engine.url], pool=ONCE) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
        errors = await gateway.metric("weir_errors_total", source="upstream", kind="answered_in_stream")
    assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
    assert error_of(response.content) == error_event(body)
    assert (record.status, record.outcome, record.error_source) == (503, "error", "upstream")
    assert (record.error_kind, errors) == ("answered_in_stream", 1)


async def test_a_refusal_told_inside_a_success_is_the_clients_400_at_once(start_gateway: StartGateway) -> None:
    pool = {"breaker": {"consecutive_failures": 1}}
    async with running(streaming(BAD_REQUEST)) as engine, start_gateway([engine.url], pool=pool) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
        assert gateway.breakers() == {"p-0": "closed"}
    assert (response.status_code, error_of(response.content)) == (400, error_event(BAD_REQUEST))
    assert (len(engine.requests), record.error_source, record.error_kind) == (1, "client", "answered_in_stream")


@pytest.mark.parametrize("size", [1, 10])
@pytest.mark.parametrize("before", [b"", b": ping\n\n"])
async def test_a_first_event_is_judged_as_a_whole_however_it_arrives(
    start_gateway: StartGateway, size: int, before: bytes
) -> None:
    body = before + VLLM_BUSY

    async def dribble(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD)
        for start in range(0, len(body), size):
            await conversation.send(chunk(body[start : start + size]))
            await asyncio.sleep(0)
        await conversation.send(LAST_CHUNK)

    async with running(dribble) as engine, start_gateway([engine.url], pool=ONCE) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
    assert (response.status_code, error_of(response.content)["code"]) == (503, 503)


async def test_nothing_of_a_stream_reaches_the_client_before_its_first_event(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()

    async def halting(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")[:30]))
        await go_on.wait()
        await conversation.send(chunk(token("a")[30:]) + chunk(token("b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with running(halting) as engine, start_gateway([engine.url]) as gateway:
        asking = asyncio.create_task(gateway.client.post("/v1/chat/completions", json=STREAMED))
        await until(lambda: any(one.head for x in gateway.gateway.proxy.live for one in x.open) or engine.requests)
        [x] = gateway.gateway.proxy.live
        assert not x.downstream.started
        go_on.set()
        assert (await asking).content == token("a") + token("b", "stop") + DONE


# Comments


def commenting(keep_alive_s: float = 0.03) -> dict[str, Any]:
    return {"routes": [{"model": "m", "split": {"p": 1}, "keep_alive_s": keep_alive_s}]}


COMMENT = b": keep-alive\n\n"


def after(delay_s: float, then: Script) -> Script:
    async def script(request: Received, conversation: Conversation) -> None:
        await asyncio.sleep(delay_s)
        await then(request, conversation)

    return script


async def stream_with_a_pause(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(STREAM[0]))
    await asyncio.sleep(0.1)
    await conversation.send(b"".join(map(chunk, STREAM[1:])) + LAST_CHUNK)


async def test_comments_are_sent_while_a_stream_is_awaited_and_never_after_its_first_byte(
    start_gateway: StartGateway,
) -> None:
    script = in_turn(after(0.1, stream_with_a_pause))
    async with running(script) as engine, start_gateway([engine.url], **commenting()) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    comments, stream = response.content.split(STREAM[0], 1)
    assert (comments.count(COMMENT) >= 2, comments.replace(COMMENT, b"")) == (True, b"")
    assert STREAM[0] + stream == b"".join(STREAM)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["x-request-id"] == record.request_id
    assert (record.status, record.outcome, record.completion_tokens) == (200, "ok", 3)


@pytest.mark.parametrize(
    ("body", "sections"), [(CHAT, commenting()), (STREAMED, {})], ids=["not a stream", "not wanted"]
)
async def test_nobody_else_gets_comments(
    start_gateway: StartGateway, body: dict[str, Any], sections: dict[str, Any]
) -> None:
    async with running(after(0.1, answer)) as engine, start_gateway([engine.url], **sections) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=body)
    assert (response.headers["content-type"], response.content) == ("application/json", ANSWER)


async def test_a_retry_after_a_comment_is_not_noticed(start_gateway: StartGateway) -> None:
    script = in_turn(after(0.1, refusing(503)), whole_stream)
    async with running(script) as engine, start_gateway([engine.url], pool=QUICK, **commenting()) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
    assert response.content.replace(COMMENT, b"") == b"".join(STREAM)
    assert (record.attempts, record.outcome) == (2, "ok")


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        (hang_up, "closed_before_response"),
        (refusing(503), "answered_too_late"),
        (answer, "answered_too_late"),
        (streaming(VLLM_BUSY), "answered_in_stream"),
        (silence, "first_byte_timeout"),
    ],
)
async def test_an_error_after_a_comment_is_in_band(start_gateway: StartGateway, script: Script, kind: str) -> None:
    pool = {**ONCE, "timeouts": {"first_byte_s": 0.3}}
    async with running(after(0.1, script)) as engine, start_gateway([engine.url], pool=pool, **commenting()) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
        assert gateway.in_flight() == [0]
    assert (response.status_code, response.content.startswith(COMMENT)) == (200, True)
    told = error_event(response.content)
    assert told == error_event(VLLM_BUSY) if kind == "answered_in_stream" else told["type"] == kind
    assert (record.status, record.outcome, record.error_kind) == (200, "error", kind)


async def test_a_client_that_leaves_after_a_comment_frees_the_engine(start_gateway: StartGateway) -> None:
    async with running(silence) as engine, start_gateway([engine.url], **commenting()) as gateway:
        reader, writer = await gateway.ask(STREAMED)
        await asyncio.wait_for(reader.readuntil(COMMENT), 2)
        writer.close()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        [record] = await gateway.records()
    assert (record.outcome, record.status, record.response_bytes) == ("client_gone", 200, 0)


# Usage


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_usage_is_asked_for_and_hidden_where_the_client_did_not_ask(
    start_gateway: StartGateway, path: str
) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(path, json=PLAIN)
        [record] = await gateway.records()
    assert msgspec.json.decode(engine.requests[0].body) == {**PLAIN, "stream_options": {"include_usage": True}}
    assert response.content == SEEN
    assert record.response_bytes == len(SEEN), "bytes that reached the client"
    assert (record.prompt_tokens, record.completion_tokens, record.usage_partial) == (7, 3, False)


@pytest.mark.parametrize(
    ("path", "body", "sections"),
    [
        ("/v1/chat/completions", STREAMED, {}),
        ("/v1/chat/completions", CHAT, {}),
        ("/v1/chat/completions", PLAIN, {"usage": {"inject": False}}),
        ("/v1/messages", PLAIN, {}),
        ("/v1/responses", PLAIN, {}),
    ],
    ids=["asked", "no stream", "switched off", "messages", "responses"],
)
async def test_everybody_elses_bytes_are_left_alone_both_ways(
    start_gateway: StartGateway, path: str, body: dict[str, Any], sections: dict[str, Any]
) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url], **sections) as gateway:
        response = await gateway.client.post(path, content=(sent := msgspec.json.encode(body) + b" \n"))
    assert (engine.requests[0].body, response.content) == (sent, b"".join(STREAM))


async def test_a_stream_of_known_length_gets_shorter_without_harm(start_gateway: StartGateway) -> None:
    body = b"".join(STREAM)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with running(saying(head + body)) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=PLAIN)
        again = await gateway.client.post("/v1/chat/completions", json=PLAIN)
    assert [response.content, again.content] == [SEEN, SEEN]


async def test_an_engine_that_does_not_know_the_option_is_no_worse_for_it(start_gateway: StartGateway) -> None:
    async with running(streaming(SEEN)) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=PLAIN)
        [record] = await gateway.records()
    assert response.content == SEEN
    assert (record.outcome, record.prompt_tokens, record.usage_partial) == ("ok", None, False)


async def test_a_refusal_of_an_injected_request_is_passed_whole(start_gateway: StartGateway) -> None:
    body = b'{"error":{"message":"\\"choices\\":[],\\"usage\\":{}","code":400}}'
    async with running(saying(json_response(body, status=400))) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=PLAIN)
    assert (response.status_code, response.content) == (400, body)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
COMMENTS = st.sampled_from([b": ping\n\n", b":\n\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bool]:
    """Events of a whole stream as an engine may write it, and whether usage is among them."""
    tokens = [token(msgspec.json.encode(text).decode()[1:-1]) for text in draw(st.lists(TEXTS, min_size=1, max_size=6))]
    events: list[bytes] = []
    for event in tokens:
        events += draw(st.lists(COMMENTS, max_size=1))
        events.append(event)
    reports = draw(st.booleans())
    return [*events, token("", "stop"), *([USAGE] if reports else []), DONE], reports


def cut(data: bytes, places: list[float]) -> list[bytes]:
    """`data` in pieces, cut at these parts of its length; none is empty."""
    at = sorted({0, len(data), *(int(place * len(data)) for place in places)})
    return [data[start:end] for start, end in pairwise(at)]


PLACES = st.lists(st.floats(0, 1, exclude_max=True), max_size=25)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stream=streams(), chunks=PLACES, writes=PLACES, asks=st.booleans())
async def test_any_stream_in_any_pieces_is_passed_on_byte_for_byte(
    start_gateway: StartGateway, stream: tuple[list[bytes], bool], chunks: list[float], writes: list[float], asks: bool
) -> None:
    events, reports = stream
    wire = SSE_HEAD + b"".join(map(chunk, cut(b"".join(events), chunks))) + LAST_CHUNK

    async def in_pieces(request: Received, conversation: Conversation) -> None:
        for piece in cut(wire, writes):
            await conversation.send(piece)
            await asyncio.sleep(0)

    async with running(in_pieces) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED if asks else PLAIN)
        record = (await gateway.records())[-1]
    expected = b"".join(event for event in events if asks or event != USAGE)
    assert response.content == expected
    assert (record.outcome, record.finish_reason, record.response_bytes) == ("ok", "stop", len(expected))
    assert (record.prompt_tokens, record.completion_tokens) == ((7, 3) if reports else (None, None))
