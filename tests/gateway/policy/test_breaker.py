"""Tripping, resting, probing and recovery of one breaker, and what of a pool stays usable."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.config import BreakerRules
from gateway.errors import GatewayError
from gateway.policy.breaker import TRANSITIONS, Breaker, Event, State, is_fault, usable

CLOSED, OPEN, HALF_OPEN = State.CLOSED, State.OPEN, State.HALF_OPEN
RULES = BreakerRules()


def report(breaker: Breaker, now_s: float, ok: bool | None) -> State:
    """One request that begins and reports at once."""
    breaker.note(now_s, breaker.begin(now_s), ok)
    return breaker.state(now_s)


def tripped(now_s: float = 0.0, rules: BreakerRules = RULES) -> Breaker:
    breaker = Breaker(rules)
    for _ in range(rules.consecutive_failures):
        report(breaker, now_s, False)
    assert breaker.state(now_s) is OPEN
    return breaker


def test_from_every_state_time_and_one_success_lead_to_closed() -> None:
    for state in State:
        after_rest = TRANSITIONS.get((state, Event.RESTED), state)
        assert TRANSITIONS.get((after_rest, Event.SUCCESS), after_rest) is CLOSED
    assert {state for state, event in TRANSITIONS if event is Event.TOO_MANY} == {CLOSED}


def test_a_row_of_failures_opens_however_slow_the_traffic() -> None:
    breaker = Breaker(BreakerRules(consecutive_failures=3))
    assert [report(breaker, 100.0 * n, False) for n in range(3)] == [CLOSED, CLOSED, OPEN]
    assert not breaker.allows(200.0)


def test_a_success_ends_the_row() -> None:
    breaker = Breaker(BreakerRules(consecutive_failures=3, min_volume=100))
    for ok in (False, False, True, False, False):
        assert report(breaker, 1.0, ok) is CLOSED
    assert report(breaker, 1.0, False) is OPEN


@pytest.mark.parametrize(
    ("volume", "failures", "opens"),
    [(9, 4, False), (10, 4, False), (10, 5, True), (40, 19, False), (40, 20, True)],
)
def test_a_share_of_failures_opens_only_from_the_minimum_volume_on(volume: int, failures: int, opens: bool) -> None:
    breaker = Breaker(BreakerRules(consecutive_failures=100))
    for number in range(volume):
        report(breaker, 1.0, number < volume - failures)
    assert (breaker.state(1.0) is OPEN) is opens


def test_two_bad_requests_do_not_close_a_pool() -> None:
    """One failure per client request: with vllm-router's ten retries counted each, this opened for 45 s."""
    breaker = Breaker(RULES)
    for _ in range(2):
        report(breaker, 0.0, False)
    assert all(report(breaker, 0.1 * n, True) is CLOSED for n in range(30))


@given(
    reports=st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, 2.7, 9.0, 10.0, 11.0, 500.0]), st.booleans())),
    min_volume=st.integers(1, 12),
    ratio=st.floats(0.05, 1.0),
)
def test_the_window_agrees_with_counting_every_report(
    reports: list[tuple[float, bool]], min_volume: int, ratio: float
) -> None:
    """Against a list of all reports, by tenths of the window, until the breaker opens."""
    rules = BreakerRules(window_s=10, min_volume=min_volume, failure_ratio=ratio, consecutive_failures=10_000)
    breaker, now_s = Breaker(rules), 0.0
    seen: list[tuple[int, bool]] = []
    for gap_s, ok in reports:
        now_s += gap_s
        seen.append((int(now_s), ok))
        recent = [good for second, good in seen if second > int(now_s) - 10]
        failures = recent.count(False)
        opens = not ok and len(recent) >= min_volume and failures >= ratio * len(recent)
        assert (report(breaker, now_s, ok) is OPEN) is opens
        if opens:
            break


def test_failures_that_are_too_old_do_not_count() -> None:
    breaker = Breaker(BreakerRules(window_s=10, min_volume=4, consecutive_failures=100))
    for now_s, ok in ((0.0, False), (0.0, False), (1.0, True), (10.0, True), (10.0, True), (10.0, False)):
        assert report(breaker, now_s, ok) is CLOSED
    assert report(breaker, 10.0, False) is CLOSED
    assert report(breaker, 10.0, False) is OPEN


