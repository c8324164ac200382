import asyncio

import pytest

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Client, parse_target
from loadgen.drive.warm_up import warm_up, warm_up_requests
from loadgen.plan.making import make_schedule
from loadgen.plan.sources import Part, Replayed
from loadgen.workload.texts import OUTSIDE_RUNS
from tests.loadgen.rows import TraceRow, columns
from tests.loadgen.test_procedure import serve
from tests.scripted_engine import running


def schedule(rows=11):
    """Prompts of 20, 21, … tokens, outputs of 1, 2, …"""
    traffic = columns([TraceRow(float(k), 20 + k, 1 + k) for k in range(rows)])
    return make_schedule(Replayed(name="t", sha256="0" * 64, requests=traffic), Part(seed=1, duration_s=100))


def test_lengths_are_those_of_the_whole_schedule():
    made = warm_up_requests(schedule(), 3, "r")
    assert [(each.prompt_tokens, each.output_tokens) for each in made] == [(20, 1), (25, 6), (30, 11)]
    assert [each.segments[0][1] for each in made] == [20, 25, 30]
    assert [each.prompt_tokens for each in warm_up_requests(schedule(2), 4, "r")] == [20, 20, 20, 21]


def test_no_text_is_in_the_schedule_or_in_another_warm_up():
    numbers = {each.segments[0][0] for run_id in ("r", "s") for each in warm_up_requests(schedule(), 50, run_id)}
    assert len(numbers) == 100
    assert all(OUTSIDE_RUNS <= number < 1 << 64 for number in numbers)
    assert schedule().segment_ids.max() < OUTSIDE_RUNS


def test_a_schedule_without_a_request_needs_no_warm_up():
    assert warm_up_requests(schedule(0), 5, "r") == []


async def sent(script, count, *, at_once=None, stop=None):
    async with running(script) as engine:
        target = parse_target(engine.url)
        client = await Client.open(target)
        try:
            return await warm_up(
                client,
                ChatRequests(target, model="m", run_id="w").streamed,
                warm_up_requests(schedule(), count, "r"),
                run_id="w",
                at_once=at_once,
                timeout_s=5,
                stop=stop or asyncio.Event(),
            )
        finally:
            client.close()


@pytest.mark.parametrize(("at_once", "expected"), [(2, 2), (None, 8)])
async def test_all_are_sent_within_the_limit_and_recorded(at_once, expected):
    going, most, together = 0, 0, asyncio.Barrier(expected)

    async def script(request, conversation):
        nonlocal going, most
        going += 1
        most = max(most, going)
        await together.wait()
        going -= 1
        await serve(request, conversation)

    records = await sent(script, 16, at_once=at_once)
    assert [record.outcome for record in records] == ["ok"] * 16
    assert sorted(record.request_id for record in records) == sorted(f"w-{number}" for number in range(16))
    assert most == expected


async def test_a_stop_ends_it_at_once():
    stop = asyncio.Event()

    async def script(request, conversation):
        stop.set()
        await conversation.until_left()

    records = await sent(script, 5, at_once=1, stop=stop)
    assert [record.outcome for record in records] == ["cancelled", *["unsent"] * 4]
