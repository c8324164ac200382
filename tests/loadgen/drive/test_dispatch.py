import asyncio
import time

import pytest

from loadgen.drive import dispatch as dispatch_module
from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Client, parse_target
from loadgen.drive.dispatch import Limit, OpenLoop, _Ahead
from protocol.records import ScheduledRequest
from tests.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, chunk, running, token

MS = 1_000_000
ANSWER = SSE_HEAD + chunk(token("a", "stop") + DONE) + LAST_CHUNK


def schedule(*at_ms, prompt_tokens=1):
    return [
        ScheduledRequest(
            index=index,
            at_ns=round(at * MS),
            prompt_tokens=prompt_tokens,
            output_tokens=1,
            segments=((0, prompt_tokens),),
        )
        for index, at in enumerate(at_ms)
    ]


def build(request):
    wire = b"POST /%d HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n" % request.index
    return Outgoing(request_id=f"r-{request.index}", trace_id="t", wire=wire)


async def answer(request, conversation):
    await conversation.send(ANSWER)


class Drive:
    """One walk against one engine, with everything that it kept."""

    def __init__(self, client, *, timeout_s=10.0, lead_ms=20):
        self.kept = []
        self.stop, self.halt = asyncio.Event(), asyncio.Event()
        self.loop = OpenLoop(
            client,
            build=build,
            keep=lambda request, chunks: self.kept.append((request, chunks)),
            run_id="r",
            origin_ns=time.monotonic_ns() + lead_ms * MS,
            timeout_s=timeout_s,
        )

    async def run(self, requests, grace_s=10.0, limit=None):
        await self.loop.run(requests, stop=self.stop, halt=self.halt, grace_s=grace_s, limit=limit)
        return sorted((request for request, _ in self.kept), key=lambda request: request.index)


@pytest.fixture
async def driven():
    """Makes a drive for an engine."""
    clients = []

    async def make(engine, **changes):
        clients.append(await Client.open(parse_target(engine.url)))
        return Drive(clients[-1], **changes)

    yield make
    for client in clients:
        client.close()


async def test_every_request_leaves_at_its_time_and_never_before(driven):
    times_ms = [0, 0, 3, 3.5, 10, 10, 10, 40, 60]
    async with running(answer) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(*times_ms))
    assert [request.outcome for request in requests] == ["ok"] * len(times_ms)
    assert [request.intended_ns for request in requests] == [round(at * MS) for at in times_ms]
    assert all(request.sent_ns >= request.intended_ns for request in requests)
    assert [request.path for request in engine.requests] == [f"/{k}" for k in range(len(times_ms))]
    assert (drive.loop.sent, drive.loop.in_flight) == (len(times_ms), 0)
    assert all(chunks is not None for _, chunks in drive.kept)


async def test_the_marks_before_sending_are_in_order_and_only_a_new_connection_has_its_own(driven):
    async with running(answer) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(0, 100))
    assert [request.new_connection for request in requests] == [True, False]
    first, second = requests
    assert first.intended_ns <= first.dequeued_ns <= first.connected_ns <= first.sent_ns
    assert second.intended_ns <= second.dequeued_ns <= second.sent_ns
    assert second.connected_ns is None


async def test_no_request_waits_for_a_response(driven):
    """Nobody is answered before all have arrived: a closed loop would never get there."""
    everyone = asyncio.Event()

    async def script(request, conversation):
        if len(engine.requests) == 100:
            everyone.set()
        await everyone.wait()
        await conversation.send(ANSWER)

    async with running(script) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(*[0.2 * k for k in range(100)]))
    assert {request.outcome for request in requests} == {"ok"}


@pytest.mark.parametrize("closed", [False, True])
async def test_a_limit_holds_the_next_request_back_until_an_answer_has_ended(driven, closed):
    unanswered, most = 0, 0
    pair = asyncio.Event()

    async def script(request, conversation):
        """Nobody is answered before two are there; a third would be seen beside them."""
        nonlocal unanswered, most
        unanswered += 1
        most = max(most, unanswered)
        if len(engine.requests) == 2:
            pair.set()
        await pair.wait()
        unanswered -= 1
        await conversation.send(ANSWER)

    async with running(script) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(*[0] * 6), limit=Limit(requests=2, closed=closed))
    assert {request.outcome for request in requests} == {"ok"}
    assert most == 2
    ends = sorted(request.end_ns for request in requests)
    for turn, request in enumerate(requests[2:]):
        assert request.dequeued_ns >= ends[turn]
        assert request.intended_ns == (request.dequeued_ns if closed else 0)