def test_while_open_nothing_is_allowed_and_then_one_probe_is() -> None:
    breaker = tripped()
    assert [breaker.allows(now_s) for now_s in (0.0, 4.99, 5.0, 60.0)] == [False, False, True, True]
    assert breaker.state(5.0) is HALF_OPEN
    breaker.begin(5.0)
    assert not breaker.allows(5.1)


@given(probes=st.integers(1, 5))
def test_only_so_many_probes_are_out_at_once(probes: int) -> None:
    breaker = tripped(rules=BreakerRules(half_open_probes=probes))
    begun = 0
    while breaker.allows(6.0):
        breaker.begin(6.0)
        begun += 1
    assert begun == probes


def test_one_good_probe_closes_and_the_old_failures_are_forgotten() -> None:
    breaker = tripped()
    assert report(breaker, 5.0, True) is CLOSED
    assert breaker.closed_s == 5.0
    assert report(breaker, 5.0, False) is CLOSED
    by_share = Breaker(BreakerRules(consecutive_failures=100))
    while report(by_share, 0.0, False) is CLOSED:
        pass
    assert report(by_share, 5.0, True) is CLOSED
    assert report(by_share, 5.0, False) is CLOSED


def test_a_probe_that_never_reports_gives_its_place_up() -> None:
    breaker = tripped()
    breaker.begin(5.0)
    assert not breaker.allows(34.9)
    assert breaker.allows(35.0)
    breaker.begin(35.0)
    assert not breaker.allows(36.0)


def test_a_probe_that_says_nothing_gives_its_place_up_at_once() -> None:
    breaker = tripped()
    assert report(breaker, 5.0, None) is HALF_OPEN
    assert breaker.allows(5.0)
    # More of them than probes, because the pool had no other endpoint.
    begun = [breaker.begin(5.0) for _ in range(3)]
    for number in begun:
        breaker.note(6.0, number, None)
    assert breaker.allows(6.0)


def test_each_failed_probe_makes_the_rest_longer_up_to_the_limit() -> None:
    breaker, now_s, rests = tripped(), 0.0, []
    for _ in range(6):
        rests.append(breaker.until_s - now_s)
        now_s = breaker.until_s
        assert report(breaker, now_s, False) is OPEN
    assert rests == [5.0, 10.0, 15.0, 20.0, 20.0, 20.0]
    assert breaker.openings == 7


@pytest.mark.parametrize(("closed_for_s", "rest_s"), [(29.0, 10.0), (30.0, 5.0)])
def test_an_endpoint_that_fails_again_soon_rests_longer(closed_for_s: float, rest_s: float) -> None:
    breaker = tripped()
    assert report(breaker, 5.0, True) is CLOSED
    now_s = 5.0 + closed_for_s
    while report(breaker, now_s, False) is CLOSED:
        pass
    assert breaker.until_s - now_s == rest_s


def test_what_began_before_the_outage_neither_closes_nor_opens() -> None:
    breaker = Breaker(RULES)
    early = [breaker.begin(0.0) for _ in range(20)]
    for number in early[:5]:
        breaker.note(1.0, number, False)
    assert breaker.state(1.0) is OPEN
    breaker.note(2.0, early[5], True)
    assert breaker.state(2.0) is OPEN
    probe = breaker.begin(6.0)
    breaker.note(6.5, early[6], False)
    assert breaker.state(6.5) is HALF_OPEN
    breaker.note(7.0, probe, True)
    for number in early[7:]:
        breaker.note(8.0, number, False)
    assert breaker.state(8.0) is CLOSED


def test_a_request_that_had_to_be_sent_to_an_open_endpoint_closes_it_or_changes_nothing() -> None:
    breaker = tripped()
    assert report(breaker, 1.0, False) is OPEN
    assert breaker.until_s == 5.0
    assert report(breaker, 2.0, True) is CLOSED


STEPS = st.lists(
    st.tuples(st.floats(0, 40), st.sampled_from(["begin", "ok", "failed", "nothing"]), st.integers(0, 30)), max_size=60
)


def after(steps: list[tuple[float, str, int]], rules: BreakerRules) -> tuple[Breaker, float]:
    """A breaker with any past: requests begin and report in any order, or never do."""
    breaker, now_s, begun = Breaker(rules), 0.0, [0]
    for gap_s, step, which in steps:
        now_s += gap_s
        if step == "begin":
            begun.append(breaker.begin(now_s))
        else:
            verdict = {"ok": True, "failed": False, "nothing": None}[step]
            breaker.note(now_s, begun[which % len(begun)], verdict)
    return breaker, now_s


