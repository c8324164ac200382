"""The unmodified OpenAI client works through the gateway, in front of both kinds of engine."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from tests.integration.conftest import MODEL, Cluster, StartCluster


async def test_the_openai_client_streams_lists_models_and_understands_errors(start_cluster: StartCluster) -> None:
    async with (
        start_cluster() as cluster,
        openai.AsyncOpenAI(base_url=f"{cluster.gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        models = [model.id async for model in client.models.list()]
        assert models == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL

        pools = set()
        for _ in range(2):
            raw = await client.chat.completions.with_raw_response.create(
                model=MODEL,
                messages=[{"role": "user", "content": "Count to twelve."}],
                max_tokens=12,
                stream=True,
                stream_options={"include_usage": True},
                extra_body={"ignore_eos": True},
            )
            pools.add(raw.headers["x-weir-pool"])
            chunks = [chunk async for chunk in raw.parse()]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            assert len(text.split()) == 12
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 12
        assert pools == {"vllm", "sglang"}

        whole = await client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=3)
        assert whole.usage is not None
        assert whole.usage.completion_tokens <= 3

        with pytest.raises(openai.NotFoundError, match="available models: llama-3-8b") as not_found:
            await client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hi"}])
        assert not_found.value.body["request_id"] == not_found.value.response.headers["x-request-id"]  # type: ignore[index]
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "word " * 9000}], max_tokens=1
            )


async def until_unhealthy(cluster: Cluster, endpoint: str) -> None:
    async with httpx.AsyncClient(base_url=cluster.gateway.url, trust_env=False) as client, asyncio.timeout(15):
        healthy = True
        while healthy:
            await asyncio.sleep(0.05)
            endpoints = (await client.get("/admin/endpoints")).json()
            healthy = next(found["healthy"] for found in endpoints if found["name"] == endpoint)


async def test_engines_that_are_down_are_a_clear_503_and_recover(start_cluster: StartCluster) -> None:
    async with (
        start_cluster() as cluster,
        openai.AsyncOpenAI(base_url=f"{cluster.gateway.url}/v1", api_key="unused", max_retries=0) as client,
    ):
        await cluster.processes.stop(cluster.engines["vllm"][0])
        await until_unhealthy(cluster, "vllm-0")
        for _ in range(4):
            await client.completions.create(model=MODEL, prompt="still served by the other pool?", max_tokens=1)
        await cluster.processes.stop(cluster.engines["sglang"][0])
        with pytest.raises(openai.InternalServerError, match="No engine") as down:
            await client.completions.create(model=MODEL, prompt="anyone?", max_tokens=1)
        assert down.value.status_code == 503
        assert int(down.value.response.headers["retry-after"]) >= 1
