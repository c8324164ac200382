"""What a client gets of a real engine through the gateway, beside what it gets without, and what the record says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from protocol.records import GatewayRecord
from tests.gateway.conftest import StartGateway, error_of
from tests.real.conftest import ROUTES, chat, pool_of
from tests.real.spans import Receiver
from tools.engines.launch import CONTEXT_TOKENS, RunningEngine

pytestmark = pytest.mark.timeout(240)

PATH = "/v1/chat/completions"
VOLATILE = re.compile(rb'"(?:created|id)":(?:\d+|"[^"]*")')


def events(body: bytes) -> list[dict[str, Any]]:
    """The data of a stream that ends as it should."""
    data = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    assert data[-1] == b"[DONE]"
    return [msgspec.json.decode(one) for one in data[:-1]]


def text_of(stream: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in stream for choice in event["choices"])


def usages(stream: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (event["usage"] for event in stream if event.get("usage"))


async def one_record(running: Any) -> GatewayRecord:
    (record,) = await running.records()
    return record


async def test_a_stream_is_what_the_engine_sends(engine: RunningEngine, start_gateway: StartGateway) -> None:
    asked = chat(stream=True, stream_options={"include_usage": True}, max_tokens=12)
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        through = await running.client.post(PATH, json=asked, timeout=60)
        async with httpx.AsyncClient(trust_env=False) as client:
            direct = await client.post(engine.url + PATH, json=asked, timeout=60)
        record = await one_record(running)
    seen, wanted = events(through.content), events(direct.content)
    assert text_of(seen) == text_of(wanted)
    assert next(usages(seen)) | {"prompt_tokens_details": None} == next(usages(wanted)) | {
        "prompt_tokens_details": None
    }
    assert {*through.headers} - {"x-request-id", "x-weir-pool", "cache-control", "x-accel-buffering"} == {
        *direct.headers
    }
    # Both engines may put several tokens into one event when their reader is slow; what an event looks like stays.
    assert {frozenset(event) for event in seen} == {frozenset(event) for event in wanted}
    assert (record.outcome, record.status, record.stream) == ("ok", 200, True)
    assert (record.prompt_tokens, record.completion_tokens) == (next(usages(seen))["prompt_tokens"], 12)
    assert record.finish_reason == "length"
    assert record.events == len(seen) + 1
    assert record.response_bytes == len(through.content)
    assert record.first_token_ns is not None
    assert record.marks_ns["first_byte"] < record.marks_ns["relay"] <= record.first_token_ns < record.marks_ns["finish"]


async def test_usage_is_counted_and_hidden(engine: RunningEngine, start_gateway: StartGateway) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        answer = await running.client.post(PATH, json=chat(stream=True), timeout=60)
        async with httpx.AsyncClient(trust_env=False) as client:
            direct = await client.post(engine.url + PATH, json=chat(stream=True), timeout=60)
        record = await one_record(running)
    assert not list(usages(events(answer.content)))
    assert all(event["choices"] for event in events(answer.content))
    assert text_of(events(answer.content)) == text_of(events(direct.content))
    assert (record.completion_tokens, record.usage_partial) == (8, False)
    assert record.prompt_tokens


async def test_an_answer_in_one_piece(engine: RunningEngine, start_gateway: StartGateway) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        answer = await running.client.post(PATH, json=chat(), timeout=60)
        async with httpx.AsyncClient(trust_env=False) as client:
            direct = await client.post(engine.url + PATH, json=chat(), timeout=60)
        record = await one_record(running)
    cached = re.compile(rb'"prompt_tokens_details":(?:null|\{[^}]*\})')
    bare = [cached.sub(b"", VOLATILE.sub(b"", each.content)) for each in (answer, direct)]
    assert bare[0] == bare[1]
    usage = answer.json()["usage"]
    assert (record.prompt_tokens, record.completion_tokens) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert (record.stream, record.finish_reason, record.events) == (False, "length", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_completions(engine: RunningEngine, start_gateway: StartGateway, stream: bool) -> None:
    body = {"model": "tiny", "prompt": "def main(", "max_tokens": 6, "temperature": 0, "ignore_eos": True}
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        answer = await running.client.post("/v1/completions", json={**body, "stream": stream}, timeout=60)
        record = await one_record(running)
    pieces = events(answer.content) if stream else [answer.json()]
    assert "".join(choice["text"] for piece in pieces for choice in piece["choices"])
    assert (record.outcome, record.completion_tokens, record.finish_reason) == ("ok", 6, "length")


async def test_log_probabilities(engine: RunningEngine, start_gateway: StartGateway) -> None:
    asked = chat(logprobs=True, top_logprobs=2, max_tokens=4)
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        # vLLM compiles something for the first of these.
        answer = await running.client.post(PATH, json=asked, timeout=120)
        streamed = await running.client.post(PATH, json={**asked, "stream": True}, timeout=120)
    whole = answer.json()["choices"][0]["logprobs"]["content"]
    parts = [
        token
        for event in events(streamed.content)
        for choice in event["choices"]
        for token in (choice.get("logprobs") or {}).get("content") or []
    ]
    assert [token["token"] for token in parts] == [token["token"] for token in whole]
    assert all(len(token["top_logprobs"]) == 2 for token in whole)


TOO_LONG = "river " * CONTEXT_TOKENS


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("a value of the wrong type", {"temperature": "hot"}),
        ("a value out of range", {"top_p": -1}),
        ("more than the context", {"messages": [{"role": "user", "content": TOO_LONG}]}),
        ("no messages", {"messages": []}),
    ],
)
async def test_a_refusal_is_the_engines_own(
    engine: RunningEngine, start_gateway: StartGateway, name: str, more: dict[str, Any], stream: bool
) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        answer = await running.client.post(PATH, json=chat(stream=stream, **more), timeout=60)
        async with httpx.AsyncClient(trust_env=False) as client:
            direct = await client.post(engine.url + PATH, json=chat(stream=stream, **more), timeout=60)
        record = await one_record(running)
    assert (answer.status_code, answer.content) == (direct.status_code, direct.content), name
    assert answer.status_code in (400, 422), name
    # Somebody else's request: not retried, nobody's fault.
    assert (record.attempts, record.outcome, record.status) == (1, "ok", answer.status_code)
    assert set(running.breakers().values()) == {"closed"}


async def test_an_unknown_model_is_the_gateways_to_refuse(engine: RunningEngine, start_gateway: StartGateway) -> None:
    """SGLang would take any name."""
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        answer = await running.client.post(PATH, json=chat(model="gpt-9"), timeout=60)
    assert answer.status_code == 404
    assert "gpt-9" in error_of(answer.content)["message"]


async def test_the_engines_span_is_a_child_of_the_attempt(
    engine: RunningEngine, start_gateway: StartGateway, spans: Receiver
) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES, trace={"sample_ratio": 1.0}) as running:
        await running.client.post(PATH, json=chat(stream=True), timeout=60)
        record = await one_record(running)
    span = spans.wait_for(record.trace_id, record.span_id)
    assert span.attributes["gen_ai.usage.completion_tokens"] == 8


async def test_what_is_not_sampled_leaves_no_span(
    engine: RunningEngine, start_gateway: StartGateway, spans: Receiver
) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES, trace={"sample_ratio": 0.0}) as running:
        await running.client.post(PATH, json=chat(stream=True), timeout=60)
        await running.client.post(
            PATH, json=chat(stream=True), headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}, timeout=60
        )
        unsampled, sampled = await running.records()
    spans.wait_for(sampled.trace_id, sampled.span_id)
    assert not spans.of_trace(unsampled.trace_id)


async def test_models_are_listed_with_their_length(engine: RunningEngine, start_gateway: StartGateway) -> None:
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as running:
        while not running.gateway.fleet.snapshot()[0].models:
            await running.client.get("/healthz")
        (model,) = (await running.client.get("/v1/models")).json()["data"]
    assert (model["id"], model["max_model_len"]) == ("tiny", CONTEXT_TOKENS)
