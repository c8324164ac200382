"""Whether a failed attempt is followed by another, where and when. Pure: time and randomness are arguments.

One table says how each failure is treated; what is not in it is never retried. It never sends anything and never
remembers anything: a request's failures so far are an argument, what traffic pays for is the `Budget`'s to know.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random
from typing import Literal

from gateway import errors
from gateway.config import RetryRules
from gateway.policy.budget import Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One attempt's end, before the client's first byte unless `client_has_bytes`."""

    cause: str | int
    """A kind of `gateway.errors` when no answer came, else the status; 503 for an overload told inside a 200
    (SGLang's stream of no tokens with `finish_reason` "abort")."""
    retry_after_s: float | None = None
    """What the answer's Retry-After says."""
    client_has_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Try once more after `delay_s`, on another endpoint or on the same one."""

    delay_s: float
    elsewhere: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """The client gets this failure as it is, Retry-After included. `reason` is a bounded label."""

    reason: Literal["not_retryable", "client_has_bytes", "attempts", "nowhere", "retry_after", "deadline", "budget"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How one kind of failure is treated."""

    free: bool = False
    """No engine saw the request: trying again adds no load, so it neither counts nor costs (gRPC's transparent
    retry)."""
    busy: bool = False
    """Sent away, as others may be: back off before asking anyone. The rest go elsewhere at once."""
    same: bool = True
    """The endpoint may be asked again when there is no other. Not a silent one: the wait would be as long."""
    crash: bool = False
    """The engine may have died of the request."""


CONDUCT: dict[str | int, Conduct] = {
    errors.STALE: Conduct(free=True),
    "connect_failed": Conduct(free=True),
    "connect_timeout": Conduct(free=True, same=False),
    "closed_before_response": Conduct(crash=True),
    "garbage": Conduct(crash=True),
    "first_byte_timeout": Conduct(same=False),
    408: Conduct(),
    429: Conduct(busy=True),
    500: Conduct(crash=True),
    502: Conduct(crash=True),
    503: Conduct(busy=True),
    504: Conduct(same=False),
}


def decide(
    failures: Sequence[Failure],
    *,
    untried: int,
    deadline_s: float,
    rules: RetryRules,
    budget: Budget,
    now_s: float,
    rng: Random,
) -> Again | Stop:
    """What follows the last of a request's `failures`; all before it were answered with Again.

    `untried` counts the usable endpoints that this request has not been to. `deadline_s` is when the request's time
    is over, on the clock of `now_s`. The budget is charged only with what is tried again.
    """
    failure = failures[-1]
    conduct = CONDUCT.get(failure.cause)
    if conduct is None:
        return Stop(reason="not_retryable")
    if failure.client_has_bytes:
        return Stop(reason="client_has_bytes")
    if _spent(failures, rules):
        return Stop(reason="attempts")
    verdict = _where(failure, conduct, untried, _backoff_s(len(failures), rules, rng), rules)
    if isinstance(verdict, Stop):
        return verdict
    if now_s + verdict.delay_s >= deadline_s:
        return Stop(reason="deadline")
    if not conduct.free and not budget.take(now_s):
        return Stop(reason="budget")
    return verdict


def _spent(failures: Sequence[Failure], rules: RetryRules) -> bool:
    conducts = [CONDUCT[failure.cause] for failure in failures]
    counted = sum(not conduct.free for conduct in conducts)
    crashes = sum(conduct.crash for conduct in conducts)
    # What is free must end too. Half of all tries is what an idle connection before each attempt makes.
    return max(counted, len(failures) // 2) >= rules.max_attempts or crashes >= rules.max_crashes


def _where(failure: Failure, conduct: Conduct, untried: int, backoff_s: float, rules: RetryRules) -> Again | Stop:
    if failure.cause == errors.STALE:
        return Again(delay_s=0.0, elsewhere=False)
    wait_s = failure.retry_after_s
    if untried:
        # A Retry-After speaks for the endpoint that sent it.
        return Again(delay_s=backoff_s if conduct.busy and wait_s is None else 0.0, elsewhere=True)
    if not conduct.same:
        return Stop(reason="nowhere")
    if wait_s is None:
        return Again(delay_s=backoff_s, elsewhere=False)
    if wait_s > rules.max_retry_after_s:
        return Stop(reason="retry_after")
    # All who were sent away were told the same time: they should not return together.
    return Again(delay_s=wait_s + backoff_s, elsewhere=False)


def _backoff_s(failed: int, rules: RetryRules, rng: Random) -> float:
    """Exponential with full jitter (Brooker, "Exponential Backoff And Jitter", AWS 2015)."""
    return rng.uniform(0.0, min(rules.max_delay_s, rules.base_delay_s * 2 ** (failed - 1)))


_DELAY = re.compile(rb"\d+(\.\d+)?")
_LONGEST_S = 2.0**31
"""What RFC 9111 §1.2.2 has a recipient take for seconds that it cannot represent."""


def parse_retry_after(value: bytes, now_unix_s: float) -> float | None:
    """Seconds from now that a Retry-After field asks for, 0 for a time gone by; None when it makes no sense.

    Seconds or a date in any of the three forms of RFC 9110 §5.6.7; seconds may have a fraction, as some
    providers write them. `now_unix_s` is wall-clock time.
    """
    value = value.strip()
    if _DELAY.fullmatch(value):
        return min(float(value), _LONGEST_S)
    try:
        date = parsedate_to_datetime(value.decode("latin-1"))
    except ValueError:
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - now_unix_s)
