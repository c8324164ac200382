"""When a hedge is due: fixed, learned from what the pool did lately, or never."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from gateway.config import HedgeRules
from gateway.policy.budget import Budget
from gateway.policy.hedging import REFRESH_S, RecentLatencies, hedge_delay_s


def filled(latencies_s: list[float], now_s: float = 0.0) -> RecentLatencies:
    recent = RecentLatencies()
    for latency_s in latencies_s:
        recent.note(now_s, latency_s)
    return recent


def test_a_fixed_delay_needs_no_samples() -> None:
    assert hedge_delay_s(HedgeRules(delay_s=0.5), RecentLatencies(), 0.0) == 0.5


def test_without_enough_samples_nothing_is_hedged() -> None:
    rules = HedgeRules(min_samples=20)
    assert hedge_delay_s(rules, filled([0.1] * 19), 0.0) is None
    assert hedge_delay_s(rules, filled([0.1] * 20), 0.0) == 0.1
    assert hedge_delay_s(HedgeRules(min_samples=0), RecentLatencies(), 0.0) is None


@given(
    latencies_s=st.lists(st.floats(0, 600), min_size=1, max_size=300),
    quantile=st.floats(0, 1, exclude_min=True),
)
def test_the_delay_is_exceeded_by_at_most_the_rest_and_is_the_smallest_such(
    latencies_s: list[float], quantile: float
) -> None:
    delay_s = hedge_delay_s(HedgeRules(quantile=quantile, min_samples=1), filled(latencies_s), 0.0)
    assert delay_s is not None
    assert sum(sample <= delay_s for sample in latencies_s) >= ceil(quantile * len(latencies_s))
    assert sum(sample < delay_s for sample in latencies_s) < ceil(quantile * len(latencies_s))


def test_old_latencies_are_forgotten_and_the_sorted_ones_serve_for_a_moment() -> None:
    recent = filled([9.0] * 100)
    assert recent.quantile(0.95, 30.0, 1) == 9.0
    for _ in range(100):
        recent.note(30.0, 0.2)
    assert recent.quantile(0.95, 30.0 + REFRESH_S / 2, 1) == 9.0
    assert recent.quantile(0.4, 30.0 + REFRESH_S, 1) == 0.2
    assert recent.quantile(0.95, 60.0, 1) == 9.0
    assert recent.quantile(0.95, 61.0, 1) == 0.2
    assert recent.quantile(0.95, 91.0, 1) is None


def test_only_the_latest_are_kept() -> None:
    recent = RecentLatencies(capacity=10)
    for number in range(100):
        recent.note(0.0, float(number))
    assert recent.quantile(1e-9, 0.0, 10) == 90.0
    assert recent.quantile(1.0, 0.0, 11) is None


def test_the_default_budget_lets_one_request_in_twenty_be_hedged() -> None:
    rules = HedgeRules()
    budget, hedged = Budget(rules.budget_share, rules.budget_min_per_s), 0
    for number in range(20_000):
        budget.note_request(number / 100)
        hedged += budget.take(number / 100)
    assert 1000 <= hedged <= 1000 + 0.1 * 200 + 1