async def test_a_stop_is_heard_by_a_request_that_is_held_back(driven):
    async def script(request, conversation):
        drive.stop.set()
        await conversation.until_left()

    async with running(script) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(0, 0), grace_s=0.0, limit=Limit(requests=1, closed=False))
    assert [request.outcome for request in requests] == ["cancelled", "unsent"]


async def test_what_is_late_is_sent_at_once_and_lateness_does_not_add_up(driven):
    async with running(answer) as engine:
        drive = await driven(engine, lead_ms=-50)
        requests = await drive.run(schedule(0, 10, 20, 200))
    lateness = [request.sent_ns - request.intended_ns for request in requests]
    assert lateness[0] >= 50 * MS
    assert lateness[1] >= 40 * MS
    assert 0 <= lateness[3] < 50 * MS


async def test_an_answer_that_does_not_come_in_time_is_a_timeout(driven):
    async def script(request, conversation):
        await conversation.send(SSE_HEAD + chunk(token("a")))
        await conversation.until_left()

    async with running(script) as engine:
        drive = await driven(engine, timeout_s=0.05)
        [request] = await drive.run(schedule(0))
        await engine.conversations[0].left.wait()
    assert (request.outcome, request.error) == ("timeout", "no whole response within 0.05 s")
    assert request.first_token_ns is not None
    assert request.end_ns - request.sent_ns >= 49 * MS


async def test_a_stop_sends_nothing_more_and_lets_the_rest_end_in_its_grace(driven):
    async def script(request, conversation):
        drive.stop.set()
        await conversation.send(ANSWER)

    async with running(script) as engine:
        drive = await driven(engine)
        requests = await drive.run(schedule(0, 60_000, 120_000))
    assert [request.outcome for request in requests] == ["ok", "unsent", "unsent"]
    assert len(engine.requests) == 1


async def test_an_answer_that_has_ended_is_kept_when_the_rest_is_halted(driven):
    async def second_hangs(request, conversation):
        if request.path == "/0":
            await conversation.send(ANSWER)
        else:
            await conversation.until_left()

    async with running(second_hangs) as engine:
        drive = await driven(engine)
        await drive.loop._examining.acquire()
        run = asyncio.create_task(drive.run(schedule(0, 1), grace_s=60.0))
        while drive.loop.sent < 2 or drive.loop.in_flight != 1:
            await asyncio.sleep(0.001)
        drive.stop.set()
        drive.halt.set()
        while drive.loop.in_flight:
            await asyncio.sleep(0.001)
        drive.loop._examining.release()
        requests = await run
    assert [request.outcome for request in requests] == ["ok", "cancelled"]


@pytest.mark.parametrize("halted", [False, True])
async def test_what_outlasts_the_grace_or_is_halted_is_cancelled(driven, halted):
    async def script(request, conversation):
        await conversation.send(SSE_HEAD + chunk(token("a")))
        drive.stop.set()
        if halted:
            drive.halt.set()
        await conversation.until_left()

    async with running(script) as engine:
        drive = await driven(engine)
        [request] = await drive.run(schedule(0), grace_s=60.0 if halted else 0.0)
        await engine.conversations[0].left.wait()
    assert (request.outcome, request.error) == ("cancelled", "the run was stopped")


async def test_a_record_that_cannot_be_kept_ends_the_run(driven):
    def full(request, chunks):
        raise OSError("disk full")

    async with running(answer) as engine:
        drive = await driven(engine)
        drive.loop._keep = full
        with pytest.raises(ExceptionGroup) as failure:
            await drive.run(schedule(0, 60_000))
    assert failure.group_contains(OSError, match="disk full")


def test_bodies_are_built_ahead_within_the_window_and_in_order():
    built = []

    def remember(request):
        built.append(request.index)
        return build(request)

    ahead = _Ahead(schedule(*range(100)), remember)
    while ahead.build_within(10 * MS):
        pass
    assert built == list(range(dispatch_module._AHEAD_REQUESTS))
    assert [ahead.take().request_id for _ in range(100)] == [f"r-{k}" for k in range(100)]
    assert built == list(range(100))
    assert not ahead.build_within(10 * MS)


def test_nothing_is_built_when_there_is_no_time_for_its_size():
    ahead = _Ahead(schedule(0, prompt_tokens=100_000), build)
    assert not ahead.build_within(20 * MS)
    assert ahead.build_within(30 * MS)


def test_the_window_is_bounded_in_bytes_too(monkeypatch):
    monkeypatch.setattr(dispatch_module, "_AHEAD_BYTES", 100)
    ahead = _Ahead(schedule(*range(10)), build)
    assert [ahead.build_within(10 * MS) for _ in range(4)] == [True, True, True, False]
    ahead.take()
    assert ahead.build_within(10 * MS)
