"""Routing while some endpoints are fresh: one that has just become healthy gets a small share, then ever more.

A fresh engine has cold caches and kernels to compile; least-in-flight would give it every request until it is as
full as the others. The policies here are those of `routing` with a weight per endpoint, and the same where all
weights are equal. Pure; like there, every endpoint is returned, best first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from gateway.policy import routing

START_SHARE = 0.1
"""Envoy's default `min_weight_percent`."""

_GOLDEN_RATIO = 0.6180339887498949


def weight(age_s: float, slow_start_s: float) -> float:
    """What part of its ordinary share an endpoint gets that has been healthy for `age_s`: 0.1 rising to 1.

    Linear; Envoy's slow start with its default aggression of 1. No slow start for `slow_start_s` = 0.
    """
    if age_s >= slow_start_s:
        return 1.0
    return max(START_SHARE, age_s / slow_start_s)


def round_robin(in_flight: Sequence[int], turn: int, weights: Sequence[float]) -> list[int]:
    """Endpoint indices; over many turns each comes first in proportion to its weight, whatever their load.

    Multiples of the golden ratio, modulo 1, fill the interval from 0 to 1 as evenly as multiples of a number can
    (Knuth, TAOCP vol. 3, 6.4), and every second or third of them still fill it: no state beside `turn`, and no
    rhythm for the traffic to fall into. After the first come the others by turn, fresh ones last: a retry should
    not find the endpoint that is spared.
    """
    if min(weights) == max(weights):
        return routing.round_robin(in_flight, turn)
    upper = list(accumulate(weights))
    first = bisect_right(upper, turn * _GOLDEN_RATIO % 1.0 * upper[-1])
    rest = [*range(first + 1, len(weights)), *range(first)]
    return [first, *sorted(rest, key=weights.__getitem__, reverse=True)]


def least_in_flight(in_flight: Sequence[int], turn: int, weights: Sequence[float]) -> list[int]:
    """Endpoint indices by requests in flight over weight; equals, such as idle ones, by weighted turn.

    An endpoint comes first only while it holds no more than its weight's share of all in flight, so a fresh one is
    given a first request like any other and the second when the others are that many times as full.
    """
    if min(weights) == max(weights):
        return routing.least_in_flight(in_flight, turn)
    order = round_robin(in_flight, turn, weights)
    return sorted(order, key=lambda index: in_flight[index] / weights[index])


POLICIES: dict[str, Callable[[Sequence[int], int, Sequence[float]], list[int]]] = {
    "round_robin": round_robin,
    "least_in_flight": least_in_flight,
}
"""By the names of `routing.POLICIES`; weights are more than 0 and as many as endpoints, at least one."""
