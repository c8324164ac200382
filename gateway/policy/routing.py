"""Which pool, and in which order its endpoints are tried. Pure: state is a counter that the caller owns.

A policy returns every endpoint, best first, so that the next candidate needs no second decision.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence


def round_robin(in_flight: Sequence[int], turn: int) -> list[int]:
    """Endpoint indices starting at `turn`, whatever their load."""
    count = len(in_flight)
    start = turn % count
    return [*range(start, count), *range(start)]


def least_in_flight(in_flight: Sequence[int], turn: int) -> list[int]:
    """Endpoint indices by requests in flight; equals take turns, so an idle pool is not served by its first."""
    return sorted(round_robin(in_flight, turn), key=in_flight.__getitem__)


POLICIES: dict[str, Callable[[Sequence[int], int], list[int]]] = {
    "round_robin": round_robin,
    "least_in_flight": least_in_flight,
}


class WeightedSplit:
    """Spreads requests over pools in proportion to their weights: smooth weighted round robin.

    The algorithm is nginx's (upstream round robin, since 1.3.1): every pool gains its weight, the richest is
    picked and pays the sum. Over any run of `sum(weights)` requests each pool gets exactly its weight, and a
    heavy pool's turns are spread out. A pool that is not available gains nothing.
    """

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._weights = {name: weight for name, weight in weights.items() if weight > 0}
        self._credit = dict.fromkeys(self._weights, 0)

    def pick(self, available: Collection[str]) -> str | None:
        """The next pool among `available`, or None when none of the split's pools is."""
        candidates = [name for name in self._weights if name in available]
        if len(candidates) <= 1:
            return candidates[0] if candidates else None
        for name in candidates:
            self._credit[name] += self._weights[name]
        chosen = max(candidates, key=self._credit.__getitem__)
        self._credit[chosen] -= sum(self._weights[name] for name in candidates)
        return chosen
