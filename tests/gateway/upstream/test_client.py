"""The upstream client alone, against scripted engines: framing, reuse, and every way an answer can go wrong."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

import pytest

from gateway.errors import STALE, GatewayError
from gateway.model import EndpointAddress, ResponseHead
from gateway.upstream.client import EARLY_BODY_BYTES, UpstreamClient, UpstreamConnection
from tests.scripted_engine import Conversation, Received, ScriptedEngine, json_response, running

REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: e\r\ncontent-length: 2\r\n\r\n{}"


def address_of(engine: ScriptedEngine) -> EndpointAddress:
    return EndpointAddress(
        name="e", host="127.0.0.1", port=engine.port, tls=False, base_path=b"", authority=b"127.0.0.1"
    )


def replying(*pieces: bytes, close: bool = False) -> object:
    async def script(request: Received, conversation: Conversation) -> None:
        for piece in pieces:
            await conversation.send(piece)
            await asyncio.sleep(0.002)
        if close:
            conversation.writer.close()

    return script


@asynccontextmanager
async def connected(script: object) -> AsyncIterator[tuple[UpstreamClient, EndpointAddress, UpstreamConnection]]:
    client = UpstreamClient()
    async with running(script) as engine:  # type: ignore[arg-type]
        address = address_of(engine)
        connection = await client.connect(address, 1.0)
        try:
            yield client, address, connection
        finally:
            connection.abort()
            client.close()


async def exchange(connection: UpstreamConnection) -> tuple[ResponseHead, bytes]:
    received: list[bytes] = []
    connection.send(REQUEST)
    async with asyncio.timeout(3):
        head = await connection.head()
        await connection.relay(lambda data, framed: received.append(data))
    return head, b"".join(received)


@pytest.mark.parametrize(
    ("pieces", "body", "reusable"),
    [
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe", b"llo"], b"hello", True),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"], b"", True),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b"", True),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", b"0\r\n\r\n"], b"abc", True),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\nx: y\r\n\r\n"], b"a", True),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx"], b"x", True),
        ([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx"], b"x", False),
        ([b"HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx"], b"x", False),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n"], b"x", False),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx\x00\x01garbage"], b"x", False),
    ],
)
async def test_the_body_is_what_the_framing_says(pieces: list[bytes], body: bytes, reusable: bool) -> None:
    async with connected(replying(*pieces)) as (client, address, connection):
        head, received = await exchange(connection)
        assert (head.status // 100, received) == (2, body)
        assert connection.reusable is reusable
        client.release(address, connection)
        assert (client.idle(address) is connection) is reusable


async def test_without_framing_the_body_ends_with_the_connection() -> None:
    async with connected(replying(b"HTTP/1.1 200 OK\r\n\r\nab", b"cd", close=True)) as (_, _, connection):
        head, received = await exchange(connection)
    assert (head.length, received) == (None, b"abcd")
    assert not connection.reusable


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ([], "closed_before_response"),
        ([b"HTTP/1.1 200 OK\r\ncontent-"], "closed_before_response"),
        ([b"\x16\x03\x01nonsense"], "garbage"),
        ([b"HTTP/1.1 600 Whatever\r\ncontent-length: 0\r\n\r\n"], "garbage"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\nxx"], "garbage"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"], "truncated"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n"], "truncated"),
        ([b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"], "truncated"),
    ],
)
async def test_a_broken_answer_is_an_error_with_a_kind(pieces: list[bytes], kind: str) -> None:
    async with connected(replying(*pieces, close=True)) as (_, _, connection):
        with pytest.raises(GatewayError) as caught:
            await exchange(connection)
    assert (caught.value.source, caught.value.kind) == ("upstream", kind)
    assert not connection.reusable


async def test_an_idle_connection_that_closes_is_forgotten() -> None:
    async def once(request: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(b"{}"))
        conversation.writer.close()

    async with connected(once) as (client, address, connection):
        await exchange(connection)
        client.release(address, connection)
        async with asyncio.timeout(2):
            while not connection.closed:
                await asyncio.sleep(0.001)
        assert client.idle(address) is None


async def test_a_reused_connection_that_dies_without_a_byte_may_be_tried_again() -> None:
    async def second_time_never(request: Received, conversation: Conversation) -> None:
        if conversation.reader.at_eof() or (request.body == b"{}" and len(seen) == 1):
            conversation.writer.close()
            return
        seen.append(request)
        await conversation.send(json_response(b"{}"))

    seen: list[Received] = []
    async with connected(second_time_never) as (client, address, connection):
        await exchange(connection)
        client.release(address, connection)
        assert client.idle(address) is connection
        with pytest.raises(GatewayError) as caught:
            await exchange(connection)
    assert caught.value.kind == STALE


async def test_bytes_nobody_asked_for_end_the_connection() -> None:
    async def talkative(request: Received, conversation: Conversation) -> None:
        await conversation.send(json_response(b"{}"))
        await asyncio.sleep(0.02)
        await conversation.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async with connected(talkative) as (client, address, connection):
        await exchange(connection)
        client.release(address, connection)
        async with asyncio.timeout(2):
            while not connection.closed:
                await asyncio.sleep(0.001)
        assert client.idle(address) is None


async def test_an_answer_that_nobody_takes_up_yet_is_held_within_bounds() -> None:
    block = b"x" * (8 * EARLY_BODY_BYTES)
    async with connected(replying(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(block) + block)) as (
        _,
        _,
        connection,
    ):
        connection.send(REQUEST)
        await connection.head()
        await asyncio.sleep(0.1)
        assert connection._early_bytes < 3 * EARLY_BODY_BYTES
        received: list[bytes] = []
        async with asyncio.timeout(3):
            await connection.relay(lambda data, framed: received.append(data))
    assert b"".join(received) == block


async def test_a_refused_connect_says_so() -> None:
    async with running(lambda request, conversation: asyncio.sleep(0)) as engine:
        address = address_of(engine)
    with pytest.raises(GatewayError) as caught:
        await UpstreamClient().connect(address, 1.0)
    assert caught.value.kind == "connect_failed"


async def test_a_connect_that_nobody_accepts_ends_in_time() -> None:
    with ExitStack() as sockets:
        # Linux drops the handshake of whoever comes after the accept queue is full.
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        port = listener.getsockname()[1]
        for _ in range(4):
            waiting = sockets.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(("127.0.0.1", port))
        full = EndpointAddress(name="n", host="127.0.0.1", port=port, tls=False, base_path=b"", authority=b"n")
        with pytest.raises(GatewayError) as caught:
            await UpstreamClient().connect(full, 0.1)
    assert caught.value.kind == "connect_timeout"


async def test_release_keeps_what_is_fresh_and_close_ends_it() -> None:
    async with connected(replying(json_response(b"{}"))) as (client, address, connection):
        await exchange(connection)
        client.release(address, connection)
        client.close()
        assert connection.closed
        assert client.idle(address) is None
