"""Load is spread alike under every policy and on every endpoint of the API, whatever else goes on."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.gateway.conftest import CHAT, StartGateway
from tests.scripted_engine import Conversation, Received, json_response, running

PATHS = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"]
ENGINES = 4


def jain(loads: list[int]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has it all."""
    return sum(loads) ** 2 / (len(loads) * sum(load * load for load in loads))


@pytest.mark.parametrize("policy", ["round_robin", "least_in_flight"])
@pytest.mark.parametrize("path", PATHS)
async def test_uniform_load_is_spread_evenly(start_gateway: StartGateway, path: str, policy: str) -> None:
    """vllm-router#179, #197, smg PR#2146: load must be tracked on every path, and no health check may reset it."""

    async def takes_its_time(request: Received, conversation: Conversation) -> None:
        await asyncio.sleep(0.02)
        await conversation.send(json_response(b'{"choices":[]}'))

    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(running(takes_its_time)) for _ in range(ENGINES)]
        pool = {"policy": policy, "health": {"interval_s": 0.01}}
        gateway = await stack.enter_async_context(start_gateway([engine.url for engine in engines], pool=pool))

        async def client() -> None:
            for _ in range(8):
                assert (await gateway.client.post(path, json=CHAT)).status_code == 200

        await asyncio.gather(*(client() for _ in range(8)))
        loads = [len(engine.requests) for engine in engines]
    assert sum(loads) == 64
    assert jain(loads) >= 0.95, loads
