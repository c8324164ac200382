"""Clients that leave, and clients that read slowly: what becomes of their engines, ledgers and records."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from random import Random

import pytest

from gateway import errors
from gateway.exchange import Exchange
from gateway.upstream.client import UpstreamConnection
from tests.gateway.conftest import CHAT, STREAMED, RunningGateway, StartGateway, error_of, until, wire
from tests.scripted_engine import (
    ANSWER,
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    Conversation,
    Received,
    Script,
    answer,
    chunk,
    hang_up,
    in_turn,
    json_response,
    only_the_head,
    refusing,
    running,
    silence,
    stream_for_ever,
    token,
    whole_stream,
)


@pytest.mark.parametrize("reset", [False, True], ids=["fin", "rst"])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("script", [silence, only_the_head, stream_for_ever])
async def test_a_client_that_leaves_frees_the_engine_in_every_phase(
    start_gateway: StartGateway, script: Script, stream: bool, reset: bool
) -> None:
    async with running(script) as engine, start_gateway([engine.url]) as gateway:
        _, writer = await gateway.ask({**CHAT, "stream": stream})
        await until(lambda: engine.requests)
        await asyncio.sleep(0.02)
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        [record] = await gateway.records()
        assert gateway.in_flight() == [0]
    assert (record.outcome, record.error_kind) == ("client_gone", None)


async def test_a_slow_reader_pauses_the_engine_and_loses_nothing(start_gateway: StartGateway) -> None:
    block = b"data: " + b"x" * 65_000 + b"\n\n"
    sent = 0

    async def flood(request: Received, conversation: Conversation) -> None:
        nonlocal sent
        await conversation.send(SSE_HEAD)
        for _ in range(400):
            await conversation.send(chunk(block))
            sent += 1
        await conversation.send(chunk(DONE) + LAST_CHUNK)

    async with running(flood) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(wire(STREAMED))
        before = -1
        async with asyncio.timeout(5):
            while sent == 0 or sent != before:
                before = sent
                await asyncio.sleep(0.1)
        held = sent
        [waiting] = gateway.gateway.proxy.live
        held_bytes = waiting.downstream._transport.get_write_buffer_size()  # type: ignore[attr-defined]
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = 0
        async with asyncio.timeout(20):
            while received < 400 * len(block):
                received += len(await reader.read(1 << 20))
        writer.close()
        [record] = await gateway.records()
    assert held < 400, "the engine was never held back"
    assert 0 < held_bytes <= 256 * 1024
    assert record.response_bytes == 400 * len(block) + len(DONE)


async def test_cancelling_is_quick_and_what_it_spared_is_estimated(start_gateway: StartGateway) -> None:
    async with running(stream_for_ever) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.ask({**STREAMED, "max_tokens": 1000})
        await asyncio.wait_for(reader.readuntil(token("a")), 2)
        writer.close()
        [record] = await gateway.records()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        assert await gateway.metric("weir_cancel_propagation_seconds_count") == 1
        assert await gateway.metric("weir_cancel_propagation_seconds_sum") < 0.05
        spared = await gateway.metric("weir_tokens_not_generated_estimate_total", route="m", pool="p")
    assert (record.outcome, record.completion_tokens, record.usage_partial) == ("client_gone", record.events, True)
    assert record.events >= 1
    assert spared == 1000 - record.events


async def test_who_leaves_at_the_end_has_cancelled_nothing(start_gateway: StartGateway) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.ask({**STREAMED, "max_tokens": 1000})
        await asyncio.wait_for(reader.readuntil(b"\r\n0\r\n\r\n"), 2)
        writer.close()
        [record] = await gateway.records()
        assert await gateway.metric("weir_cancel_propagation_seconds_count") == 0
        assert await gateway.metric("weir_tokens_not_generated_estimate_total", route="m", pool="p") == 0
    assert (record.outcome, record.completion_tokens, record.usage_partial) == ("ok", 3, False)


async def done_but_not_ended(_: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a", "stop")) + chunk(DONE))
    await conversation.until_left()


async def test_who_leaves_behind_the_last_event_has_the_whole_answer(start_gateway: StartGateway) -> None:
    """GuideLLM does not wait for the end of the body."""
    async with running(done_but_not_ended) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.ask(STREAMED)
        await asyncio.wait_for(reader.readuntil(DONE), 2)
        writer.close()
        [record] = await gateway.records()
    assert (record.outcome, record.finish_reason, record.usage_partial) == ("ok", "stop", False)


TIMES = {"connect_s": 5.0, "first_byte_s": 5.0, "chunk_gap_s": 5.0, "total_s": 5.0}


async def begins_and_stalls(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await conversation.until_left()


@pytest.mark.parametrize(
    ("script", "timeouts", "status", "kind"),
    [
        (silence, {"first_byte_s": 0.2}, 504, "first_byte_timeout"),
        (only_the_head, {"first_byte_s": 0.2}, 504, "first_byte_timeout"),
        (begins_and_stalls, {"chunk_gap_s": 0.2}, 200, "chunk_gap_timeout"),
        (
            stream_for_ever,
            {"chunk_gap_s": 0.2, "first_byte_s": 0.2, "connect_s": 0.2, "total_s": 0.3},
            200,
            "total_timeout",
        ),
    ],
)
async def test_each_limit_of_time_has_its_own_error(
    start_gateway: StartGateway, script: Script, timeouts: dict[str, float], status: int, kind: str
) -> None:
    async with running(script) as engine, start_gateway([engine.url], pool={"timeouts": TIMES | timeouts}) as gateway:
        response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
        [record] = await gateway.records()
        await asyncio.wait_for(engine.conversations[-1].left.wait(), 1)
        assert await gateway.metric("weir_errors_total", source="upstream", kind=kind) == 1
        assert gateway.in_flight() == [0]
    assert response.status_code == status
    assert error_of(response.content.strip().rpartition(b"data: ")[2])["type"] == kind
    assert (record.error_kind, record.status, record.outcome) == (kind, status, "error")
    [limit_s] = {timeouts.get("total_s", min(timeouts.values()))}
    assert limit_s <= record.marks_ns["end"] * 1e-9 < limit_s + 1


# Clients that read slowly

BLOCK = b"data: " + b"x" * 16_000 + b"\n\n"


class Flood:
    """A script: blocks until the gateway holds the engine back, then nothing until told to finish."""

    def __init__(self) -> None:
        self.held = asyncio.Event()
        self.finish = asyncio.Event()
        self.sent_bytes = 0
        self.exchange: Exchange | None = None

    async def script(self, request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD)
        while self.exchange is None or not self.exchange.paused:
            await conversation.send(chunk(BLOCK))
            self.sent_bytes += len(BLOCK)
            await until(self._arrived)
        self.held.set()
        await until(lambda: self.finish.is_set() or conversation.reader.at_eof() or conversation.writer.is_closing())
        await conversation.send(chunk(DONE) + LAST_CHUNK)

    def _arrived(self) -> bool:
        x = self.exchange
        return x is not None and (x.paused or (x.watch is not None and x.watch.bytes >= self.sent_bytes))


async def held_back(gateway: RunningGateway, flood: Flood) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A slow client for whose sake the engine is held back."""
    reader, writer = await gateway.connect_narrowly()
    writer.write(wire(STREAMED))
    await until(lambda: gateway.gateway.proxy.live)
    [flood.exchange] = gateway.gateway.proxy.live
    await asyncio.wait_for(flood.held.wait(), 10)
    return reader, writer


