"""Waiting until a point of the monotonic clock."""

from __future__ import annotations

import asyncio
import time

from timing.alarm import Alarm


async def test_it_is_never_early_and_soon_after() -> None:
    alarm = Alarm()
    late = []
    for wait_s in (0.0003, 0.0017, 0.0042):
        due_ns = time.monotonic_ns() + round(wait_s * 1e9)
        await alarm.until(due_ns)
        late.append(time.monotonic_ns() - due_ns)
    alarm.close()
    assert min(late) >= 0
    assert min(late) < 1_000_000


async def test_a_past_due_time_gives_others_their_turn() -> None:
    alarm = Alarm()
    turns: list[str] = []
    asyncio.get_running_loop().call_soon(turns.append, "other")
    await alarm.until(time.monotonic_ns() - 1)
    alarm.close()
    assert turns == ["other"]
