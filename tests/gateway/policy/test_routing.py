"""Proportions, fairness and order of the routing policies."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import PoolConfig
from gateway.policy.routing import POLICIES, WeightedSplit, least_in_flight, round_robin

LOADS = st.lists(st.integers(0, 5), min_size=1, max_size=8)
WEIGHTS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 12), min_size=1).filter(
    lambda weights: any(weights.values())
)


def test_every_policy_that_a_pool_may_name_exists_and_no_other() -> None:
    assert PoolConfig.model_fields["policy"].default in POLICIES
    for name in POLICIES:
        assert PoolConfig.model_validate({"engine": "vllm", "endpoints": [{"url": "http://h"}], "policy": name})
    assert PoolConfig.model_json_schema()["properties"]["policy"]["enum"] == list(POLICIES)


@given(in_flight=LOADS, turn=st.integers(0, 1000))
def test_every_policy_orders_all_endpoints(in_flight: list[int], turn: int) -> None:
    for policy in POLICIES.values():
        assert sorted(policy(in_flight, turn)) == list(range(len(in_flight)))


@given(in_flight=LOADS, turn=st.integers(0, 1000))
def test_round_robin_gives_each_endpoint_every_place_once_per_round(in_flight: list[int], turn: int) -> None:
    count = len(in_flight)
    orders = [round_robin(in_flight, turn + step) for step in range(count)]
    for place in range(count):
        assert sorted(order[place] for order in orders) == list(range(count))
    assert all(later == [*earlier[1:], earlier[0]] for earlier, later in pairwise(orders))


@given(in_flight=LOADS, turn=st.integers(0, 1000))
def test_least_in_flight_goes_by_load_and_equals_take_turns(in_flight: list[int], turn: int) -> None:
    count = len(in_flight)
    order = least_in_flight(in_flight, turn)
    assert [in_flight[index] for index in order] == sorted(in_flight)
    firsts = Counter(least_in_flight(in_flight, turn + step)[0] for step in range(count))
    idlest = [index for index, load in enumerate(in_flight) if load == min(in_flight)]
    assert sorted(firsts) == idlest
    if len(idlest) == count:
        assert set(firsts.values()) == {1}


@given(weights=WEIGHTS, start=st.integers(0, 40))
def test_any_window_of_a_whole_round_has_exactly_the_proportions(weights: dict[str, int], start: int) -> None:
    split = WeightedSplit(weights)
    total = sum(weights.values())
    for _ in range(start):
        split.pick(weights)
    picked = Counter(split.pick(weights) for _ in range(total))
    assert picked == {pool: weight for pool, weight in weights.items() if weight}


@given(weights=WEIGHTS)
def test_at_every_moment_each_pool_is_within_its_share_of_turns(weights: dict[str, int]) -> None:
    split = WeightedSplit(weights)
    total, picked = sum(weights.values()), Counter[str | None]()
    for turn in range(1, 2 * total + 1):
        picked[split.pick(weights)] += 1
        for pool, weight in weights.items():
            assert abs(picked[pool] - turn * weight / total) < len(weights)


def test_a_heavy_pools_turns_are_spread_as_nginx_documents() -> None:
    split = WeightedSplit({"a": 5, "b": 1, "c": 1})
    assert [split.pick("abc") for _ in range(7)] == ["a", "a", "b", "a", "c", "a", "a"]


@given(
    weights=WEIGHTS,
    outages=st.lists(st.sets(st.sampled_from("abcde")), max_size=40),
    rounds=st.integers(1, 4),
)
def test_outages_shift_turns_to_the_rest_and_leave_no_debt_behind(
    weights: dict[str, int], outages: list[set[str]], rounds: int
) -> None:
    split = WeightedSplit(weights)
    serving = {pool for pool, weight in weights.items() if weight}
    for gone in outages:
        picked = split.pick(set("abcde") - gone)
        assert picked in serving - gone if serving - gone else picked is None
    total = sum(weights.values())
    after = Counter(split.pick(weights) for _ in range(rounds * total))
    for pool in serving:
        assert abs(after[pool] - rounds * weights[pool]) < len(weights)


@given(weights=WEIGHTS, gone=st.sets(st.sampled_from("abcde")), picks=st.integers(0, 30))
def test_a_pool_that_returns_gets_no_burst(weights: dict[str, int], gone: set[str], picks: int) -> None:
    """An outage that begins between two rounds leaves the returning pools exactly where they were."""
    split, undisturbed = WeightedSplit(weights), WeightedSplit(weights)
    rest = sum(weight for pool, weight in weights.items() if pool not in gone)
    for _ in range(picks * rest):
        split.pick(set(weights) - gone)
    total = sum(weights.values())
    assert [split.pick(weights) for _ in range(total)] == [undisturbed.pick(weights) for _ in range(total)]


def test_a_pool_without_weight_is_never_picked_not_even_alone() -> None:
    split = WeightedSplit({"a": 0, "b": 2})
    assert split.pick({"a"}) is None
    assert split.pick(()) is None
    assert split.pick({"a", "b", "unknown"}) == "b"
