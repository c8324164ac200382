"""Clients that leave, as peers got it wrong: in every phase, on every endpoint, however often (reports 1 to 7, 9)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from random import Random

import pytest

from gateway.exchange import Attempt
from gateway.model import EndpointAddress
from gateway.upstream.client import UpstreamClient, UpstreamConnection
from protocol import traceparent
from tests.chaos.clients import ask_and_leave, endless, head_only, in_flight, plain, post, silence, stalls, until
from tests.gateway.conftest import CHAT, STREAMED, RunningGateway, StartGateway
from tests.scripted_engine import Conversation, Received, Script, ScriptedEngine, json_response, running, whole_stream

CANCEL_S = 0.1
"""The longest time between a client's leaving and the engine's hearing of it."""

RESET = pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])


async def leave(
    gateway: RunningGateway, engine: ScriptedEngine, request: bytes, *, started: bool, reset: bool = False
) -> float:
    """Asks and leaves; how long the engine's connection lived after that, in seconds."""

    await gateway.settled()
    before = len(engine.requests)

    def ready() -> bool:
        live = gateway.gateway.proxy.live
        return len(engine.requests) > before and any(x.downstream.started == started for x in live)

    left_s = await ask_and_leave(gateway, request, ready, reset=reset)
    conversation = engine.conversations[engine.requests[-1].connection]
    await asyncio.wait_for(conversation.left.wait(), 2)
    return asyncio.get_running_loop().time() - left_s


@pytest.mark.parametrize(
    ("script", "started"),
    [(silence, False), (head_only, False), (stalls, True), (endless, True)],
    ids=["no headers", "headers, no token", "silent midway", "tokens flowing"],
)
async def test_the_engine_hears_of_it_at_once(start_gateway: StartGateway, script: Script, started: bool) -> None:
    """smg PR#2136, litellm#37140, litellm PR#31499: cancel within 100 ms of FIN or RST while waiting for headers, for
    the first token, between tokens and while they flow; of streams and of whole answers."""
    async with running(script) as engine, start_gateway([engine.url]) as gateway:
        for stream, reset in product([True, False], repeat=2):
            # The engine streams whatever was asked, so the phases are the same for both kinds of client.
            took_s = await leave(gateway, engine, post(plain(stream)), started=started, reset=reset)
            assert took_s <= CANCEL_S, (stream, reset)
        records = await gateway.records()
        assert in_flight(gateway) == 0
    assert {(record.outcome, record.error_kind, record.attempts) for record in records} == {("client_gone", None, 1)}
    assert len(records) == len(engine.requests) == 4


@contextmanager
def full_listener() -> Iterator[str]:
    """The URL of a server that never accepts: Linux drops the handshake of whoever comes after its full queue."""
    with ExitStack() as sockets:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@RESET
async def test_a_connect_that_hangs_is_given_up(start_gateway: StartGateway, reset: bool) -> None:
    """smg PR#2136: cancel in the phase `connect` too."""
    pool = {"timeouts": {"connect_s": 30.0}, "health": {"interval_s": 60.0, "timeout_s": 60.0}}
    with full_listener() as url:
        async with start_gateway([url], pool=pool) as gateway:
            live = gateway.gateway.proxy.live
            left_s = await ask_and_leave(
                gateway, post(CHAT), lambda: any("connect" in x.timeline() for x in live), reset=reset
            )
            await until(lambda: not live)
            took_s = asyncio.get_running_loop().time() - left_s
            [record] = await gateway.records()
            assert in_flight(gateway) == 0
    assert took_s <= CANCEL_S
    assert (record.outcome, list(record.marks_ns)[-3:]) == ("client_gone", ["connect", "finish", "end"])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_nothing_is_retried_for_a_client_that_left(start_gateway: StartGateway, stream: bool) -> None:
    """litellm#37140, litellm PR#30223: no retry once the client is gone. Here it leaves while its retry is due."""

    async def busy(_: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(b"{}", status=429, extra=b"retry-after: 0.3\r\n"))

    async with running(busy) as engine, start_gateway([engine.url]) as gateway:
        live = gateway.gateway.proxy.live
        left_s = await ask_and_leave(gateway, post(plain(stream)), lambda: engine.requests, reset=False)
        await until(lambda: not live)
        took_s = asyncio.get_running_loop().time() - left_s
        # Longer than the Retry-After with its jitter: a retry would have come.
        await asyncio.sleep(0.4)
        [record] = await gateway.records()
    assert took_s <= CANCEL_S
    assert len(engine.requests) == 1
    assert (record.outcome, record.attempts) == ("client_gone", 1)


