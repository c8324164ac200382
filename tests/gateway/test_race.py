"""Tries that run at once: who wins, and that nobody is left running."""

from __future__ import annotations

import asyncio

import pytest

from gateway.race import Race


class Runner:
    """A try that ends when told to, and knows how it ended."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.ended = ""

    async def run(self, result: int) -> int:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            # A try that is cancelled still has something to put away.
            await asyncio.sleep(0)
            self.ended = "cancelled"
            raise
        self.ended = "finished"
        if result < 0:
            raise ValueError(result)
        return result


def positive(result: int) -> bool:
    return result > 0


async def test_the_first_good_result_wins_and_the_other_is_cancelled_and_waited_for() -> None:
    slow, quick = Runner(), Runner()
    async with Race(positive) as tries:
        tries.start(slow.run(1))
        tries.start(quick.run(2))
        quick.go.set()
        assert await tries.winner() == 2
        assert slow.ended == ""
    assert (slow.ended, quick.ended) == ("cancelled", "finished")


async def test_a_bad_result_waits_for_a_better_one() -> None:
    bad, good = Runner(), Runner()
    async with Race(positive) as tries:
        tries.start(bad.run(0))
        tries.start(good.run(3))
        bad.go.set()
        asyncio.get_running_loop().call_soon(good.go.set)
        assert await tries.winner() == 3
    assert good.ended == "finished"


async def test_when_all_are_bad_the_last_one_is_the_result() -> None:
    first, last = Runner(), Runner()
    async with Race(lambda result: False) as tries:
        tries.start(first.run(1))
        tries.start(last.run(2))
        first.go.set()
        asyncio.get_running_loop().call_later(0.01, last.go.set)
        assert await tries.winner() == 2


async def test_of_two_good_ones_at_the_same_moment_either_wins() -> None:
    left, right = Runner(), Runner()
    left.go.set()
    right.go.set()
    async with Race(positive) as tries:
        tries.start(left.run(1))
        tries.start(right.run(2))
        assert await tries.winner() in (1, 2)
    assert (left.ended, right.ended) == ("finished", "finished")


async def test_nobody_has_won_when_the_time_is_up_and_the_race_goes_on() -> None:
    late = Runner()
    async with Race(positive) as tries:
        tries.start(late.run(1))
        assert await tries.winner(0.01) is None
        late.go.set()
        assert await tries.winner(1.0) == 1


async def test_a_race_without_tries_has_no_winner() -> None:
    async with Race(positive) as tries:
        assert await tries.winner() is None


async def test_a_try_that_raises_ends_the_race() -> None:
    fails, waits = Runner(), Runner()
    fails.go.set()
    async with Race(positive) as tries:
        tries.start(fails.run(-1))
        tries.start(waits.run(1))
        with pytest.raises(ValueError, match="-1"):
            await tries.winner()
    assert waits.ended == "cancelled"


async def test_cancelling_the_race_cancels_every_try() -> None:
    runners = [Runner(), Runner()]

    async def race() -> None:
        async with Race(positive) as tries:
            for runner in runners:
                tries.start(runner.run(1))
            await tries.winner()

    task = asyncio.create_task(race())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [runner.ended for runner in runners] == ["cancelled", "cancelled"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
