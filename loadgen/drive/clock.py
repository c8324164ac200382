"""Another machine's monotonic clock against this one's, from exchanges of four timestamps (RFC 5905 §8). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.records import ClockOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One question and its answer: asked and heard on this clock, taken and told on the other."""

    asked_ns: int
    taken_ns: int
    told_ns: int
    heard_ns: int

    @property
    def offset_ns(self) -> int:
        """The other clock less this one, if both ways took equally long."""
        return ((self.taken_ns - self.asked_ns) + (self.told_ns - self.heard_ns)) // 2

    @property
    def bound_ns(self) -> int:
        """How far off that is at most: one way may have taken all of the time, and the other none."""
        away_ns = (self.heard_ns - self.asked_ns) - (self.told_ns - self.taken_ns)
        return (away_ns + 1) // 2


def offset_of(exchanges: Sequence[Exchange]) -> ClockOffset:
    """What the quickest exchange says; the others waited somewhere. Raises ValueError without one."""
    best = min(exchanges, key=lambda exchange: exchange.bound_ns)
    return ClockOffset(offset_ns=best.offset_ns, bound_ns=best.bound_ns, exchanges=len(exchanges))