@given(steps=STEPS, failures=st.integers(1, 4), probes=st.integers(1, 3))
def test_whatever_happened_one_good_probe_closes_within_one_rest_or_one_lost_probe(
    steps: list[tuple[float, str, int]], failures: int, probes: int
) -> None:
    rules = BreakerRules(consecutive_failures=failures, min_volume=3, half_open_probes=probes)
    breaker, now_s = after(steps, rules)
    if breaker.state(now_s) is OPEN:
        now_s = breaker.until_s
    if not breaker.allows(now_s):
        now_s += rules.probe_timeout_s
    assert breaker.allows(now_s)
    assert report(breaker, now_s, True) is CLOSED


@given(steps=STEPS)
def test_a_rest_is_never_longer_than_its_limit(steps: list[tuple[float, str, int]]) -> None:
    breaker, now_s = after(steps, BreakerRules(consecutive_failures=1))
    assert breaker.until_s - now_s <= RULES.max_open_s
    assert (breaker.until_s == -inf) is (breaker.openings == 0)


def test_scenario_15_an_outage_of_60_s_ends_within_30_s_of_the_recovery() -> None:
    """Twenty requests, one every 4 s; what the breaker does not let through is served by the fallback."""
    breaker = Breaker(RULES)
    to_primary = [now_s for now_s in range(0, 80, 4) if breaker.allows(now_s) and tried(breaker, now_s)]
    in_outage = [now_s for now_s in to_primary if now_s < 60]
    assert len(in_outage) < 15 / 2 + RULES.consecutive_failures
    back_s = next(now_s for now_s in to_primary if now_s >= 60)
    assert back_s - 60 <= 30
    assert breaker.state(80) is CLOSED
    assert to_primary[-1] == 76


def tried(breaker: Breaker, now_s: float) -> bool:
    report(breaker, now_s, now_s >= 60)
    return True


@pytest.mark.parametrize(
    ("cause", "fault"),
    [(500, True), (502, True), (503, True), (504, True), (501, False), (200, False), (400, False), (429, False),
     (408, False), (errors.STALE, False), ("error_in_stream", False), ("total_timeout", False)],
)  # fmt: skip
def test_client_errors_and_quirks_are_not_held_against_the_endpoint(cause: str | int, fault: bool) -> None:
    assert is_fault(cause) is fault


@pytest.mark.parametrize(
    "make",
    [
        lambda: errors.connect_failed("refused"),
        lambda: errors.connect_timeout(2.0),
        errors.closed_before_response,
        lambda: errors.garbage("SSH"),
        lambda: errors.first_byte_timeout(300.0),
        lambda: errors.chunk_gap_timeout(120.0),
        lambda: errors.truncated("reset"),
    ],
)
def test_connections_that_fail_and_engines_that_fall_silent_are(make: Callable[[], GatewayError]) -> None:
    assert is_fault(make().kind)


POOLS = st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=12)


@given(pool=POOLS, share=st.floats(0, 1))
def test_what_is_allowed_stays_and_the_last_is_never_left_out(pool: list[tuple[bool, float]], share: float) -> None:
    allowed, until_s = [ok for ok, _ in pool], [end_s for _, end_s in pool]
    kept = usable(allowed, until_s, share)
    assert kept == sorted(set(kept))
    assert {index for index, ok in enumerate(allowed) if ok} <= set(kept)
    left_out = set(range(len(pool))) - set(kept)
    assert len(left_out) <= max(1, share * len(pool))
    assert bool(kept) is bool(pool)
    brought_back = [index for index in kept if not allowed[index]]
    if brought_back:
        assert len(left_out) == min(max(1, int(share * len(pool))), len(pool) - 1)
        if left_out:
            assert max(until_s[index] for index in brought_back) <= min(until_s[index] for index in left_out)


@pytest.mark.parametrize(
    ("allowed", "share", "expected"),
    [
        ([], 0.5, []),
        ([False], 1.0, [0]),
        ([True, False], 0.5, [0]),
        ([False, False], 0.5, [0]),
        ([False, True, False, False], 0.5, [0, 1]),
        ([False, False, False, False], 0.5, [0, 1]),
        ([False, False, False, False], 1.0, [0]),
        ([True, False, True, False], 0.1, [0, 1, 2]),
    ],
)
def test_the_least_bad_come_back_first(allowed: list[bool], share: float, expected: list[int]) -> None:
    assert usable(allowed, [10.0 + index for index in range(len(allowed))], share) == expected
