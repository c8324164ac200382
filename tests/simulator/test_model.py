"""The scheduler under random workloads and in the situations where vLLM and SGLang differ."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cache_sglang import RadixCache
from simulator.cache_vllm import BlockCache
from simulator.model import Engine
from simulator.profile import StepLoad, load_profile
from simulator.steps import Finished, Limits, Request

PROFILE = load_profile("h100_llama-3-8b")
MIXED = Limits(max_model_tokens=64, max_running=8, max_step_tokens=16)
PREFILL_FIRST = replace(
    MIXED, prefill_first=True, victim="least_output", reserves_output=True, queued_counts_running=False
)
CACHES = {
    "vllm": lambda tokens: BlockCache(tokens, 4),
    "sglang": lambda tokens: RadixCache(tokens),
    "sglang-paged": lambda tokens: RadixCache(tokens, 4),
}


def request(name: str, prompt: int, output: int, *, first: int = 0, max_tokens: int | None = None) -> Request:
    return Request(
        request_id=name,
        prompt=tuple(range(first, first + prompt)),
        output=tuple(range(1000, 1000 + output)),
        finish_reason="length",
        max_tokens=output if max_tokens is None else max_tokens,
    )


class Driver:
    """Runs an engine on virtual time and keeps everything it said."""

    def __init__(self, limits: Limits, *, kind: str = "vllm", kv_tokens: int = 4096, seed: int = 0) -> None:
        self.engine: Engine[Any] = Engine(PROFILE, CACHES[kind](kv_tokens), limits, Random(seed))
        self.now = 100.0
        self.positions: dict[str, list[int]] = {}
        self.emitted_at: dict[str, list[float]] = {}
        self.finished: dict[str, Finished] = {}
        self.admitted: list[str] = []
        self.preempted: list[str] = []
        self.step_tokens: list[int] = []

    def add(self, *requests: Request) -> None:
        for each in requests:
            self.engine.add(each, self.now)

    def step(self) -> bool:
        """One step; False when the engine has become idle. Always checks that memory is conserved."""
        result = self.engine.step(self.now)
        for name, position, _ in result.emitted:
            self.positions.setdefault(name, []).append(position)
            self.emitted_at.setdefault(name, []).append(self.now)
        self.finished.update({each.request_id: each for each in result.finished})
        self.admitted += [each.request_id for each in result.admitted if not each.resumed]
        self.preempted += result.preempted
        self.step_tokens.append(result.new_tokens)
        kv = self.engine.snapshot().kv
        assert min(kv.free_tokens, kv.cached_tokens, kv.used_tokens) >= 0
        assert kv.free_tokens + kv.cached_tokens + kv.used_tokens == kv.capacity_tokens
        self.now += result.duration_s or 0.0
        return result.duration_s is not None

    def run(self) -> None:
        for _ in range(20_000):
            if not self.step():
                return
        pytest.fail("the engine does not come to rest")


arrivals = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 24), st.integers(0, 2), st.integers(0, 6)), max_size=25
)


@settings(max_examples=150, deadline=None)
@given(
    arrivals=arrivals,
    kind=st.sampled_from(sorted(CACHES)),
    policy=st.sampled_from([MIXED, PREFILL_FIRST, replace(PREFILL_FIRST, reserves_output=False)]),
    kv_tokens=st.sampled_from([64, 80, 200]),
    seed=st.integers(0, 2**16),
)
def test_every_request_gets_exactly_its_tokens_in_order_whatever_happens(
    arrivals: list[tuple[int, int, int, int]], kind: str, policy: Limits, kv_tokens: int, seed: int
) -> None:
    driver = Driver(policy, kind=kind, kv_tokens=kv_tokens, seed=seed)
    rng = Random(seed)
    aborted: set[str] = set()
    wanted: dict[str, Request] = {}
    for number, (prompt, output, family, steps) in enumerate(arrivals):
        wanted[f"r{number}"] = request(f"r{number}", prompt, output, first=family * 100)
        driver.add(wanted[f"r{number}"])
        for _ in range(steps):
            driver.step()
        if rng.random() < 0.2:
            victim = f"r{rng.randrange(number + 1)}"
            if driver.engine.abort(victim):
                aborted.add(victim)
            assert victim not in driver.engine
    driver.run()
    assert set(driver.finished) | aborted == set(wanted)
    assert not set(driver.finished) & aborted
    for name, finished in driver.finished.items():
        assert driver.positions.get(name, []) == list(range(len(wanted[name].output)))
        assert finished.output_tokens == len(wanted[name].output)
        assert finished.arrived_s <= finished.admitted_s < finished.first_token_s <= finished.finished_s
        assert finished.preemptions == driver.preempted.count(name)
    assert driver.admitted == sorted(driver.admitted, key=lambda name: int(name[1:]))
    assert all(tokens <= policy.max_step_tokens for tokens in driver.step_tokens)
    snapshot = driver.engine.snapshot()
    assert (snapshot.running, snapshot.waiting, snapshot.kv.used_tokens) == (0, 0, 0)
    assert driver.engine.reset_cache()


def test_equal_seeds_give_equal_runs_and_other_seeds_other_times() -> None:
    def times(seed: int) -> list[float]:
        driver = Driver(MIXED, seed=seed)
        driver.add(request("a", 20, 10))
        driver.run()
        return driver.emitted_at["a"]

    assert times(1) == times(1) != times(2)


def test_a_long_prompt_is_computed_in_chunks_beside_running_decodes() -> None:
    driver = Driver(MIXED)
    driver.add(request("short", 4, 20))
    driver.step()
    driver.add(request("long", 40, 2, first=500))
    driver.run()
    # 16 a step: the decode takes one of them each time, so 40 prompt tokens need 15 + 15 + 10.
    assert driver.step_tokens[:6] == [4, 16, 16, 11, 2, 1]
    assert driver.positions["short"] == list(range(20))


def test_prefill_first_holds_decodes_back_until_prompts_are_computed() -> None:
    driver = Driver(PREFILL_FIRST, kind="sglang")
    driver.add(request("short", 4, 20))
    driver.step()
    driver.add(request("long", 40, 2, first=500))
    driver.run()
    assert driver.step_tokens[:6] == [4, 16, 16, 8, 2, 1]


def test_vllm_preempts_the_latest_and_resumes_it_before_later_arrivals() -> None:
    driver = Driver(MIXED, kv_tokens=64)
    driver.add(request("a", 20, 30), request("b", 20, 30, first=100), request("c", 8, 1, first=200))
    driver.run()
    assert "b" in driver.preempted
    assert "a" not in driver.preempted
    assert driver.finished["a"].finished_s < driver.finished["b"].finished_s
    assert driver.finished["b"].preemptions >= 1


def test_sglang_retracts_the_one_that_produced_least() -> None:
    eager = replace(PREFILL_FIRST, reserves_output=False)
    driver = Driver(eager, kind="sglang", kv_tokens=64)
    driver.add(request("old", 10, 40))
    for _ in range(8):
        driver.step()
    driver.add(request("young", 20, 30, first=100))
    driver.run()
    assert set(driver.preempted) == {"young"}


def test_the_reserve_admits_fewer_at_once_than_memory_alone_would() -> None:
    def most_running(limits: Limits) -> int:
        driver = Driver(limits, kind="sglang", kv_tokens=128)
        driver.add(*(request(f"r{i}", 8, 4, first=i * 100, max_tokens=50) for i in range(6)))
        most = 0
        while driver.step():
            most = max(most, driver.engine.snapshot().running)
        assert len(driver.finished) == 6
        return most

    assert most_running(PREFILL_FIRST) < most_running(replace(PREFILL_FIRST, reserves_output=False)) == 6


def test_a_repeated_prompt_is_computed_only_from_where_it_differs() -> None:
    driver = Driver(replace(MIXED, max_step_tokens=64), kind="sglang")
    driver.add(request("first", 40, 1))
    driver.run()
    driver.add(request("again", 40, 1))
    driver.run()
    assert driver.finished["first"].cached_tokens == 0
    assert driver.finished["again"].cached_tokens == 39
    assert driver.step_tokens == [40, 0, 1, 0]


def test_running_is_capped_and_queue_caps_count_as_their_kind_does() -> None:
    limits = replace(MIXED, max_running=2, max_queued=3)
    driver = Driver(limits)
    driver.add(request("a", 4, 9), request("b", 4, 9))
    driver.step()
    assert driver.engine.snapshot().running == 2
    assert driver.engine.has_room(1)
    assert not driver.engine.has_room(2)
    waiting_only = Driver(replace(limits, queued_counts_running=False))
    waiting_only.add(request("a", 4, 9), request("b", 4, 9))
    waiting_only.step()
    assert waiting_only.engine.has_room(3)
    assert not waiting_only.engine.has_room(4)


def test_a_decode_step_takes_everyone_however_small_the_prefill_chunk() -> None:
    driver = Driver(replace(PREFILL_FIRST, max_step_tokens=2, reserves_output=False), kind="sglang")
    driver.add(*(request(f"r{i}", 2, 3, first=i * 100) for i in range(4)))
    driver.run()
    assert driver.step_tokens == [2, 2, 2, 2, 4, 4, 0]
    assert driver.engine.has_room(10**9)


def test_an_abort_in_mid_step_yields_no_further_token_and_frees_its_memory() -> None:
    driver = Driver(MIXED)
    driver.add(request("a", 4, 9), request("b", 4, 9, first=50))
    driver.step()
    assert driver.engine.abort("a")
    assert not driver.engine.abort("a")
    driver.run()
    assert driver.positions == {"b": list(range(9))}


def test_step_time_is_the_profile_of_what_the_step_computes() -> None:
    efficiency = msgspec.structs.replace(PROFILE.efficiency, noise_sigma=0.0)
    profile = msgspec.structs.replace(PROFILE, efficiency=efficiency)
    quiet = Engine(profile, BlockCache(4096), replace(MIXED, max_step_tokens=64), Random(0))
    quiet.add(request("a", 10, 3), 0.0)
    assert quiet.step(0.0).duration_s == PROFILE.step_time_s(StepLoad(10, 55, 10))
    assert quiet.step(1.0).duration_s == PROFILE.step_time_s(StepLoad(1, 11, 11))


def test_what_can_never_run_is_refused_with_its_reason() -> None:
    driver = Driver(MIXED)
    driver.add(request("a", 4, 4))
    with pytest.raises(ValueError, match="already in the engine"):
        driver.add(request("a", 4, 4))
    with pytest.raises(ValueError, match="prompt of 60 and an output of up to 5"):
        driver.add(request("b", 60, 5))
    with pytest.raises(ValueError, match="prompt of 0"):
        driver.add(request("c", 0, 5))
    with pytest.raises(ValueError, match="exceeds the KV capacity of 32"):
        Driver(MIXED, kv_tokens=32)
