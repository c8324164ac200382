"""Extra requests stay a share of the traffic, at any rate and over any time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.budget import MEMORY_S, Budget

STEPS = st.lists(st.tuples(st.floats(0, 30), st.sampled_from(["request", "take"])), max_size=200)


@given(steps=STEPS, share=st.floats(0, 1), min_per_s=st.floats(0, 5), start=st.integers(0, 100))
def test_extra_requests_never_exceed_what_was_paid_in(
    steps: list[tuple[float, str]], share: float, min_per_s: float, start: int
) -> None:
    budget, now_s, begun_s, allowed, taken = Budget(share, min_per_s), 50.0, 50.0, min_per_s * MEMORY_S, 0
    for number, (gap_s, step) in enumerate(steps):
        now_s += gap_s
        if number == start:
            allowed, taken, begun_s = budget.balance(now_s), 0, now_s
        if step == "request":
            budget.note_request(now_s)
            allowed += share
        else:
            taken += budget.take(now_s)
        assert taken <= allowed + min_per_s * (now_s - begun_s) + 1e-9
        assert budget.balance(now_s) >= 0


def test_under_load_with_everything_failing_the_share_is_retried() -> None:
    budget, retried = Budget(0.2, 0.0), 0
    for number in range(10_000):
        budget.note_request(number / 100)
        retried += budget.take(number / 100)
    assert retried == pytest.approx(2_000, rel=0.01)


def test_a_quiet_gateway_may_retry_at_once_and_then_at_the_trickle() -> None:
    budget = Budget(0.2, 1.0)
    assert [budget.take(1e6) for _ in range(11)] == [True] * 10 + [False]
    assert [budget.take(1e6 + 1 + second) for second in range(5)] == [False, True, True, True, True]
    assert budget.balance(1e6 + 1000) == pytest.approx(10.0)


def test_steady_traffic_piles_up_no_more_than_its_last_seconds_pay_for() -> None:
    budget = Budget(0.2, 1.0)
    for number in range(60 * 50):
        budget.note_request(number / 50)
    assert budget.balance(60.0) == pytest.approx((0.2 * 50 + 1.0) * MEMORY_S, rel=0.01)


def test_past_calm_fades() -> None:
    budget = Budget(0.2, 0.0)
    for _ in range(1000):
        budget.note_request(0.0)
    assert budget.balance(0.0) == pytest.approx(200.0)
    assert budget.balance(MEMORY_S) == pytest.approx(200.0 / 2.718281828)
    assert budget.balance(10 * MEMORY_S) < 1
    assert not budget.take(10 * MEMORY_S)


def test_asking_in_vain_costs_nothing() -> None:
    budget = Budget(0.5, 0.0)
    budget.note_request(0.0)
    assert not budget.take(0.0)
    budget.note_request(0.0)
    assert budget.take(0.0)
    assert budget.balance(0.0) == 0
