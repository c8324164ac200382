"""The loop that runs an engine in real time, and the jobs that wait for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import msgspec
import pytest

from simulator.cache_vllm import BlockCache
from simulator.metrics_vllm import VllmMeters
from simulator.model import Engine
from simulator.profile import load_profile
from simulator.step_loop import Job, StepLoop
from simulator.steps import Limits, Request
from simulator.writing import Draft

QUIET = load_profile("h100_llama-3-8b")
QUIET = msgspec.structs.replace(QUIET, efficiency=msgspec.structs.replace(QUIET.efficiency, noise_sigma=0.0))


def draft(name: str, output: int) -> Draft:
    texts = tuple(f" w{index}" for index in range(output))
    request = Request(
        request_id=name, prompt=(1, 2), output=tuple(range(output)), finish_reason="length", max_tokens=output
    )
    return Draft(request=request, texts=texts, stop=None)


def job(*drafts: Draft, wake_every: int = 1) -> Job:
    return Job(drafts, streaming=True, wake_every=wake_every)


@pytest.fixture
async def loop() -> AsyncIterator[StepLoop]:
    limits = Limits(max_model_tokens=1024, max_running=8, max_step_tokens=512)
    engine: Engine[Any] = Engine(QUIET, BlockCache(4096), limits, Random(0))
    meters = VllmMeters(model="m", profile=QUIET, page_tokens=16, max_model_tokens=1024, snapshot=engine.snapshot)
    steps = StepLoop(engine, meters)
    task = asyncio.create_task(steps.run())
    yield steps
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_tokens_arrive_one_by_one_on_the_schedule_of_the_profile(loop: StepLoop) -> None:
    one = job(draft("a", 20))
    began = time.monotonic()
    loop.launch(one)
    seen = []
    while not one.over:
        await one.news()
        seen.append(one.choices[0].take())
    took = time.monotonic() - began
    assert "".join(seen) == "".join(f" w{index}" for index in range(20))
    assert len(seen) == 20
    # 20 steps of 7.0 ms; nothing may be early, and lateness does not add up.
    assert 20 * 0.0069 < took < 20 * 0.0072 + 0.05
    assert loop.idle


async def test_a_reader_that_lags_takes_several_tokens_at_once_and_misses_none(loop: StepLoop) -> None:
    slow, other = job(draft("slow", 12)), job(draft("other", 6))
    loop.launch(slow)
    loop.launch(other)
    while not other.over:
        await other.news()
    first = slow.choices[0].take()
    assert len(first.split()) >= 5
    while not slow.over:
        await slow.news()
    assert first + slow.choices[0].take() == "".join(f" w{index}" for index in range(12))


async def test_news_come_as_often_as_asked_and_at_the_end(loop: StepLoop) -> None:
    rare = job(draft("rare", 7), wake_every=5)
    loop.launch(rare)
    await rare.news()
    assert rare.produced == 5
    await rare.news()
    assert (rare.produced, rare.over) == (7, True)


async def test_an_aborted_job_has_news_and_is_gone_from_the_engine(loop: StepLoop) -> None:
    pair, kept = job(draft("a.0", 500), draft("a.1", 1)), job(draft("b.0", 3))
    loop.launch(pair)
    loop.launch(kept)
    while pair.choices[1].end is None:
        await pair.news()
    loop.abort(pair)
    await pair.news()
    assert [choice.end for choice in pair.choices] == ["abort", "length"]
    assert "a.0" not in loop.engine
    loop.abort_matching(lambda request_id: request_id.startswith("a"))
    while not kept.over:
        await kept.news()
    assert kept.choices[0].end == "length"


async def test_an_idle_engine_takes_no_steps(loop: StepLoop) -> None:
    once = job(draft("a", 1))
    loop.launch(once)
    await once.news()
    steps = loop.steps
    for _ in range(20):
        await asyncio.sleep(0)
    assert loop.steps == steps
    loop.launch(job(draft("b", 1)))
    loop.abort_matching(lambda request_id: True)
    assert loop.idle
    for _ in range(20):
        await asyncio.sleep(0)
    # One look at an empty engine, then nothing.
    assert loop.steps == steps + 1
