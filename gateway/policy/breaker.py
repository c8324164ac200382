"""Which endpoints are left alone for a while because requests to them fail: circuit breaking and outlier ejection.

Both are one machine here. They differ in what trips them (a share of failures in a window; a row of failures) and
agree on all the rest: rest, probe, come back, rest longer next time. Two machines would need a rule for which of
them is right. Pure: time is an argument. It never opens a connection and never picks an endpoint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from math import inf

from gateway.config import BreakerRules


class State(Enum):
    CLOSED = auto()
    """Requests flow."""
    OPEN = auto()
    """The endpoint rests."""
    HALF_OPEN = auto()
    """A probe decides."""


class Event(Enum):
    SUCCESS = auto()
    FAILURE = auto()
    TOO_MANY = auto()
    """A failure with which one of the two rules is broken."""
    RESTED = auto()
    """The rest is over: the passing of time."""


# The whole theory; a pair that is not here changes nothing. Every state but CLOSED has a way towards CLOSED that
# needs nothing but time and one success, so no history can leave a breaker stuck.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.CLOSED, Event.TOO_MANY): State.OPEN,
    (State.OPEN, Event.RESTED): State.HALF_OPEN,
    # Only a request that began while open, because too few others were left, can succeed here (see `usable`).
    (State.OPEN, Event.SUCCESS): State.CLOSED,
    (State.HALF_OPEN, Event.SUCCESS): State.CLOSED,
    (State.HALF_OPEN, Event.FAILURE): State.OPEN,
}

_NOT_IMPLEMENTED = 501
"""vLLM's answer to what it does not support: the request's doing."""

_FAULTS = frozenset(
    {
        *("connect_failed", "connect_timeout", "closed_before_response", "garbage", "first_byte_timeout"),
        *("chunk_gap_timeout", "truncated"),
    }
)


def is_fault(cause: str | int) -> bool:
    """Whether an attempt's end (a kind of `gateway.errors`, or an HTTP status) speaks against its endpoint.

    Breakers that count client errors are tripped by clients (sglang#25811): 4xx, 429 among them, do not count, nor
    does a stale kept-alive connection, which says only that the engine was idle. An overload does, however it is told.
    """
    if isinstance(cause, str):
        return cause in _FAULTS
    return cause >= 500 and cause != _NOT_IMPLEMENTED


class Breaker:
    """The breaker of one endpoint.

    Use: `allows` before choosing the endpoint, `begin` when a request is about to go there, `note` with what `begin`
    returned: a success when the first byte is there, and at most one failure per client request, however many times
    it was tried here. (Five retries that count as five failures let two bad requests close a whole pool.)
    """

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._state = State.CLOSED
        self._window = _Window(rules.window_s)
        self._failures_in_a_row = 0
        self._openings_in_a_row = 0
        self._probes: deque[float] = deque(maxlen=rules.half_open_probes)
        """Until when each probe that is out holds its place."""
        self.openings = 0
        """How often it has opened."""
        self.until_s = -inf
        """When the present or latest rest ends; before the first one, long ago."""
        self.closed_s = -inf
        """When it closed last, from which a slow start may count; as `until_s`."""

    def state(self, now_s: float) -> State:
        if self._state is State.OPEN and now_s >= self.until_s:
            self._take(Event.RESTED, now_s)
        return self._state

    def allows(self, now_s: float) -> bool:
        """Whether a request may go there now. Asking changes nothing; `begin` takes a probe's place."""
        state = self.state(now_s)
        if state is not State.HALF_OPEN:
            return state is State.CLOSED
        while self._probes and now_s >= self._probes[0]:
            self._probes.popleft()
        return len(self._probes) < self._rules.half_open_probes

    def begin(self, now_s: float) -> int:
        """A request goes there. The result belongs to the reports on it."""
        if self.state(now_s) is State.HALF_OPEN:
            self._probes.append(now_s + self._rules.probe_timeout_s)
        return self.openings

    def note(self, now_s: float, begun: int, ok: bool | None) -> None:
        """A report on a request, with the result of its `begin`; None when it ended without saying anything.

        What began before the latest opening is history: the timeouts of an outage arrive long after it is over.
        """
        if begun != self.openings:
            return
        state = self.state(now_s)
        if ok is None:
            if self._probes:
                self._probes.popleft()
        elif state is State.CLOSED:
            self._count(now_s, ok)
        else:
            self._take(Event.SUCCESS if ok else Event.FAILURE, now_s)

    def _count(self, now_s: float, ok: bool) -> None:
        self._window.add(now_s, ok)
        if ok:
            self._failures_in_a_row = 0
            return
        self._failures_in_a_row += 1
        rules, window = self._rules, self._window
        if self._failures_in_a_row >= rules.consecutive_failures or (
            window.total >= rules.min_volume and window.failures >= rules.failure_ratio * window.total
        ):
            self._take(Event.TOO_MANY, now_s)

    def _take(self, event: Event, now_s: float) -> None:
        before, self._state = self._state, TRANSITIONS.get((self._state, event), self._state)
        if self._state is before:
            return
        self._probes.clear()
        if self._state is State.OPEN:
            # One that stayed closed for a whole window has shown that it works.
            if before is State.CLOSED and now_s - self.closed_s >= self._rules.window_s:
                self._openings_in_a_row = 0
            self._openings_in_a_row += 1
            self.openings += 1
            self.until_s = now_s + min(self._rules.open_s * self._openings_in_a_row, self._rules.max_open_s)
        elif self._state is State.CLOSED:
            self.closed_s = now_s
            self._window.clear()
            self._failures_in_a_row = 0


_BUCKETS = 10


class _Window:
    """Counts of the last `window_s`, up to a tenth of it less: a ring of buckets, whatever the traffic."""

    def __init__(self, window_s: float) -> None:
        self._bucket_s = window_s / _BUCKETS
        self._newest = 0
        self.clear()

    def clear(self) -> None:
        self._totals = [0] * _BUCKETS
        self._failures = [0] * _BUCKETS
        self.total = 0
        self.failures = 0

    def add(self, now_s: float, ok: bool) -> None:
        bucket = int(now_s / self._bucket_s)
        if bucket != self._newest:
            self._turn(bucket)
        place = bucket % _BUCKETS
        self._totals[place] += 1
        self.total += 1
        if not ok:
            self._failures[place] += 1
            self.failures += 1

    def _turn(self, bucket: int) -> None:
        for passed in range(self._newest + 1, min(bucket, self._newest + _BUCKETS) + 1):
            place = passed % _BUCKETS
            self.total -= self._totals[place]
            self.failures -= self._failures[place]
            self._totals[place] = self._failures[place] = 0
        self._newest = bucket


def usable(allowed: Sequence[bool], until_s: Sequence[float], max_ejection_share: float) -> list[int]:
    """Indices of a pool's endpoints that requests may go to: those allowed, and as many others as it takes.

    Never more than `max_ejection_share` of the pool is left out (but one may be, in a pool of two or more), so the
    rest never carry more than 1 / (1 - share) times their load, and never the last one: trying an endpoint that
    failed is better than a certain refusal, and if it answers, its breaker closes at once. Envoy has two settings
    for this, `max_ejection_percent` and the panic threshold; one limit on what may be missing says both. Brought
    back first are those whose rest (`Breaker.until_s`) ends first: they failed least in a row, or longest ago.
    """
    count = len(allowed)
    if all(allowed):
        return list(range(count))
    most = min(max(1, int(max_ejection_share * count)), count - 1)
    resting = sorted((index for index in range(count) if not allowed[index]), key=until_s.__getitem__)
    left_out = set(resting[max(0, len(resting) - most) :])
    return [index for index in range(count) if index not in left_out]
