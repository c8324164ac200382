"""The tree: what each setting is when nobody sets it, and what it may be."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config import BreakerRules, Config, HedgeRules, PoolConfig, RetryRules, TimeoutsConfig

POOL: dict[str, Any] = {"engine": "vllm", "endpoints": [{"url": "http://10.0.0.1:8000"}]}
TREE: dict[str, Any] = {"pools": {"p": POOL}, "routes": [{"model": "m", "split": {"p": 1}}]}


def refusal(section: type[Any], tree: dict[str, Any]) -> tuple[tuple[str | int, ...], str]:
    """Where and of what type the first problem of `tree` is."""
    with pytest.raises(ValidationError) as refused:
        section.model_validate(tree)
    problem = refused.value.errors()[0]
    return problem["loc"], problem["type"]


def test_the_smallest_tree_retries_and_breaks_but_does_not_hedge_or_comment() -> None:
    config = Config.model_validate(TREE)
    pool = config.pools["p"]
    assert (pool.retry, pool.breaker, pool.hedge) == (RetryRules(), BreakerRules(), None)
    assert (pool.max_ejection_share, pool.slow_start_s) == (0.5, 10.0)
    assert (config.routes[0].keep_alive_s, config.usage.inject) == (None, True)


def test_every_policy_can_be_set_for_each_pool() -> None:
    pool = {
        **POOL,
        "retry": {"max_attempts": 1, "budget_share": 0, "max_retry_after_s": 0},
        "breaker": {"consecutive_failures": 2, "failure_ratio": 1},
        "hedge": {"delay_s": 0.5},
        "max_ejection_share": 0,
        "slow_start_s": 0,
    }
    found = Config.model_validate({**TREE, "pools": {"p": pool, "q": POOL}}).pools
    assert (found["p"].retry.max_attempts, found["p"].retry.budget_share) == (1, 0.0)
    assert (found["p"].breaker.consecutive_failures, found["p"].breaker.failure_ratio) == (2, 1.0)
    assert found["p"].hedge == HedgeRules(delay_s=0.5)
    assert found["q"].hedge is None


@pytest.mark.parametrize("section", [Config, PoolConfig, RetryRules, BreakerRules, HedgeRules, TimeoutsConfig])
def test_no_section_takes_a_key_that_it_does_not_know(section: type[Any]) -> None:
    whole = {Config: TREE, PoolConfig: POOL}.get(section, {})
    section.model_validate(whole)
    assert refusal(section, {**whole, "no_such_key": 1}) == (("no_such_key",), "extra_forbidden")


@pytest.mark.parametrize(
    ("section", "key", "allowed", "refused"),
    [
        (RetryRules, "max_attempts", (1, 10), (0, 11)),
        (RetryRules, "max_crashes", (1, 10), (0, 11)),
        (RetryRules, "budget_share", (0, 1), (-0.1, 1.1)),
        (RetryRules, "budget_min_per_s", (0, 1000), (-1, 1001)),
        (RetryRules, "base_delay_s", (0.001, 86_400), (0, 86_401)),
        (RetryRules, "max_retry_after_s", (0, 3600), (-1, 3601)),
        (BreakerRules, "window_s", (0.1,), (0,)),
        (BreakerRules, "min_volume", (1,), (0,)),
        (BreakerRules, "failure_ratio", (0.01, 1), (0, 1.01)),
        (BreakerRules, "consecutive_failures", (1,), (0,)),
        (BreakerRules, "open_s", (0.1,), (0,)),
        (BreakerRules, "half_open_probes", (1,), (0,)),
        (HedgeRules, "delay_s", (0.001, None), (0,)),
        (HedgeRules, "quantile", (0.01, 1), (0, 1.01)),
        (HedgeRules, "min_samples", (0,), (-1,)),
        (HedgeRules, "budget_share", (0, 1), (-0.1, 1.1)),
        (HedgeRules, "budget_min_per_s", (0, 1000), (-1, 1001)),
        (TimeoutsConfig, "connect_s", (0.001,), (0, -1)),
    ],
)
def test_the_limits_of_a_rule_hold(
    section: type[Any], key: str, allowed: tuple[object, ...], refused: tuple[object, ...]
) -> None:
    for value in allowed:
        assert getattr(section.model_validate({key: value}), key) == value
    for value in refused:
        where, _ = refusal(section, {key: value})
        assert where == (key,)


@pytest.mark.parametrize(
    ("key", "allowed", "refused"),
    [("max_ejection_share", (0, 1), (-0.1, 1.1)), ("slow_start_s", (0, 3600), (-1, 3601))],
)
def test_the_limits_of_a_pool_hold(key: str, allowed: tuple[object, ...], refused: tuple[object, ...]) -> None:
    for value in allowed:
        assert getattr(PoolConfig.model_validate({**POOL, key: value}), key) == value
    for value in refused:
        assert refusal(PoolConfig, {**POOL, key: value})[0] == (key,)


@pytest.mark.parametrize("value", ["3", True, 1.5])
def test_a_count_is_a_whole_number_and_nothing_that_could_be_read_as_one(value: object) -> None:
    assert refusal(RetryRules, {"max_attempts": value})[0] == ("max_attempts",)


def test_comments_are_for_a_route_and_come_after_some_time() -> None:
    route = TREE["routes"][0]
    tree = Config.model_validate({**TREE, "routes": [{**route, "keep_alive_s": 15}]})
    assert tree.routes[0].keep_alive_s == 15.0
    assert refusal(Config, {**TREE, "routes": [{**route, "keep_alive_s": 0}]})[0] == ("routes", 0, "keep_alive_s")


@pytest.mark.parametrize("part", ["connect_s", "first_byte_s", "chunk_gap_s"])
def test_no_part_of_a_request_may_take_longer_than_the_whole(part: str) -> None:
    whole = {"total_s": 1.0, "connect_s": 1.0, "first_byte_s": 1.0, "chunk_gap_s": 1.0}
    TimeoutsConfig.model_validate(whole)
    with pytest.raises(ValidationError, match=f"{part} is 1.5 but total_s is only 1"):
        TimeoutsConfig.model_validate({**whole, part: 1.5})


def test_the_tree_cannot_be_changed() -> None:
    config = Config.model_validate(TREE)
    with pytest.raises(ValidationError, match="frozen"):
        config.usage.inject = False  # type: ignore[misc]


def test_endpoints_are_called_by_their_own_name_or_by_their_place() -> None:
    endpoints = [{"url": "http://a"}, {"url": "http://b", "name": "mine"}, {"url": "http://c"}]
    pool = PoolConfig.model_validate({**POOL, "endpoints": endpoints})
    assert pool.endpoint_names("p") == ["p-0", "mine", "p-2"]


@pytest.mark.parametrize("name", ["", "-x", "a b", "x" * 64, "ä"])
def test_a_pools_name_is_fit_for_a_label(name: str) -> None:
    where, _ = refusal(Config, {"pools": {name: POOL}, "routes": [{"model": "m", "split": {name: 1}}]})
    assert where[:2] == ("pools", name)