async def test_a_client_that_reads_slowly_is_no_engine_that_stalls(start_gateway: StartGateway) -> None:
    flood = Flood()
    timeouts = {"timeouts": {**TIMES, "chunk_gap_s": 0.6, "total_s": 30.0}}
    async with running(flood.script) as engine, start_gateway([engine.url], pool=timeouts) as gateway:
        reader, writer = await held_back(gateway, flood)
        # Longer than the engine may be silent, then shorter than that again: its time counts from being let go on.
        await asyncio.sleep(0.9)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(0.4, flood.finish.set)
        await asyncio.wait_for(reader.readuntil(DONE), 5)
        writer.close()
        [record] = await gateway.records()
    assert (record.outcome, record.error_kind) == ("ok", None)
    assert record.response_bytes == flood.sent_bytes + len(DONE)


async def test_an_engine_that_stalls_after_a_slow_client_has_caught_up_is_found_out(
    start_gateway: StartGateway,
) -> None:
    flood = Flood()
    timeouts = {"timeouts": {**TIMES, "chunk_gap_s": 0.2}}
    async with running(flood.script) as engine, start_gateway([engine.url], pool=timeouts) as gateway:
        reader, writer = await held_back(gateway, flood)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        await asyncio.wait_for(reader.readuntil(b"chunk_gap_timeout"), 3)
        writer.close()
        [record] = await gateway.records()
    assert record.error_kind == "chunk_gap_timeout"


async def test_the_whole_time_counts_for_slow_clients_too(start_gateway: StartGateway) -> None:
    flood = Flood()
    timeouts = {"connect_s": 0.3, "first_byte_s": 0.3, "chunk_gap_s": 0.3, "total_s": 1.5}
    async with running(flood.script) as engine, start_gateway([engine.url], pool={"timeouts": timeouts}) as gateway:
        _, writer = await held_back(gateway, flood)
        [record] = await gateway.records()
        await asyncio.wait_for(engine.conversations[engine.requests[0].connection].left.wait(), 1)
        writer.close()
    assert (record.error_kind, record.outcome) == ("total_timeout", "error")
    assert 1.5 <= record.marks_ns["end"] * 1e-9 < 2.5


