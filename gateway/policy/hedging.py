"""When a second endpoint is asked because the first one is late: hedging, before the client's first byte.

The request that answers first is relayed, the other cancelled. That trims the tail for a few percent more load
(Dean and Barroso, "The Tail at Scale", CACM 2013), as long as a `Budget` of its own caps it. Pure: time is an
argument. It never sends anything and never picks the second endpoint.
"""

from __future__ import annotations

from collections import deque
from math import ceil, inf

from gateway.config import HedgeRules

REFRESH_S = 1.0
"""Quantiles are at most this old: sorting a full window costs as much as a request."""


class RecentLatencies:
    """First-byte latencies of one pool in the last `window_s`, at most the `capacity` latest of them."""

    def __init__(self, *, window_s: float = 60.0, capacity: int = 1000) -> None:
        self._window_s = window_s
        self._samples: deque[tuple[float, float]] = deque(maxlen=capacity)
        self._sorted: list[float] = []
        self._sorted_s = -inf

    def note(self, now_s: float, latency_s: float) -> None:
        """One request's wait for its first byte, in seconds.

        For a request that was cancelled in favour of its hedge, report how long it had waited: leaving out the slow
        ones would make the rest look fast, and hedging would feed on itself.
        """
        self._samples.append((now_s, latency_s))

    def quantile(self, share: float, now_s: float, min_samples: int) -> float | None:
        """The smallest latency that at least `share` of the samples do not exceed; None below `min_samples`."""
        if now_s - self._sorted_s >= REFRESH_S:
            while self._samples and now_s - self._samples[0][0] > self._window_s:
                self._samples.popleft()
            self._sorted = sorted(latency_s for _, latency_s in self._samples)
            self._sorted_s = now_s
        if len(self._sorted) < max(1, min_samples):
            return None
        return self._sorted[ceil(share * len(self._sorted)) - 1]


def hedge_delay_s(rules: HedgeRules, latencies: RecentLatencies, now_s: float) -> float | None:
    """How long to wait for a first byte before a second endpoint is asked; None: not at all."""
    if rules.delay_s is not None:
        return rules.delay_s
    return latencies.quantile(rules.quantile, now_s, rules.min_samples)
