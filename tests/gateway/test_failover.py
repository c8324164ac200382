"""The way of one request through its pool: where to, what next, and what is held against whom."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import errors
from gateway.config import PoolConfig
from gateway.discovery import static
from gateway.failover import Failover, Step
from gateway.fleet import Endpoint, Pool
from gateway.policy.breaker import State
from gateway.policy.retry import CONDUCT, Failure, Stop

NOW_S = 1000.0
BUSY = Failure(cause=503)
CRASHED = Failure(cause=500)


def pool_of(count: int, **settings: Any) -> Pool:
    config = PoolConfig.model_validate(
        {
            "engine": "vllm",
            "policy": "round_robin",
            "endpoints": [{"url": f"http://10.0.0.{number}"} for number in range(1, count + 1)],
            **settings,
        }
    )
    return Pool("p", config, static.addresses)


def begun(pool: Pool) -> tuple[Failover, Endpoint]:
    """A request whose first attempt is out."""
    way = Failover(pool, Random(1), NOW_S)
    step = way.first(NOW_S)
    assert step is not None
    way.begin(step.endpoint, NOW_S)
    return way, step.endpoint


def failed(way: Failover, endpoint: Endpoint, failure: Failure, now_s: float = NOW_S) -> Step | Stop:
    """An attempt at `endpoint` fails; what then follows is begun."""
    way.report(endpoint, endpoint.breaker.openings, failure.cause, now_s)
    following = way.after(endpoint, failure, now_s)
    if isinstance(following, Step):
        way.begin(following.endpoint, now_s)
    return following


def test_requests_take_turns_and_pay_into_the_budgets() -> None:
    pool = pool_of(3, hedge={"budget_share": 0.5, "budget_min_per_s": 0}, retry={"budget_min_per_s": 0})
    assert pool.hedges is not None
    firsts = [begun(pool)[1] for _ in range(4)]
    assert firsts == [pool.endpoints[position] for position in (1, 2, 0, 1)]
    assert pool.retries.balance(NOW_S) == pytest.approx(4 * 0.2)
    assert pool.hedges.balance(NOW_S) == pytest.approx(4 * 0.5)


def test_a_pool_with_nobody_to_offer_is_no_way_at_all() -> None:
    pool = pool_of(2)
    pool.endpoints[0].healthy, pool.endpoints[1].draining = False, True
    assert Failover(pool, Random(1), NOW_S).first(NOW_S) is None


def test_a_failure_leads_to_endpoints_that_were_not_tried_each_once() -> None:
    way, first = begun(pool := pool_of(3))
    second = failed(way, first, BUSY)
    assert isinstance(second, Step)
    third = failed(way, second.endpoint, BUSY)
    assert isinstance(third, Step)
    assert {first, second.endpoint, third.endpoint} == set(pool.endpoints)
    assert failed(way, third.endpoint, BUSY) == Stop(reason="attempts")


def test_with_nobody_else_left_the_same_endpoint_is_asked_again_after_a_pause() -> None:
    way, only = begun(pool_of(1))
    following = failed(way, only, Failure(cause=503, retry_after_s=2.0))
    assert isinstance(following, Step)
    assert (following.endpoint, following.fresh) == (only, False)
    assert 2.0 <= following.delay_s <= 2.05


def test_an_endpoint_that_drains_meanwhile_is_not_gone_to() -> None:
    way, first = begun(pool := pool_of(2))
    other = next(endpoint for endpoint in pool.endpoints if endpoint is not first)
    other.draining = True
    following = failed(way, first, BUSY)
    assert isinstance(following, Step)
    assert following.endpoint is first


def test_a_stale_connection_is_replaced_at_the_same_endpoint_and_held_against_nobody() -> None:
    way, first = begun(pool_of(2, breaker={"consecutive_failures": 1}))
    assert failed(way, first, Failure(cause=errors.STALE)) == Step(endpoint=first, delay_s=0.0, fresh=True)
    assert first.breaker.state(NOW_S) is State.CLOSED


def test_the_time_of_the_request_ends_its_retries() -> None:
    way, first = begun(pool_of(2, timeouts={"total_s": 10.0, "first_byte_s": 10.0, "chunk_gap_s": 10.0}))
    assert failed(way, first, CRASHED, NOW_S + 10.0) == Stop(reason="deadline")


def test_an_empty_budget_ends_them_too() -> None:
    way, first = begun(pool_of(2, retry={"budget_share": 0.0, "budget_min_per_s": 0.0}))
    assert failed(way, first, CRASHED) == Stop(reason="budget")


def test_one_request_speaks_against_an_endpoint_once_however_often_it_fails_there() -> None:
    pool = pool_of(1, breaker={"consecutive_failures": 2}, retry={"max_attempts": 5, "max_crashes": 5})
    way, only = begun(pool)
    for _ in range(4):
        failed(way, only, CRASHED)
    assert only.breaker.state(NOW_S) is State.CLOSED
    way, only = begun(pool)
    failed(way, only, CRASHED)
    assert only.breaker.state(NOW_S) is State.OPEN


@pytest.mark.parametrize("cause", [200, 400, 404, 422, 429, 501])
def test_any_answer_that_is_no_fault_makes_a_resting_endpoint_whole_again(cause: int) -> None:
    pool = pool_of(1, breaker={"consecutive_failures": 1})
    way, only = begun(pool)
    failed(way, only, CRASHED)
    rested_s = only.breaker.until_s
    way = Failover(pool, Random(1), rested_s)
    way.report(only, way.begin(only, rested_s), cause, rested_s)
    assert only.breaker.state(rested_s) is State.CLOSED


def test_an_attempt_that_was_given_up_frees_its_probe_and_says_nothing() -> None:
    pool = pool_of(1, breaker={"consecutive_failures": 1})
    way, only = begun(pool)
    failed(way, only, CRASHED)
    rested_s = only.breaker.until_s
    way = Failover(pool, Random(1), rested_s)
    count = way.begin(only, rested_s)
    assert not only.breaker.allows(rested_s)
    way.report(only, count, None, rested_s)
    assert only.breaker.state(rested_s) is State.HALF_OPEN
    assert only.breaker.allows(rested_s)


def test_no_pool_hedges_unless_it_is_told_to() -> None:
    way, _ = begun(pool_of(2))
    assert (way.hedge_delay_s(NOW_S), way.hedge(NOW_S)) == (None, None)


def test_a_hedge_goes_to_another_endpoint_than_the_attempt_it_stands_beside() -> None:
    pool = pool_of(2, hedge={"delay_s": 0.5, "budget_min_per_s": 1.0})
    for _ in range(2):
        way, first = begun(pool)
        assert way.hedge_delay_s(NOW_S) == 0.5
        second = way.hedge(NOW_S)
        assert second is not None
        assert (second.endpoint is not first, second.delay_s) == (True, 0.0)
        way.begin(second.endpoint, NOW_S)
        assert way.hedge(NOW_S) is None, "everyone is asked already"


def test_a_hedge_is_paid_for_only_where_there_is_someone_to_ask() -> None:
    hedge = {"delay_s": 0.5, "budget_share": 0.0, "budget_min_per_s": 0.1}
    alone, pair = pool_of(1, hedge=hedge), pool_of(2, hedge=hedge)
    way, _ = begun(alone)
    assert way.hedge(NOW_S) is None
    assert alone.hedges is not None
    assert alone.hedges.balance(NOW_S) == pytest.approx(1.0)
    assert begun(pair)[0].hedge(NOW_S) is not None
    assert begun(pair)[0].hedge(NOW_S) is None, "the budget held one"


def test_the_delay_of_a_hedge_is_what_most_first_bytes_take() -> None:
    pool = pool_of(2, hedge={"quantile": 0.9, "min_samples": 10})
    way, _ = begun(pool)
    assert way.hedge_delay_s(NOW_S) is None, "nothing is known yet"
    for number in range(1, 11):
        pool.first_bytes.note(NOW_S, number * 0.1)
    assert way.hedge_delay_s(NOW_S + 1) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.connect_failed("refused"), "no_endpoint"),
        (errors.connect_timeout(2.0), "no_endpoint"),
        (errors.closed_before_response(), "closed_before_response"),
        (errors.first_byte_timeout(3.0), "first_byte_timeout"),
    ],
)
def test_whom_nobody_could_connect_for_is_told_of_the_pool(error: errors.GatewayError, kind: str) -> None:
    pool = pool_of(1, health={"interval_s": 3.0, "healthy_after": 2})
    told = Failover(pool, Random(1), NOW_S).give_up(error)
    assert told.kind == kind
    assert told.retry_after_s == (6 if kind == "no_endpoint" else None)


@given(
    causes=st.lists(st.sampled_from([*CONDUCT, 200, 400, 404, 422, "truncated", "total_timeout"]), max_size=30),
    endpoints=st.integers(1, 4),
    max_attempts=st.integers(1, 5),
)
def test_every_way_ends_and_engines_see_no_more_than_max_attempts(
    causes: list[str | int], endpoints: int, max_attempts: int
) -> None:
    way, endpoint = begun(pool_of(endpoints, retry={"max_attempts": max_attempts, "budget_min_per_s": 100}))
    tries = seen = 0
    for cause in (*causes, *["connect_failed"] * 20):
        tries += 1
        seen += cause not in CONDUCT or not CONDUCT[cause].free
        following = failed(way, endpoint, Failure(cause=cause))
        if isinstance(following, Stop):
            break
        endpoint = following.endpoint
    else:
        raise AssertionError("this request is tried for ever")
    assert seen <= max_attempts
    assert tries <= 2 * max_attempts
