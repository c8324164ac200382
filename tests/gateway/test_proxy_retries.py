"""Trying again before the client's first byte: retries, breakers and hedges, over real sockets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from protocol.records import GatewayRecord
from protocol.traceparent import parse
from tests.gateway.conftest import CHAT, STREAMED, RunningGateway, StartGateway, error_of, until
from tests.scripted_engine import (
    ANSWER,
    SSE_HEAD,
    STREAM,
    Conversation,
    Received,
    Script,
    answer,
    chunk,
    hang_up,
    in_turn,
    only_the_head,
    refusing,
    running,
    silence,
    token,
    whole_stream,
)

QUICK = {"base_delay_s": 0.002, "max_delay_s": 0.004}
"""Retries whose pauses hold no test up."""


def pool(retry: dict[str, Any] | None = None, **settings: Any) -> dict[str, Any]:
    return {"retry": {**QUICK, **(retry or {})}, "slow_start_s": 0, **settings}


def pause_s(record: GatewayRecord) -> float:
    """From the choice of the first endpoint to the beginning of the attempt that answered."""
    return (record.marks_ns["connect"] - record.marks_ns["route"]) * 1e-9


async def post(gateway: RunningGateway, body: dict[str, Any] = CHAT) -> tuple[int, bytes]:
    response = await gateway.client.post("/v1/chat/completions", json=body)
    return response.status_code, response.content


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
async def test_what_may_pass_is_tried_elsewhere_and_the_client_sees_a_success(
    start_gateway: StartGateway, status: int
) -> None:
    script = in_turn(refusing(status), answer)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=pool()) as gateway:
            assert await post(gateway) == (200, ANSWER)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0, 0]
    assert [len(left.requests), len(right.requests)] == [1, 1]
    assert (record.attempts, record.outcome, record.status, record.error_kind) == (2, "ok", 200, None)
    assert list(record.marks_ns.values()) == sorted(record.marks_ns.values())


async def test_each_attempt_is_the_same_request_with_a_span_of_its_own(start_gateway: StartGateway) -> None:
    async with running(in_turn(refusing(503), refusing(429), whole_stream)) as engine:
        async with start_gateway([engine.url], pool=pool()) as gateway:
            assert await post(gateway, {"model": "m", "messages": [], "stream": True, "x": "é\u2028"}) == (
                200,
                b"".join(event for event in STREAM if b"usage" not in event),
            )
            [record] = await gateway.records()
    first, *others = engine.requests
    assert record.attempts == len(engine.requests) == 3
    assert {request.body for request in others} == {first.body}
    assert {request.headers["x-request-id"] for request in engine.requests} == {record.request_id}
    traces = [parse(request.headers["traceparent"].encode()) for request in engine.requests]
    assert {trace.trace_id for trace in traces if trace} == {record.trace_id}
    spans = [trace.span_id for trace in traces if trace]
    assert len(set(spans)) == 3
    assert spans[-1] == record.span_id


async def test_a_retry_after_is_waited_for_at_the_endpoint_that_sent_it(start_gateway: StartGateway) -> None:
    script = in_turn(refusing(429, extra=b"retry-after: 0.2\r\n"), answer)
    async with running(script) as engine, start_gateway([engine.url], pool=pool()) as gateway:
        assert await post(gateway) == (200, ANSWER)
        [record] = await gateway.records()
    assert (record.attempts, len(engine.requests)) == (2, 2)
    assert pause_s(record) >= 0.2


async def test_a_retry_after_does_not_hold_for_another_endpoint(start_gateway: StartGateway) -> None:
    script = in_turn(refusing(503, extra=b"retry-after: 3\r\n"), answer)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=pool()) as gateway:
            assert await post(gateway) == (200, ANSWER)
            [record] = await gateway.records()
    assert pause_s(record) < 1.5


@pytest.mark.parametrize(
    ("status", "extra", "retry", "requests"),
    [
        (400, b"", {}, 1),
        (404, b"", {}, 1),
        (422, b"", {}, 1),
        (501, b"", {}, 1),
        (503, b"", {}, 3),
        (429, b"", {"max_attempts": 2}, 2),
        (500, b"", {"max_attempts": 10}, 2),
        (500, b"", {"max_attempts": 10, "max_crashes": 4}, 4),
        (503, b"retry-after: 6\r\n", {}, 1),
        (503, b"retry-after: 0\r\n", {"budget_share": 0, "budget_min_per_s": 0}, 1),
    ],
    ids=["400", "404", "422", "501", "attempts", "attempts-2", "crashes", "crashes-4", "retry-after", "budget"],
)
async def test_at_the_end_of_the_tries_the_engines_own_answer_is_the_clients(
    start_gateway: StartGateway, status: int, extra: bytes, retry: dict[str, Any], requests: int
) -> None:
    async with running(refusing(status, extra=extra)) as engine:
        async with start_gateway([engine.url], pool=pool(retry)) as gateway:
            response = await gateway.client.post("/v1/chat/completions", json=STREAMED)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0]
    assert (response.status_code, error_of(response.content)) == (
        status,
        {"message": "No.", "type": "X", "param": None, "code": status},
    )
    assert response.headers.get("retry-after") == (extra.decode().strip().partition(": ")[2] or None)
    assert record.attempts == len(engine.requests) == requests


async def test_nothing_is_tried_again_once_the_client_has_a_byte(start_gateway: StartGateway) -> None:
    async def dies(request: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")))
        await until(lambda: gateway.gateway.proxy.live and all(x.watch for x in gateway.gateway.proxy.live))
        conversation.reset()

    async with running(dies) as left, running(dies) as right:
        async with start_gateway([left.url, right.url], pool=pool()) as gateway:
            status, body = await post(gateway, STREAMED)
            [record] = await gateway.records()
    assert (status, body.startswith(token("a"))) == (200, True)
    assert len(left.requests) + len(right.requests) == record.attempts == 1
    assert (record.outcome, record.error_kind) == ("truncated", "truncated")


async def half_an_event(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")[:20]))
    conversation.writer.close()


async def dies_after_the_head(request: Received, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD)
    conversation.reset()


@pytest.mark.parametrize("script", [hang_up, dies_after_the_head, half_an_event, only_the_head, silence])
async def test_an_engine_that_dies_or_hangs_before_its_first_event_is_not_the_end(
    start_gateway: StartGateway, script: Script
) -> None:
    once = in_turn(script, whole_stream)
    timeouts = {"first_byte_s": 0.3}
    async with running(once) as left, running(once) as right:
        async with start_gateway([left.url, right.url], pool=pool(timeouts=timeouts)) as gateway:
            assert await post(gateway, STREAMED) == (200, b"".join(STREAM))
            [record] = await gateway.records()
            failed = {*gateway.breakers()} - {str(record.endpoint)}
            kind = "first_byte_timeout" if script in (silence, only_the_head) else "closed_before_response"
            labels = {"pool": "p", "endpoint": failed.pop(), "kind": kind}
            assert await gateway.metric("weir_failed_attempts_total", **labels) == 1
    assert (record.attempts, record.outcome) == (2, "ok")


async def test_a_silent_engine_is_not_asked_twice(start_gateway: StartGateway) -> None:
    async with running(silence) as engine:
        async with start_gateway([engine.url], pool=pool(timeouts={"first_byte_s": 0.1})) as gateway:
            status, body = await post(gateway)
    assert (status, error_of(body)["type"], len(engine.requests)) == (504, "first_byte_timeout", 1)


async def test_all_attempts_together_have_the_time_of_one_request(start_gateway: StartGateway) -> None:
    timeouts = {"total_s": 1.0, "first_byte_s": 1.0, "chunk_gap_s": 1.0, "connect_s": 1.0}
    script = in_turn(refusing(503, extra=b"retry-after: 0.7\r\n"), silence)
    async with running(script) as engine, start_gateway([engine.url], pool=pool(timeouts=timeouts)) as gateway:
        status, body = await post(gateway)
        [record] = await gateway.records()
    assert (status, error_of(body)["type"], len(engine.requests)) == (504, "total_timeout", 2)
    assert 1.0 <= record.marks_ns["end"] * 1e-9 < 1.6


async def test_a_client_that_leaves_during_a_pause_is_the_end_of_its_tries(start_gateway: StartGateway) -> None:
    script = in_turn(refusing(503, extra=b"retry-after: 3\r\n"), answer)
    async with running(script) as engine, start_gateway([engine.url], pool=pool()) as gateway:
        _, writer = await gateway.ask(CHAT)
        await until(lambda: engine.requests and not any(x.open for x in gateway.gateway.proxy.live))
        writer.close()
        [record] = await gateway.records()
        assert gateway.in_flight() == [0]
    # The request is over long before its pause would have been, and with its task goes whatever could still send.
    assert (record.outcome, record.status, record.attempts, len(engine.requests)) == ("client_gone", None, 1, 1)
    assert record.marks_ns["end"] * 1e-9 < 2.5


async def test_two_requests_that_an_engine_fails_on_do_not_take_it_from_the_others(
    start_gateway: StartGateway,
) -> None:
    script = in_turn(*[refusing(500)] * 8, answer)
    settings = pool({"max_attempts": 4, "max_crashes": 4}, breaker={"consecutive_failures": 3})
    async with running(script) as engine, start_gateway([engine.url], pool=settings) as gateway:
        assert [(await post(gateway))[0] for _ in range(2)] == [500, 500]
        assert (len(engine.requests), gateway.breakers()) == (8, {"p-0": "closed"})
        assert await post(gateway) == (200, ANSWER)


async def test_an_endpoint_that_fails_is_left_alone_and_comes_back_when_it_works(start_gateway: StartGateway) -> None:
    settings = pool(policy="round_robin", breaker={"consecutive_failures": 2, "open_s": 0.3})
    async with running(refusing(500)) as bad, running(answer) as good:
        async with start_gateway([bad.url, good.url], pool=settings) as gateway:
            for _ in range(4):
                assert await post(gateway) == (200, ANSWER)
            assert (len(bad.requests), gateway.breakers()) == (2, {"p-0": "open", "p-1": "closed"})
            bad.script = answer
            async with asyncio.timeout(5):
                while gateway.breakers()["p-0"] != "closed":
                    assert await post(gateway) == (200, ANSWER)
            before = len(bad.requests)
            for _ in range(4):
                assert await post(gateway) == (200, ANSWER)
            assert len(bad.requests) == before + 2


async def test_the_only_endpoint_is_asked_even_while_its_breaker_is_open(start_gateway: StartGateway) -> None:
    settings = pool({"max_attempts": 1}, breaker={"consecutive_failures": 1, "open_s": 60.0, "max_open_s": 60.0})
    async with running(in_turn(refusing(500), answer)) as engine:
        async with start_gateway([engine.url], pool=settings) as gateway:
            assert (await post(gateway))[0] == 500
            assert gateway.breakers() == {"p-0": "open"}
            assert await post(gateway) == (200, ANSWER)
            assert gateway.breakers() == {"p-0": "closed"}


def hedged(**settings: Any) -> dict[str, Any]:
    return pool(hedge={"delay_s": 0.05, "budget_min_per_s": 10}, **settings)


async def test_a_second_endpoint_is_asked_when_the_first_is_late_and_the_first_to_answer_wins(
    start_gateway: StartGateway,
) -> None:
    script = in_turn(silence, whole_stream)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=hedged()) as gateway:
            assert await post(gateway, STREAMED) == (200, b"".join(STREAM))
            [record] = await gateway.records()
            late = left if record.endpoint == "p-1" else right
            [loser] = [late.conversations[request.connection] for request in late.requests]
            await asyncio.wait_for(loser.left.wait(), 1)
            assert gateway.in_flight() == [0, 0]
            assert set(gateway.breakers().values()) == {"closed"}
    assert [len(left.requests), len(right.requests)] == [1, 1], "a hedge is for another endpoint"
    assert (record.attempts, record.outcome) == (2, "ok")
    # Timers of the event loop tick in milliseconds.
    assert pause_s(record) >= 0.049


async def test_the_first_endpoint_may_still_win_after_the_second_was_asked(start_gateway: StartGateway) -> None:
    asked = asyncio.Event()

    async def late(request: Received, conversation: Conversation) -> None:
        await asked.wait()
        await answer(request, conversation)

    async def later(request: Received, conversation: Conversation) -> None:
        asked.set()
        await silence(request, conversation)

    script = in_turn(late, later)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=hedged()) as gateway:
            assert await post(gateway) == (200, ANSWER)
            [record] = await gateway.records()
            loser = left if record.endpoint == "p-1" else right
            await asyncio.wait_for(loser.conversations[loser.requests[0].connection].left.wait(), 1)
            assert gateway.in_flight() == [0, 0]
    spans = {engine.requests[0].headers["traceparent"].split("-")[2] for engine in (left, right)}
    assert len(spans) == 2
    assert record.span_id in spans


async def test_a_second_endpoint_that_refuses_does_not_end_the_wait_for_the_first(start_gateway: StartGateway) -> None:
    refused = asyncio.Event()

    async def late(request: Received, conversation: Conversation) -> None:
        await refused.wait()
        await until(lambda: sum(gateway.in_flight()) == 2)
        await asyncio.sleep(0.05)
        await answer(request, conversation)

    async def refuse(request: Received, conversation: Conversation) -> None:
        await refusing(503)(request, conversation)
        refused.set()

    script = in_turn(late, refuse, hang_up)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=hedged()) as gateway:
            assert await post(gateway) == (200, ANSWER)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0, 0]
    assert (record.attempts, len(left.requests) + len(right.requests)) == (2, 2)


async def test_when_both_fail_it_is_one_failure_and_the_retry_goes_on(start_gateway: StartGateway) -> None:
    refused = asyncio.Event()

    async def late_refusal(request: Received, conversation: Conversation) -> None:
        await refused.wait()
        await refusing(503)(request, conversation)

    async def refusal(request: Received, conversation: Conversation) -> None:
        refused.set()
        await refusing(429)(request, conversation)

    script = in_turn(late_refusal, refusal, answer)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=hedged()) as gateway:
            assert await post(gateway) == (200, ANSWER)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0, 0]
    assert record.attempts == 3


async def test_a_failure_before_the_delay_is_a_retry_and_no_hedge(start_gateway: StartGateway) -> None:
    settings = pool(hedge={"delay_s": 5.0, "budget_share": 0, "budget_min_per_s": 0.1})
    script = in_turn(hang_up, answer)
    async with running(script) as left, running(script) as right:
        async with start_gateway([left.url, right.url], pool=settings) as gateway:
            assert await post(gateway) == (200, ANSWER)
            hedges = gateway.gateway.fleet.pools["p"].hedges
            assert hedges is not None
            assert hedges.balance(asyncio.get_running_loop().time()) == pytest.approx(1.0)


async def test_without_a_budget_nothing_is_hedged(start_gateway: StartGateway) -> None:
    go_on = asyncio.Event()

    async def late(request: Received, conversation: Conversation) -> None:
        asyncio.get_running_loop().call_later(0.1, go_on.set)
        await go_on.wait()
        await answer(request, conversation)

    settings = pool(hedge={"delay_s": 0.01, "budget_share": 0, "budget_min_per_s": 0})
    async with running(late) as left, running(late) as right:
        async with start_gateway([left.url, right.url], pool=settings) as gateway:
            assert await post(gateway) == (200, ANSWER)
    assert len(left.requests) + len(right.requests) == 1


async def test_a_client_that_leaves_a_race_ends_both_tries(start_gateway: StartGateway) -> None:
    async with running(silence) as left, running(silence) as right:
        async with start_gateway([left.url, right.url], pool=hedged()) as gateway:
            _, writer = await gateway.ask(CHAT)
            await until(lambda: left.requests and right.requests)
            writer.close()
            for engine in (left, right):
                connection = engine.conversations[engine.requests[0].connection]
                await asyncio.wait_for(connection.left.wait(), 1)
            [record] = await gateway.records()
            assert gateway.in_flight() == [0, 0]
            assert await gateway.metric("weir_cancel_propagation_seconds_count") == 2
    assert (record.outcome, record.attempts) == ("client_gone", 2)
