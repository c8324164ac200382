"""A rate that changes with time, and the way between time and the number of requests expected until then.

The rate is a straight line between knots and may jump at them. Pure figures: nothing is drawn here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadgen.workload.traffic import Floats


@dataclass(frozen=True, slots=True)
class RateCurve:
    """Requests per second from 0 on, piece by piece."""

    knots_s: Floats
    """Ends of the k pieces, from 0, ascending. Shape (k + 1,)."""
    begins_per_s: Floats
    """Rate at the begin of each piece. Shape (k,)."""
    ends_per_s: Floats
    """Rate at its end."""

    @classmethod
    def steps(cls, knots_s: Sequence[float] | Floats, rates_per_s: Sequence[float] | Floats) -> RateCurve:
        """A constant rate in each piece."""
        rates = np.asarray(rates_per_s, dtype=np.float64)
        return cls(np.asarray(knots_s, dtype=np.float64), rates, rates)

    @property
    def duration_s(self) -> float:
        return float(self.knots_s[-1])

    @property
    def peak_per_s(self) -> float:
        return float(max(self.begins_per_s.max(), self.ends_per_s.max()))

    def scaled(self, factor: float) -> RateCurve:
        """The same curve at `factor` times the rate."""
        return RateCurve(self.knots_s, self.begins_per_s * factor, self.ends_per_s * factor)

    def total(self) -> float:
        """Requests expected in all."""
        return float(self._totals()[-1])

    def _totals(self) -> Floats:
        """Expected at each knot."""
        areas = np.diff(self.knots_s) * (self.begins_per_s + self.ends_per_s) / 2
        return np.concatenate(([0.0], np.cumsum(areas)))

    def expected(self, at_s: Floats) -> Floats:
        """Requests expected until each time within the curve: the scale on which the rate is 1 (time rescaling)."""
        piece = np.clip(np.searchsorted(self.knots_s, at_s, side="right") - 1, 0, len(self.begins_per_s) - 1)
        into = at_s - self.knots_s[piece]
        expected: Floats = self._totals()[piece] + into * (self.begins_per_s[piece] + self._slopes()[piece] * into / 2)
        return expected

    def when(self, marks: Floats) -> Floats:
        """The reverse of `expected`, for marks in [0, total). Nothing falls into a piece without a rate."""
        totals = self._totals()
        piece = np.searchsorted(totals, marks, side="right") - 1
        inside, begin, slope = marks - totals[piece], self.begins_per_s[piece], self._slopes()[piece]
        # Root of begin·t + slope·t²/2 = inside in the form that neither cancels nor divides by the slope.
        root = np.sqrt(np.maximum(begin * begin + 2 * slope * inside, 0.0))
        times: Floats = self.knots_s[piece] + 2 * inside / np.maximum(begin + root, np.finfo(np.float64).tiny)
        return np.minimum(times, np.nextafter(self.knots_s[piece + 1], 0.0))

    def _slopes(self) -> Floats:
        slopes: Floats = (self.ends_per_s - self.begins_per_s) / np.diff(self.knots_s)
        return slopes
