"""Streams that peers garbled, lost or held up: framing, long lines, encodings, comments, timing (14 to 20, 22, 36)."""

from __future__ import annotations

import asyncio
import gzip
import socket

import httpx
import msgspec
import openai
import pytest

from tests.chaos.clients import CHAT_PATH, plain, post, silence, until
from tests.gateway.conftest import CHAT, STREAMED, RunningGateway, StartGateway
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STREAM,
    USAGE,
    Conversation,
    Received,
    Script,
    chunk,
    json_response,
    running,
    token,
    whole_stream,
)

TEXT = "Añ Привет 你好 🙂🇨🇭"
EXOTIC = b"".join(
    [
        b"\xef\xbb\xbf",
        b": a comment\r\n\r\n",
        token(TEXT).replace(b"\n\n", b"\r\n\r\n"),
        token(" no space").replace(b"data: ", b"data:"),
        token(" cr").replace(b"\n\n", b"\r\r"),
        b"id: 7\nevent: message\nretry: 10\n" + token(" named"),
        b'data: {"choices":[{"index":0,"delta":{"content":" in two"},\ndata: "finish_reason":null}]}\n\n',
        token(" end", "stop"),
    ]
)
LONG = token("a") + token("x" * 2_000_000) + token(" b", "stop")


def in_pieces(stream: bytes, size: int) -> Script:
    """The stream in HTTP chunks of `size` bytes, whatever they cut."""

    async def script(_: Received, conversation: Conversation) -> None:
        pieces = [chunk(stream[start : start + size]) for start in range(0, len(stream), size)]
        # Each its own write and, mostly, its own read: the engine's loop is the gateway's.
        await conversation.send(SSE_HEAD)
        for piece in pieces:
            await conversation.send(piece)
            await asyncio.sleep(0)
        await conversation.send(LAST_CHUNK)

    return script


@pytest.mark.parametrize("asks", [True, False], ids=["usage asked for", "usage hidden"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize(
    ("stream", "sizes"),
    [(EXOTIC, (1, 2, 3, 17, 10_000)), (LONG, (100_000,))],
    ids=["exotic framing", "a line of 2 MB"],
)
async def test_bytes_pass_untouched_and_usage_is_found(
    start_gateway: StartGateway, stream: bytes, sizes: tuple[int, ...], newline: bytes, asks: bool
) -> None:
    """envoy ai-gateway#2463 and #2162, higress#4146, litellm#18842, ferro-labs#129: CR, CRLF, no space, a BOM, data in
    several lines, UTF-8 and events cut at every offset, and lines of megabytes; the client gets every byte, and the
    usage is right. A client that did not ask for usage gets every byte but that event's."""
    end = (USAGE + DONE).replace(b"\n", newline)
    hidden = stream + DONE.replace(b"\n", newline)
    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        for size in sizes:
            engine.script = in_pieces(stream + end, size)
            response = await gateway.client.post(CHAT_PATH, json=STREAMED if asks else {**CHAT, "stream": True})
            assert response.content == (stream + end if asks else hidden), size
        records = await gateway.records()
    assert {(record.outcome, record.prompt_tokens, record.completion_tokens) for record in records} == {("ok", 7, 3)}
    assert len(records) == len(sizes)


async def test_no_encoding_is_asked_for_and_one_that_comes_passes(start_gateway: StartGateway) -> None:
    """vm0#8884, ai-dial-core#1643: a compressed stream came out empty. Engines are asked for none; one that compresses
    all the same is relayed as it is."""
    packed = gzip.compress(b"".join(STREAM))

    async def compressed(_: Received, conversation: Conversation) -> None:
        head = SSE_HEAD[:-2] + b"content-encoding: gzip\r\n\r\n"
        await conversation.send(head + chunk(packed[:20]) + chunk(packed[20:]) + LAST_CHUNK)

    async with running(compressed) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=STREAMED, headers={"accept-encoding": "gzip, br, zstd"})
    assert "accept-encoding" not in engine.requests[0].headers
    assert response.headers["content-encoding"] == "gzip"
    assert response.content == b"".join(STREAM)


async def test_a_compressed_request_reaches_the_engine_as_it_is(start_gateway: StartGateway) -> None:
    """codex-proxy-rs PR#66: codex sends zstd bodies, which a gateway that insists on JSON refuses."""
    packed = b"\x28\xb5\x2f\xfd\x24\x02\x11\x00\x00{}\x5d\x5e\x0b\x3f"
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(
            "/v1/responses", content=packed, headers={"content-encoding": "zstd", "content-type": "application/json"}
        )
    assert response.status_code == 200
    assert (engine.requests[0].body, engine.requests[0].headers["content-encoding"]) == (packed, "zstd")


@pytest.mark.parametrize("pings", [True, False], ids=["engine pings", "gateway pings"])
async def test_the_openai_client_is_not_disturbed_by_keep_alives(start_gateway: StartGateway, pings: bool) -> None:
    """llmgateway PR#2334 (openai-python#2722), ds2api PR#430: keep-alives that clients took for events. Comments before
    the first token are none to the OpenAI client."""

    async def slow(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD)
        for _ in range(3):
            if pings:
                await conversation.send(chunk(b": keep-alive\n\n"))
            await asyncio.sleep(0.03)
        for event in STREAM:
            await conversation.send(chunk(event))
        await conversation.send(LAST_CHUNK)

    routes = [{"model": "m", "split": {"p": 1}, "keep_alive_s": 0.02}]
    async with running(slow) as engine, start_gateway([engine.url], routes=routes) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=STREAMED)
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client:
            answer = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            text = "".join([part.choices[0].delta.content or "" async for part in answer if part.choices])
    assert response.content.count(b": keep-alive\n\n") >= 2
    # Not one of them inside an event.
    assert response.content.replace(b": keep-alive\n\n", b"") == b"".join(STREAM)
    assert text == "a b c"