@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/v1/audio/transcriptions",
    ],
)
async def test_every_endpoint_cancels_alike(start_gateway: StartGateway, path: str) -> None:
    """litellm#36123: /chat was fixed, /messages and /responses still leaked."""
    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        for script in (silence, head_only, stalls, endless):
            engine.script = script
            started = script in (stalls, endless)
            assert await leave(gateway, engine, post(STREAMED, path), started=started) <= CANCEL_S, script.__name__
        assert in_flight(gateway) == 0
    assert {request.path for request in engine.requests} == {path}


async def misbehave(request: Received, conversation: Conversation) -> None:
    """Any of an engine's ways, by the request's `user`."""
    number = int(request.headers["x-way"])
    if number == 0:
        conversation.writer.close()
    elif number == 1:
        await conversation.send(json_response(b"{}", status=503))
    else:
        await (whole_stream, silence, head_only, stalls, endless)[number - 2](request, conversation)


@pytest.mark.parametrize("hedge", [None, {"delay_s": 0.005, "budget_share": 1.0}], ids=["plain", "hedged"])
@pytest.mark.parametrize("seed", range(4))
async def test_the_ledgers_return_to_zero(start_gateway: StartGateway, seed: int, hedge: object) -> None:
    """production-stack PR#1040, PR#1072, vllm-router PR#215, sglang-omni PR#931: each abort leaked a count, until one
    worker drew all the traffic. Here forty clients leave at random moments of random answers."""
    rng = Random(seed)

    async def come_and_go(gateway: RunningGateway) -> None:
        _, writer = await gateway.connect()
        writer.write(post(plain(rng.random() < 0.5), extra=b"x-way: %d\r\n" % rng.randrange(7)))
        await asyncio.sleep(rng.choice([0.0, 0.001, 0.01, 0.05]) * rng.random())
        if rng.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()

    async with running(misbehave) as one, running(misbehave) as other:
        async with start_gateway(
            [one.url, other.url], pool={"hedge": hedge, "retry": {"base_delay_s": 0.01}}
        ) as gateway:
            await asyncio.gather(*(come_and_go(gateway) for _ in range(40)))
            await until(lambda: in_flight(gateway) == 0, within_s=1.0)
            await gateway.settled()
            page = (await gateway.client.get("/metrics")).text
            records = await gateway.records()
    # A connection that was closed before its request was whole is none.
    assert 1 <= len(records) <= 40
    assert "weir_in_flight_requests 0.0" in page
    assert [line for line in page.splitlines() if line.startswith("weir_endpoint_in_flight")] == [
        'weir_endpoint_in_flight_requests{endpoint="p-0",pool="p"} 0.0',
        'weir_endpoint_in_flight_requests{endpoint="p-1",pool="p"} 0.0',
    ]


async def test_what_a_cancelled_stream_cost_is_recorded(start_gateway: StartGateway) -> None:
    """dynamo#10923: a cancelled stream left no usage. The record has the events relayed, marked as partial."""
    async with running(stalls) as engine, start_gateway([engine.url]) as gateway:
        await leave(gateway, engine, post({**STREAMED, "max_tokens": 50}), started=True, reset=True)
        [record] = await gateway.records()
        page = (await gateway.client.get("/metrics")).text
    assert (record.outcome, record.completion_tokens, record.usage_partial) == ("client_gone", 1, True)
    assert 'weir_tokens_not_generated_estimate_total{pool="p",route="m"} 49.0' in page
    assert "weir_cancel_propagation_seconds_count 1.0" in page


class Refusing(UpstreamClient):
    """Takes no connection back."""

    def release(self, address: EndpointAddress, connection: UpstreamConnection) -> None:
        raise OSError("the transport is broken")


async def test_a_close_that_fails_still_gives_the_place_back(start_gateway: StartGateway) -> None:
    """sglang-omni PR#931: an `aclose()` that raised skipped the decrement."""
    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        [endpoint] = gateway.gateway.fleet.pools["p"].endpoints
        attempt = Attempt(endpoint, traceparent.new(bytes(range(1, 25)), sampled=False))
        attempt.connection = await gateway.gateway.upstream.connect(endpoint.address, 1.0)
        connection = attempt.connection
        assert endpoint.in_flight == 1
        with pytest.raises(OSError, match="broken"):
            attempt.let_go(Refusing())
        assert endpoint.in_flight == 0
        connection.abort()