async def test_an_answer_that_filled_its_clients_buffer_leaves_a_connection_that_can_be_read(
    start_gateway: StartGateway,
) -> None:
    large = b'{"choices":[],"x":"' + b"x" * 60_000 + b'"}'
    ready = asyncio.Event()

    async def in_one_read(request: Received, conversation: Conversation) -> None:
        await ready.wait()
        await conversation.send(json_response(large))

    async with running(in_turn(in_one_read, answer)) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect_narrowly()
        writer.write(wire(CHAT))
        await until(lambda: engine.requests)
        [x] = gateway.gateway.proxy.live
        to_client = x.downstream._transport  # type: ignore[attr-defined]
        to_client.set_write_buffer_limits(0)
        to_client.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ready.set()
        await gateway.settled()
        assert x.paused, "held back and complete in the same moment"
        second = await asyncio.wait_for(gateway.client.post("/v1/chat/completions", json=CHAT), 3)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        first = await asyncio.wait_for(reader.readuntil(b'x"}'), 3)
        writer.close()
    assert (first.endswith(large), second.content) == (True, ANSWER)
    assert engine.requests[0].connection == engine.requests[1].connection


# Many at once


async def leave_somewhere(gateway: RunningGateway, rng: Random) -> None:
    """One client: a request, perhaps not all of it, some of the answer, and gone."""
    body = {**CHAT, "stream": rng.random() < 0.7, "max_tokens": 50}
    data = wire(body)
    reader, writer = await gateway.connect()
    writer.write(data if rng.random() < 0.9 else data[: rng.randrange(len(data))])
    try:
        async with asyncio.timeout(rng.choice([0.0, 0.03, 0.5])):
            while rng.random() < 0.9 and await reader.read(rng.choice([1, 100, 100_000])):
                pass
    except (TimeoutError, ConnectionError):
        pass
    if rng.random() < 0.5:
        writer.transport.abort()
    else:
        writer.close()


async def test_a_connection_that_cannot_be_closed_costs_neither_ledger_nor_record(
    start_gateway: StartGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: UpstreamConnection) -> None:
        raise RuntimeError("cannot be closed")

    async with running(silence) as engine, start_gateway([engine.url]) as gateway:
        _, writer = await gateway.connect()
        writer.write(wire(CHAT))
        await until(lambda: bool(engine.requests))
        with monkeypatch.context() as patched:
            patched.setattr(UpstreamConnection, "abort", refuse)
            [exchange] = gateway.gateway.proxy.live
            assert exchange.task is not None
            exchange.interrupt = errors.cut_by_shutdown()
            exchange.task.cancel()
            [record] = await gateway.records()
        assert gateway.in_flight() == [0]
        writer.close()
    assert (record.outcome, record.error_kind) == ("error", "internal")


@pytest.mark.timeout(180)
async def test_ten_thousand_clients_that_leave_anywhere_leave_nothing_behind(start_gateway: StartGateway) -> None:
    rng, before = Random(7), asyncio.all_tasks()
    scripts = [
        *(answer, whole_stream, silence, only_the_head, stream_for_ever, begins_and_stalls, hang_up),
        *(refusing(503), refusing(400), refusing(429, extra=b"retry-after: 0.01\r\n")),
    ]

    async def anything(request: Received, conversation: Conversation) -> None:
        await rng.choice(scripts)(request, conversation)

    pool = {
        "hedge": {"delay_s": 0.01, "budget_min_per_s": 100},
        "retry": {"base_delay_s": 0.005, "budget_min_per_s": 100},
    }
    routes = [{"model": "m", "split": {"p": 1}, "keep_alive_s": 0.01}]
    accepted: list[object] = []
    async with running(anything) as left, running(anything) as right:
        async with start_gateway([left.url, right.url], pool=pool, routes=routes) as gateway:
            proxy = gateway.gateway.proxy
            accept = proxy.accept
            proxy.accept = lambda downstream: accepted.append(downstream) or accept(downstream)  # type: ignore[method-assign,assignment,func-returns-value]

            async def clients() -> None:
                for _ in range(200):
                    await leave_somewhere(gateway, rng)

            async with asyncio.TaskGroup() as crowd:
                for _ in range(50):
                    crowd.create_task(clients())
            records = await gateway.records()
            assert gateway.in_flight() == [0, 0]
            assert (proxy.live, proxy._tasks) == (set(), set())
            seen = (await gateway.client.get("/metrics")).text
    counted = [line for line in seen.splitlines() if line.startswith("weir_requests_total")]
    assert len(records) == len(accepted) == sum(float(line.split()[-1]) for line in counted)
    assert len({record.request_id for record in records}) == len(records) > 7500
    outcomes = Counter(record.outcome for record in records)
    assert min(outcomes["client_gone"], outcomes["ok"], outcomes["error"]) > 10, outcomes
    assert all(record.attempts for record in records if record.outcome == "ok")
    await until(lambda: asyncio.all_tasks() == before)
