"""Where one request goes: its first endpoint, and the next one after each failure.

Joins what the policies decide (order, breakers, retries, hedging) with the pool they decide about. Keeps the
account of one request; sends nothing and waits for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gateway import errors
from gateway.errors import GatewayError
from gateway.fleet import Endpoint, Pool
from gateway.policy.breaker import State, is_fault
from gateway.policy.hedging import hedge_delay_s
from gateway.policy.retry import Failure, Stop, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Go to `endpoint` after `delay_s`; with `fresh`, not on a connection that was kept alive.

    `body` is sent in place of the client's own.
    """

    endpoint: Endpoint
    delay_s: float = 0.0
    fresh: bool = False
    body: bytes | None = None


class Failover:
    """The way of one request through its pool. Every method takes the time on the monotonic clock."""

    def __init__(self, pool: Pool, rng: Random, now_s: float) -> None:
        self._pool = pool
        self._rng = rng
        self._deadline_s = now_s + pool.config.timeouts.total_s
        self._tried: set[Endpoint] = set()
        self._faulted: set[Endpoint] = set()
        self._failures: list[Failure] = []

    def first(self, now_s: float) -> Step | None:
        """Where to begin; None when the pool has no endpoint to offer."""
        self._pool.retries.note_request(now_s)
        if self._pool.hedges is not None:
            self._pool.hedges.note_request(now_s)
        self._pool.advance()
        candidates = self._pool.candidates(now_s)
        return Step(endpoint=candidates[0]) if candidates else None

    def begin(self, endpoint: Endpoint, now_s: float) -> int:
        """An attempt goes to `endpoint`; the result belongs to its `report`."""
        self._tried.add(endpoint)
        return endpoint.breaker.begin(now_s)

    def report(self, endpoint: Endpoint, begun: int, cause: str | int | None, now_s: float) -> None:
        """How an attempt ended: a status, the kind of an error, or None when it was given up for reasons of our own.

        A request speaks against an endpoint at most once, however often it was tried there.
        """
        verdict: bool | None = None
        if cause is not None and is_fault(cause):
            verdict = None if endpoint in self._faulted else False
            self._faulted.add(endpoint)
        elif isinstance(cause, int):
            verdict = True
        endpoint.breaker.note(now_s, begun, verdict)

    def after(self, endpoint: Endpoint, failure: Failure, now_s: float) -> Step | Stop:
        """What follows a failure at `endpoint`."""
        self._failures.append(failure)
        untried = self._untried(now_s)
        decision = decide(
            self._failures,
            untried=len(untried),
            deadline_s=self._deadline_s,
            rules=self._pool.config.retry,
            budget=self._pool.retries,
            now_s=now_s,
            rng=self._rng,
        )
        if isinstance(decision, Stop):
            return decision
        return Step(
            endpoint=untried[0] if decision.elsewhere else endpoint,
            delay_s=decision.delay_s,
            fresh=failure.cause == errors.STALE,
        )

    def hedge_delay_s(self, now_s: float) -> float | None:
        """How long one attempt is waited for before a second endpoint is asked as well; None: there is no second."""
        rules = self._pool.config.hedge
        if rules is None or not self._spare(now_s):
            return None
        return hedge_delay_s(rules, self._pool.first_bytes, now_s)

    def hedge(self, now_s: float) -> Step | None:
        """The second endpoint, if there still is one and the traffic pays for it."""
        spare, budget = self._spare(now_s), self._pool.hedges
        if budget is None or not spare or not budget.take(now_s):
            return None
        return Step(endpoint=spare[0])

    def _spare(self, now_s: float) -> list[Endpoint]:
        """Endpoints fit for a hedge: one whose breaker is not sure of it would only add to the load."""
        return [endpoint for endpoint in self._untried(now_s) if endpoint.breaker.state(now_s) is State.CLOSED]

    def elsewhere(self, now_s: float) -> Endpoint | None:
        """An endpoint that this request has not been to."""
        return next(iter(self._untried(now_s)), None)

    def give_up(self, error: GatewayError) -> GatewayError:
        """What the client is told when `error` was the last: not being able to connect is the pool's state."""
        if error.kind in ("connect_failed", "connect_timeout"):
            return errors.no_endpoint(self._pool.name, self._pool.retry_after_s)
        return error

    def _untried(self, now_s: float) -> list[Endpoint]:
        return [endpoint for endpoint in self._pool.candidates(now_s) if endpoint not in self._tried]
