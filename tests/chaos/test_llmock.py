"""llmock, an upstream that fails on purpose and judges its client, has nothing to say against what passes through us.

The client behind the gateway is the unmodified OpenAI one, in an application that asks again when a stream ends in an
error. The same application without the gateway shows what the verdict is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import openai
import pytest
from llmock.scenarios import Behavior, Fail, Match, SlowFirstToken, StreamFault
from llmock.testing import LLMockServer
from llmock.verdict import Verdict, judge

from tests.gateway.conftest import StartGateway

MODEL = "m"
CHAT = Match(path="/v1/chat/completions")
"""Faults for requests, not for the gateway's own question for the models."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[LLMockServer]:
    with LLMockServer() as server:
        # Tokens at a model's pace: whoever stops reading can still be noticed.
        server.state.stream_chaos = replace(server.state.stream_chaos, chunk_delay_ms=20)
        yield server


async def ask(base_url: str) -> str:
    """One question of an application: a stream, and a second try where the first one raises."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key="x", max_retries=0) as client:
        try:
            return await read_stream(client)
        except (openai.APIError, ValueError):
            # llmock notices at its next token that the first try is over, and only then is the second its retry.
            await asyncio.sleep(0.1)
            return await read_stream(client)


async def read_stream(client: openai.AsyncOpenAI) -> str:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
    )
    return "".join([choice.delta.content or "" async for chunk in stream for choice in chunk.choices])


def verdict(upstream: LLMockServer) -> Verdict:
    return judge(record for record in upstream.state.journal.records(wait=2.0) if record.method == "POST")


FAULTS: dict[str, tuple[Behavior, ...]] = {
    "none": (),
    "429 with Retry-After": (Fail(429, retry_after=0.3, times=2, match=CHAT),),
    "429": (Fail(429, times=2, match=CHAT),),
    "500": (Fail(500, match=CHAT),),
    "502": (Fail(502, match=CHAT),),
    "503": (Fail(503, times=2, match=CHAT),),
    "slow first token": (SlowFirstToken(0.2, match=CHAT),),
    "disconnect": (StreamFault("disconnect", after_chunks=3, match=CHAT),),
    "truncate": (StreamFault("truncate", after_chunks=3, match=CHAT),),
    "malformed": (StreamFault("malformed", after_chunks=3, match=CHAT),),
    "stall": (StreamFault("stall", after_chunks=3, stall_seconds=5.0, match=CHAT),),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_the_verdict_is_empty(start_gateway: StartGateway, upstream: LLMockServer, fault: str) -> None:
    upstream.state.reset()
    upstream.state.scenarios.add(*FAULTS[fault])
    pool = {"timeouts": {"chunk_gap_s": 0.5}}
    async with start_gateway([upstream.url], pool=pool) as gateway:
        text = await ask(f"{gateway.url}/v1")
    found = verdict(upstream)
    assert not found.findings, found.render()
    assert found.faults == sum(met.times or 0 for met in FAULTS[fault] if not isinstance(met, SlowFirstToken))
    assert text


@pytest.mark.parametrize("status", [400, 401, 404, 422])
async def test_what_no_retry_can_mend_is_asked_once(
    start_gateway: StartGateway, upstream: LLMockServer, status: int
) -> None:
    upstream.state.reset()
    upstream.state.scenarios.add(Fail(status, times=None, match=CHAT))
    async with (
        start_gateway([upstream.url]) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    found = verdict(upstream)
    assert raised.value.status_code == status
    assert (found.attempts, found.findings) == (1, ())


async def test_without_the_gateway_a_truncated_stream_is_taken_for_whole(upstream: LLMockServer) -> None:
    upstream.state.reset()
    upstream.state.scenarios.add(*FAULTS["truncate"])
    await ask(upstream.base_url())
    assert [finding.code for finding in verdict(upstream).findings] == ["truncated_stream_accepted"]
