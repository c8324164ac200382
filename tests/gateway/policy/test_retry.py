"""What follows a failed attempt: the table, the limits, and the failover scenarios played against a fake clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.config import RetryRules
from gateway.policy.budget import Budget
from gateway.policy.retry import CONDUCT, Again, Failure, Stop, decide, parse_retry_after

RULES = RetryRules()
PLENTY = 1e9

KINDS = {
    error.kind
    for error in (
        errors.stale_connection(),
        errors.connect_failed("refused"),
        errors.connect_timeout(2.0),
        errors.closed_before_response(),
        errors.garbage("SSH"),
        errors.first_byte_timeout(300.0),
    )
}
"""What can go wrong between the gateway and a proper answer."""


def rich() -> Budget:
    return Budget(0.0, PLENTY)


def after(
    *causes: str | int | Failure,
    untried: int = 0,
    rules: RetryRules = RULES,
    budget: Budget | None = None,
    deadline_s: float = PLENTY,
) -> Again | Stop:
    """The verdict on the last of these failures, at time 0."""
    failures = [cause if isinstance(cause, Failure) else Failure(cause=cause) for cause in causes]
    return decide(
        failures,
        untried=untried,
        deadline_s=deadline_s,
        rules=rules,
        budget=budget or rich(),
        now_s=0.0,
        rng=Random(1),
    )


def again(verdict: Again | Stop) -> Again:
    assert isinstance(verdict, Again)
    return verdict


def test_the_table_names_every_failure_before_an_answer_and_no_other() -> None:
    assert {cause for cause in CONDUCT if isinstance(cause, str)} == KINDS


@pytest.mark.parametrize(
    "cause",
    [200, 204, 302, 400, 401, 403, 404, 409, 413, 422, 501, 505, "truncated", "chunk_gap_timeout", "total_timeout",
     "error_in_stream", "invalid_request", "internal"],
)  # fmt: skip
def test_what_is_not_in_the_table_is_never_retried(cause: str | int) -> None:
    assert after(cause, untried=5) == Stop(reason="not_retryable")


@pytest.mark.parametrize("cause", CONDUCT)
def test_nothing_is_retried_once_the_client_has_a_byte(cause: str | int) -> None:
    assert after(Failure(cause=cause, client_has_bytes=True), untried=5) == Stop(reason="client_has_bytes")


@pytest.mark.parametrize(
    ("cause", "others", "alone"),
    [
        (errors.STALE, "same now", "same now"),
        ("connect_failed", "elsewhere now", "same later"),
        ("connect_timeout", "elsewhere now", "nowhere"),
        ("closed_before_response", "elsewhere now", "same later"),
        ("garbage", "elsewhere now", "same later"),
        ("first_byte_timeout", "elsewhere now", "nowhere"),
        (408, "elsewhere now", "same later"),
        (429, "elsewhere later", "same later"),
        (500, "elsewhere now", "same later"),
        (502, "elsewhere now", "same later"),
        (503, "elsewhere later", "same later"),
        (504, "elsewhere now", "nowhere"),
    ],
)
def test_where_and_when(cause: str | int, others: str, alone: str) -> None:
    for untried, expected in ((1, others), (0, alone)):
        verdict = after(cause, untried=untried)
        if isinstance(verdict, Stop):
            assert verdict.reason == expected
        else:
            place, time = expected.split()
            assert verdict.elsewhere is (place == "elsewhere")
            assert (verdict.delay_s > 0) is (time == "later")
            assert verdict.delay_s <= RULES.base_delay_s


@given(failed=st.integers(1, 9), seed=st.integers(), base_s=st.floats(0.001, 1.0), max_s=st.floats(0.001, 10.0))
def test_the_backoff_doubles_is_jittered_in_full_and_limited(
    failed: int, seed: int, base_s: float, max_s: float
) -> None:
    rules = RetryRules(max_attempts=10, base_delay_s=base_s, max_delay_s=max_s)
    longest_s = min(max_s, base_s * 2 ** (failed - 1))
    rng, draws = Random(seed), []
    for _ in range(50):
        failures = [Failure(cause=503)] * failed
        verdict = decide(failures, untried=0, deadline_s=PLENTY, rules=rules, budget=rich(), now_s=0.0, rng=rng)
        draws.append(again(verdict).delay_s)
    assert 0 <= min(draws) < longest_s / 2 < max(draws) <= longest_s


@pytest.mark.parametrize("status", [429, 503])
def test_a_retry_after_is_waited_for_where_there_is_no_other_endpoint(status: int) -> None:
    told = Failure(cause=status, retry_after_s=2.0)
    verdict = again(after(told))
    assert 2.0 < verdict.delay_s <= 2.0 + RULES.base_delay_s
    assert not verdict.elsewhere
    assert after(told, untried=1) == Again(delay_s=0.0, elsewhere=True)


def test_a_long_retry_after_is_passed_on_unless_there_is_another_endpoint() -> None:
    assert isinstance(after(Failure(cause=429, retry_after_s=5.0)), Again)
    told = Failure(cause=429, retry_after_s=5.1)
    assert after(told) == Stop(reason="retry_after")
    assert after(told, untried=1) == Again(delay_s=0.0, elsewhere=True)


def test_the_attempts_are_limited() -> None:
    assert isinstance(after(503, 429, untried=5), Again)
    assert after(503, 429, 503, untried=5) == Stop(reason="attempts")
    assert after(503, rules=RetryRules(max_attempts=1), untried=5) == Stop(reason="attempts")


@pytest.mark.parametrize("cause", [500, 502, "closed_before_response", "garbage"])
def test_a_request_that_may_kill_engines_meets_two_of_them(cause: str | int) -> None:
    assert isinstance(after(503, cause, untried=5), Again)
    assert after(cause, 500, untried=5) == Stop(reason="attempts")


def test_tries_that_reach_no_engine_are_neither_counted_nor_paid_for() -> None:
    poor = Budget(0.0, 0.0)
    for cause in (errors.STALE, "connect_failed", "connect_timeout"):
        assert isinstance(after(cause, untried=5, budget=poor), Again)
    assert after(502, untried=5, budget=poor) == Stop(reason="budget")
    stale_each_time = (errors.STALE, 503, errors.STALE, 503, errors.STALE)
    assert after(*stale_each_time) == Again(delay_s=0.0, elsewhere=False)
    assert after(*stale_each_time, 503) == Stop(reason="attempts")
    assert isinstance(after(*["connect_failed"] * 5, untried=9), Again)
    assert after(*["connect_failed"] * 6, untried=9) == Stop(reason="attempts")


def test_the_deadline_is_not_slept_through() -> None:
    told = Failure(cause=503, retry_after_s=2.0)
    assert after(told, deadline_s=2.0) == Stop(reason="deadline")
    assert isinstance(after(told, deadline_s=2.1), Again)
    assert after("connect_failed", untried=1, deadline_s=0.0) == Stop(reason="deadline")


def test_only_what_is_tried_again_is_paid_for() -> None:
    budget = Budget(1.0, 0.0)
    budget.note_request(0.0)
    after(400, untried=1, budget=budget)
    after(503, 503, 503, budget=budget)
    after(504, budget=budget)
    after(503, deadline_s=0.0, budget=budget)
    after(errors.STALE, budget=budget)
    assert budget.balance(0.0) == 1.0
    assert isinstance(after(503, budget=budget), Again)
    assert after(503, untried=1, budget=budget) == Stop(reason="budget")


FAILURES = st.builds(Failure, cause=st.sampled_from(list(CONDUCT)), retry_after_s=st.none() | st.floats(0, 10))


@given(
    script=st.lists(FAILURES, min_size=20, max_size=20),
    endpoints=st.integers(1, 30),
    max_attempts=st.integers(1, 6),
    seed=st.integers(),
)
def test_every_request_comes_to_an_end(script: list[Failure], endpoints: int, max_attempts: int, seed: int) -> None:
    rules = RetryRules(max_attempts=max_attempts)
    played = play(lambda call: script[call.number], endpoints=endpoints, rules=rules, seed=seed)
    tries = len(played.calls)
    assert played.end is not None
    assert tries <= 2 * max_attempts
    assert sum(not CONDUCT[failure.cause].free for failure in script[:tries]) <= max_attempts
    silent = {call.endpoint for call in played.calls if not CONDUCT[script[call.number].cause].same}
    for call in played.calls:
        if call.endpoint in silent:
            last = max(other.number for other in played.calls if other.endpoint == call.endpoint)
            assert CONDUCT[script[last].cause].same is False
    assert played.calls[-1].at_s <= tries * (rules.max_retry_after_s + rules.max_delay_s)


# Failover scenarios, by the numbers of the Failover Bench catalogue (methodology v0.1). Endpoint 0 is asked first.


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One try: its number in the request, where it went and when."""

    number: int
    endpoint: int
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    calls: list[Call]
    end: Stop | None
    """None: answered."""
    took_s: float


