"""Which idle connection is used again."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gateway.upstream.pool import IdlePool

MAX_IDLE_S = 4.0
MAX_CONNECTIONS = 3


def test_the_freshest_is_taken_first_and_each_only_once() -> None:
    pool: IdlePool[str] = IdlePool(MAX_IDLE_S, MAX_CONNECTIONS)
    pool.put("old", 1.0)
    pool.put("new", 2.0)
    assert len(pool) == 2
    assert [pool.take(2.5), pool.take(2.5), pool.take(2.5)] == ["new", "old", None]
    assert len(pool) == 0


def test_one_that_was_idle_for_too_long_is_not_taken_but_handed_back() -> None:
    pool: IdlePool[str] = IdlePool(MAX_IDLE_S, MAX_CONNECTIONS)
    pool.put("a", 1.0)
    pool.put("b", 2.0)
    assert pool.expired(4.9) == []
    assert pool.expired(5.0) == ["a"]
    assert pool.take(6.0) is None
    assert pool.expired(6.0) == ["b"]
    assert len(pool) == 0


def test_above_the_limit_the_oldest_goes() -> None:
    pool: IdlePool[int] = IdlePool(MAX_IDLE_S, MAX_CONNECTIONS)
    for connection in range(5):
        pool.put(connection, 1.0)
    assert pool.expired(1.0) == [0, 1]
    assert pool.take(1.0) == 4


def test_at_the_end_of_time_everything_goes() -> None:
    pool: IdlePool[int] = IdlePool()
    pool.put(1, 10.0)
    pool.put(2, 11.0)
    assert pool.expired(float("inf")) == [1, 2]


def test_one_that_closed_is_forgotten_by_identity() -> None:
    pool: IdlePool[list[int]] = IdlePool(MAX_IDLE_S, MAX_CONNECTIONS)
    closed: list[int] = []
    twin: list[int] = []
    pool.put(closed, 1.0)
    pool.put(twin, 1.0)
    pool.discard(closed)
    pool.discard(closed)
    assert len(pool) == 1
    assert pool.take(1.0) is twin


class AnyOrderOfCalls(RuleBasedStateMachine):
    """Against a plain list of who is idle since when."""

    def __init__(self) -> None:
        super().__init__()
        self.pool: IdlePool[object] = IdlePool(MAX_IDLE_S, MAX_CONNECTIONS)
        self.idle: list[tuple[float, object]] = []
        self.now_s = 0.0

    @rule(passed_s=st.sampled_from([0.0, 0.5, 3.5, 4.0, 10.0]))
    def time_passes(self, passed_s: float) -> None:
        self.now_s += passed_s

    @rule()
    def put(self) -> None:
        connection = object()
        self.pool.put(connection, self.now_s)
        self.idle.append((self.now_s, connection))

    @rule()
    def take(self) -> None:
        fresh = [entry for entry in self.idle if self.now_s - entry[0] < MAX_IDLE_S]
        taken = self.pool.take(self.now_s)
        assert taken is (fresh[-1][1] if fresh else None)
        if fresh:
            self.idle.remove(fresh[-1])

    @rule()
    def close_expired(self) -> None:
        aged = [entry for entry in self.idle if self.now_s - entry[0] >= MAX_IDLE_S]
        surplus = len(self.idle) - len(aged) - MAX_CONNECTIONS
        out = self.idle[: len(aged) + max(0, surplus)]
        assert self.pool.expired(self.now_s) == [connection for _, connection in out]
        self.idle = self.idle[len(out) :]

    @rule(which=st.integers(0, 9))
    def discard(self, which: int) -> None:
        if which < len(self.idle):
            self.pool.discard(self.idle.pop(which)[1])

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.pool) == len(self.idle)


TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
