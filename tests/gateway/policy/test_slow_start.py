"""Shares of fresh endpoints under both policies, and their agreement with the plain policies."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy import routing
from gateway.policy.slow_start import POLICIES, START_SHARE, least_in_flight, round_robin, weight

WEIGHTS = st.lists(st.floats(START_SHARE, 1.0), min_size=1, max_size=8)
LOADED = st.lists(st.tuples(st.integers(0, 50), st.floats(START_SHARE, 1.0)), min_size=1, max_size=8)


def test_the_ramp() -> None:
    assert [weight(age_s, 30.0) for age_s in (-1.0, 0.0, 1.0, 15.0, 30.0, 1e9)] == [0.1, 0.1, 0.1, 0.5, 1.0, 1.0]
    assert weight(0.0, 0.0) == 1.0


@given(ages_s=st.lists(st.floats(0, 1e6), min_size=2).map(sorted), slow_start_s=st.floats(0, 1e4))
def test_the_ramp_only_rises_from_a_tenth_to_the_whole(ages_s: list[float], slow_start_s: float) -> None:
    weights = [weight(age_s, slow_start_s) for age_s in ages_s]
    assert all(START_SHARE <= earlier <= later <= 1.0 for earlier, later in pairwise(weights))


def test_there_is_one_for_every_policy() -> None:
    assert list(POLICIES) == list(routing.POLICIES)


@given(pool=LOADED, turn=st.integers(0, 10**9))
def test_every_policy_orders_all_endpoints(pool: list[tuple[int, float]], turn: int) -> None:
    in_flight, weights = [load for load, _ in pool], [share for _, share in pool]
    for policy in POLICIES.values():
        assert sorted(policy(in_flight, turn, weights)) == list(range(len(pool)))


@given(pool=LOADED, turn=st.integers(0, 10**9), share=st.floats(START_SHARE, 1.0))
def test_with_equal_weights_they_are_the_plain_policies(pool: list[tuple[int, float]], turn: int, share: float) -> None:
    in_flight = [load for load, _ in pool]
    for name, policy in POLICIES.items():
        assert policy(in_flight, turn, [share] * len(pool)) == routing.POLICIES[name](in_flight, turn)


@given(
    weights=WEIGHTS.filter(lambda weights: len(set(weights)) > 1), start=st.integers(0, 10**6), step=st.integers(1, 3)
)
def test_turns_are_shared_by_weight_even_when_every_other_turn_goes_to_someone_else(
    weights: list[float], start: int, step: int
) -> None:
    turns, idle = 400, [0] * len(weights)
    for policy in POLICIES.values():
        firsts = Counter(policy(idle, start + step * number, weights)[0] for number in range(turns))
        for index, share in enumerate(weights):
            assert abs(firsts[index] - turns * share / sum(weights)) <= 8


def test_a_fresh_endpoint_among_three_gets_its_tenth() -> None:
    firsts = Counter(round_robin([0] * 3, turn, [1.0, 0.1, 1.0])[0] for turn in range(2100))
    assert [round(firsts[index] / 100) for index in range(3)] == [10, 1, 10]


@given(weights=WEIGHTS, turn=st.integers(0, 10**6))
def test_after_the_first_fresh_ones_come_last(weights: list[float], turn: int) -> None:
    if len(set(weights)) > 1:
        rest = round_robin([0] * len(weights), turn, weights)[1:]
        assert all(weights[earlier] >= weights[later] for earlier, later in pairwise(rest))


@given(pool=LOADED, turn=st.integers(0, 10**6))
def test_least_in_flight_goes_by_load_over_weight(pool: list[tuple[int, float]], turn: int) -> None:
    in_flight, weights = [load for load, _ in pool], [share for _, share in pool]
    loads = [in_flight[index] / weights[index] for index in least_in_flight(in_flight, turn, weights)]
    assert loads == sorted(loads)


@given(weights=WEIGHTS, requests=st.integers(1, 200), turn=st.integers(0, 10**6))
def test_a_burst_fills_everyone_to_its_share_and_at_most_one_more(
    weights: list[float], requests: int, turn: int
) -> None:
    in_flight = [0] * len(weights)
    for number in range(requests):
        in_flight[least_in_flight(in_flight, turn + number, weights)[0]] += 1
        for load, share in zip(in_flight, weights, strict=True):
            assert load <= (number + 1) * share / sum(weights) + 1 + 1e-9


@pytest.mark.parametrize(("age_s", "fresh"), [(0.0, 2), (15.0, 5), (30.0, 10)])
def test_a_fresh_engine_is_not_flooded_while_three_others_hold_ten_each(age_s: float, fresh: int) -> None:
    """An emptied endpoint joins; requests go on ending evenly elsewhere, so what it gets first is what counts."""
    in_flight, weights = [10, 10, 10, 0], [1.0, 1.0, 1.0, weight(age_s, 30.0)]
    while (first := least_in_flight(in_flight, 0, weights)[0]) == 3:
        in_flight[first] += 1
    assert in_flight[3] == pytest.approx(fresh, abs=1)