Upstream = Callable[[Call], Failure | None]


def play(
    upstream: Upstream, *, endpoints: int, rules: RetryRules = RULES, seed: int = 0, failure_takes_s: float = 0.0
) -> Played:
    """One request as the request path tries it, on a clock that only waits move."""
    calls: list[Call] = []
    failures: list[Failure] = []
    budget, rng = rich(), Random(seed)
    now_s, endpoint, untried = 0.0, 0, endpoints - 1
    while True:
        calls.append(Call(number=len(calls), endpoint=endpoint, at_s=now_s))
        failure = upstream(calls[-1])
        if failure is None:
            return Played(calls=calls, end=None, took_s=now_s)
        now_s += failure_takes_s
        failures.append(failure)
        verdict = decide(failures, untried=untried, deadline_s=3600.0, rules=rules, budget=budget, now_s=now_s, rng=rng)
        if isinstance(verdict, Stop):
            return Played(calls=calls, end=verdict, took_s=now_s)
        now_s += verdict.delay_s
        if verdict.elsewhere:
            endpoint, untried = endpoint + 1, untried - 1


def always(cause: str | int) -> Upstream:
    return lambda call: Failure(cause=cause)


def first_endpoint(cause: str | int) -> Upstream:
    return lambda call: Failure(cause=cause) if call.endpoint == 0 else None


