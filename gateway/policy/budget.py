"""How many extra requests (retries, hedges) the traffic of a pool pays for, so that they cannot become a storm.

Retry budgets are Finagle's (`RetryBudget`), after it linkerd's and Envoy's: extra requests are a share of the live
ones. Pure: time is an argument. It never decides whether an extra request makes sense.
"""

from __future__ import annotations

from math import exp

MEMORY_S = 10.0
"""How long a request pays for an extra one; Finagle's and linkerd's `ttl`."""


class Budget:
    """A bucket of tokens: each request puts in `share`, each second `min_per_s`, an extra request takes one out.

    Tokens above what the trickle alone would hold fade with time constant `MEMORY_S`, which does what Finagle's
    window of deposits does in two numbers: yesterday's calm pays for no storm today. With t the time since the last
    change and f = `min_per_s` x `MEMORY_S`, the bucket holds f + (tokens - f) exp(-t / MEMORY_S); it starts at f.

    Over any time T with N requests, `take` succeeds at most share x N + min_per_s x T times more than the bucket
    held at its start.
    """

    def __init__(self, share: float, min_per_s: float) -> None:
        self._share = share
        self._floor = self._tokens = min_per_s * MEMORY_S
        self._changed_s = 0.0

    def note_request(self, now_s: float) -> None:
        """A client's request has arrived (not a retry of it)."""
        self._tokens = self.balance(now_s) + self._share
        self._changed_s = now_s

    def take(self, now_s: float) -> bool:
        """Pays for one extra request; False, and nothing paid, when there is not enough."""
        balance = self.balance(now_s)
        if balance < 1.0:
            return False
        self._tokens = balance - 1.0
        self._changed_s = now_s
        return True

    def balance(self, now_s: float) -> float:
        """Extra requests that could be paid for now."""
        return self._floor + (self._tokens - self._floor) * exp((self._changed_s - now_s) / MEMORY_S)