async def test_an_error_after_a_keep_alive_is_told_inside_the_stream(start_gateway: StartGateway) -> None:
    """litellm#34374, litellm PR#37322: once a comment has committed the 200, the engine's error is an event."""

    async def refuses_late(_: Received, conversation: Conversation) -> None:
        await asyncio.sleep(0.05)
        await conversation.send(json_response(b'{"error":{"message":"no","code":400}}', status=400))

    routes = [{"model": "m", "split": {"p": 1}, "keep_alive_s": 0.02}]
    async with running(refuses_late) as engine, start_gateway([engine.url], routes=routes) as gateway:
        response = await gateway.client.post(CHAT_PATH, json=STREAMED)
        [record] = await gateway.records()
    *comments, last = response.content.strip().split(b"\n\n")
    assert response.status_code == 200
    assert set(comments) == {b": keep-alive"}
    assert "error" in msgspec.json.decode(last.removeprefix(b"data: "))
    assert (record.outcome, record.status) == ("error", 200)


async def test_events_are_not_held_back(start_gateway: StartGateway) -> None:
    """bifrost#1422, bifrost#4542, dynamo PR#14643, sglang-router: events that arrived all at once, or 40 ms late for
    want of TCP_NODELAY. Of a hundred events 3 ms apart, all but one arrive within 20 ms of their writing."""
    written_s: list[float] = []
    loop = asyncio.get_running_loop()

    async def paced(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD)
        for _ in range(100):
            written_s.append(loop.time())
            await conversation.send(chunk(token("a")))
            await asyncio.sleep(0.003)
        await conversation.send(chunk(token("a", "stop")) + LAST_CHUNK)

    async with running(paced) as engine, start_gateway([engine.url]) as gateway:
        arrived_s = await arrivals(gateway)
    late_s = sorted(arrived - written for arrived, written in zip(arrived_s, written_s, strict=True))
    assert late_s[-2] <= 0.02, late_s[-5:]


async def arrivals(gateway: RunningGateway) -> list[float]:
    """When each of the first hundred events reached the client, on the loop's clock."""
    loop, seen = asyncio.get_running_loop(), b""
    times: list[float] = []
    async with gateway.client.stream("POST", CHAT_PATH, json=STREAMED) as response:
        async for data in response.aiter_raw():
            seen += data
            times += [loop.time()] * (seen.count(b"\n\n") - len(times))
    return times[:100]


async def test_nagle_is_off_towards_the_engine(start_gateway: StartGateway) -> None:
    """dynamo PR#14643: TCP_NODELAY on both sides (towards clients: tests/gateway/test_server.py)."""
    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        _, writer = await gateway.connect()
        writer.write(post(plain(True)))
        await until(lambda: engine.requests)
        [x] = gateway.gateway.proxy.live
        connection = x.open[0].connection
        assert connection is not None
        assert connection._transport is not None
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()


ODD_BODY = (
    b' {"top_k" : 5,\n"model":"m", "top_k":5.0e0, "big":123456789012345678901234567890,"text":"\\u00e9\xc3\xa9\\/",'
    b'"nested":{"a":[1,{"b":null}]},"stream" : true%b} \n'
)


async def test_a_request_body_is_sent_as_it_was_written(start_gateway: StartGateway) -> None:
    """vllm-router#161, sglang#22740, semantic-router#3573, envoy#45470: unknown fields dropped, bodies rewritten or
    doubled. Order, blanks, numbers, escapes and duplicates arrive as sent; what is added is the question for usage."""
    asking = ODD_BODY % b',"stream_options":{"include_usage":true}'
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        for body in (asking, ODD_BODY % b""):
            response = await gateway.client.post(CHAT_PATH, content=body)
            assert response.status_code == 200
    assert [request.body for request in engine.requests] == [asking, asking]


async def test_usage_is_injected_and_hidden_again(start_gateway: StartGateway) -> None:
    """Probe "include_usage injected": the engine is asked, the record has it, the client that did not ask sees none."""
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        response = await gateway.client.post(CHAT_PATH, json={**CHAT, "stream": True})
        [record] = await gateway.records()
    assert response.content == b"".join(STREAM).replace(USAGE, b"")
    assert (record.prompt_tokens, record.completion_tokens) == (7, 3)
    assert msgspec.json.decode(engine.requests[0].body)["stream_options"] == {"include_usage": True}


async def test_what_clients_send_along_reaches_the_engine(start_gateway: StartGateway) -> None:
    """Probe "traceparent / x-custom": the trace goes on, own fields and unknown ones arrive."""
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as client:
            await client.post(CHAT_PATH, json=STREAMED, headers={"traceparent": trace, "x-custom": "1"})
    seen = engine.requests[0].headers
    assert seen["traceparent"].split("-")[1] == trace.split("-")[1]
    assert seen["traceparent"].split("-")[2] != trace.split("-")[2]
    assert seen["x-custom"] == "1"