def once(cause: str | int, retry_after_s: float | None = None) -> Upstream:
    return lambda call: None if call.number else Failure(cause=cause, retry_after_s=retry_after_s)


SEEDS = pytest.mark.parametrize("seed", range(10))


@SEEDS
def test_scenario_1_a_429_with_retry_after_is_waited_for_or_left_for_another(seed: int) -> None:
    alone = play(once(429, 2.0), endpoints=1, seed=seed)
    assert alone.end is None
    assert alone.calls[1].at_s - alone.calls[0].at_s >= 1.8
    fallback = play(once(429, 2.0), endpoints=2, seed=seed)
    assert (fallback.end, fallback.took_s, fallback.calls[1].endpoint) == (None, 0.0, 1)


@SEEDS
def test_scenario_2_429s_without_end_are_backed_off_from(seed: int) -> None:
    for endpoints in (1, 2, 5):
        played = play(always(429), endpoints=endpoints, seed=seed)
        assert played.end == Stop(reason="attempts")
        assert len([call for call in played.calls if call.at_s < 3]) <= 4
        assert len(played.calls) <= 6
        assert all(earlier.at_s < later.at_s for earlier, later in pairwise(played.calls))
    assert play(first_endpoint(429), endpoints=2, seed=seed).end is None


def test_scenario_3_a_single_500_is_retried_once() -> None:
    for endpoints in (1, 2):
        played = play(once(500), endpoints=endpoints)
        assert (played.end, len(played.calls)) == (None, 2)


@SEEDS
def test_scenario_4_503s_without_end_lead_elsewhere_within_the_limit(seed: int) -> None:
    played = play(first_endpoint(503), endpoints=2, seed=seed)
    assert (played.end, len(played.calls)) == (None, 2)
    assert len(play(always(503), endpoints=5, seed=seed).calls) <= 6


def test_scenario_5_a_reset_before_the_answer_is_retried() -> None:
    for endpoints in (1, 2):
        played = play(once("closed_before_response"), endpoints=endpoints)
        assert (played.end, len(played.calls)) == (None, 2)


def test_scenario_6_a_silent_engine_is_left_after_one_timeout_and_never_asked_again() -> None:
    played = play(first_endpoint("first_byte_timeout"), endpoints=2, failure_takes_s=30.0)
    assert (played.end, played.took_s) == (None, 30.0)
    assert [call.endpoint for call in played.calls] == [0, 1]
    alone = play(always("first_byte_timeout"), endpoints=1, failure_takes_s=30.0)
    assert (alone.end, len(alone.calls)) == (Stop(reason="nowhere"), 1)


def test_scenarios_12_and_13_a_400_is_final_at_the_first_attempt() -> None:
    played = play(always(400), endpoints=5)
    assert (played.end, len(played.calls)) == (Stop(reason="not_retryable"), 1)


NOW = 784111777.0
"""Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110 §5.6.7."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"0", 0.0),
        (b"120", 120.0),
        (b" 2 ", 2.0),
        (b"0.5", 0.5),
        (b"9" * 400, 2.0**31),
        (b"Sun, 06 Nov 1994 08:49:47 GMT", 10.0),
        (b"Sunday, 06-Nov-94 08:49:47 GMT", 10.0),
        (b"Sun Nov  6 08:49:47 1994", 10.0),
        (b"Sun, 06 Nov 1994 08:49:27 GMT", 0.0),
        (b"", None),
        (b"-1", None),
        (b"1e3", None),
        (b"soon", None),
        (b"2 seconds", None),
        (b"Sun, 99 Nov 1994 08:49:47 GMT", None),
        ("²".encode("latin-1"), None),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: bytes, expected: float | None) -> None:
    assert parse_retry_after(value, NOW) == expected


def test_a_date_without_a_zone_is_utc_wherever_the_gateway_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as tokyo:
        tokyo.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        assert parse_retry_after(b"Sun Nov  6 08:49:47 1994", NOW) == 10.0
    time.tzset()


@given(value=st.binary(max_size=40) | st.text("SunMoNv0123456789 ,:-+.GT", max_size=40).map(str.encode))
def test_whatever_a_server_sends_is_understood_or_ignored(value: bytes) -> None:
    delay_s = parse_retry_after(value, NOW)
    assert delay_s is None or 0 <= delay_s < float("inf")
