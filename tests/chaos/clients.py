"""Clients that care about bytes and about leaving: raw connections to a gateway, and waiting for what they cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tests.gateway.conftest import CHAT, RunningGateway
from tests.scripted_engine import SSE_HEAD, Conversation, Received, chunk, token

CHAT_PATH = "/v1/chat/completions"


def post(body: bytes | dict[str, Any], path: str = CHAT_PATH, extra: bytes = b"") -> bytes:
    """A whole request; `extra` are header lines."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path.encode(), extra, len(content)) + content


async def until(reached: Callable[[], object], within_s: float = 2.0) -> None:
    """Waits for a state that nothing announces. Raises TimeoutError when it is not reached."""
    async with asyncio.timeout(within_s):
        while not reached():
            await asyncio.sleep(0.001)


async def ask_and_leave(gateway: RunningGateway, request: bytes, ready: Callable[[], object], *, reset: bool) -> float:
    """Sends a request, leaves as soon as `ready`, by FIN or by RST; the loop's time of leaving."""
    reader, writer = await gateway.connect()
    writer.write(request)
    await until(ready)
    # What has arrived is read: unread bytes would make a reset of every close.
    if gateway.gateway.proxy.live and next(iter(gateway.gateway.proxy.live)).downstream.started:
        await reader.read(65536)
    left_s = asyncio.get_running_loop().time()
    if reset:
        writer.transport.abort()
    else:
        writer.close()
    return left_s


async def silence(_: Received, conversation: Conversation) -> None:
    """An engine that never answers."""
    await conversation.until_left()


async def head_only(_: Received, conversation: Conversation) -> None:
    """An engine in its prefill: head, then nothing."""
    await conversation.send(SSE_HEAD)
    await conversation.until_left()


async def stalls(_: Received, conversation: Conversation) -> None:
    """An engine that falls silent inside its answer."""
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await conversation.until_left()


async def endless(_: Received, conversation: Conversation) -> None:
    """An engine that generates for ever."""
    await conversation.send(SSE_HEAD)
    watching = asyncio.create_task(conversation.until_left())
    try:
        while not watching.done():
            await conversation.send(chunk(token("a")))
            await asyncio.sleep(0.002)
    except ConnectionError:
        pass
    await watching


def in_flight(gateway: RunningGateway) -> int:
    """Requests that the ledgers of all endpoints say are there."""
    return sum(endpoint.in_flight for pool in gateway.gateway.fleet.pools.values() for endpoint in pool.endpoints)


def plain(stream: bool) -> bytes:
    return msgspec.json.encode({**CHAT, "stream": stream})
