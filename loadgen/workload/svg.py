"""Charts as inline SVG: two axes, linear or logarithmic, and lines, steps, bands and points between them.

Colours are classes of the page's style sheet, so a chart follows its light and dark theme. Nothing is computed here
but positions; numbers that are not finite, or not above 0 on a logarithmic axis, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

import numpy as np
import numpy.typing as npt

from loadgen.workload.traffic import Floats

_WIDTH, _HEIGHT = 440, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 14, 10, 42
_TICKS = 6
"""About as many on a linear axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a chart, from `low` to `high`."""

    label: str
    low: float
    high: float
    log: bool = False

    @classmethod
    def over(cls, label: str, *columns: npt.ArrayLike, log: bool = False, zero: bool = False) -> Axis:
        """Wide enough for every number of the columns; from 0 on when asked for."""
        values = np.concatenate([np.asarray(column, dtype=np.float64).ravel() for column in columns])
        values = values[np.isfinite(values) & ((values > 0) | (not log))]
        low, high = (float(values.min()), float(values.max())) if len(values) else (1.0, 1.0)
        if log:
            return cls(label=label, low=low / 1.1, high=high * 1.1, log=True)
        low = 0.0 if zero else low
        margin = (high - low or abs(high) or 1.0) * 0.04
        return cls(label=label, low=low if zero else low - margin, high=high + margin)

    def share(self, values: npt.ArrayLike) -> Floats:
        """How far along the axis; NaN for what has no place on it."""
        numbers = np.asarray(values, dtype=np.float64)
        if not self.log:
            return (numbers - self.low) / (self.high - self.low)
        logs = np.log(np.where(numbers > 0, numbers, np.nan))
        shares: Floats = (logs - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return shares

    def ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1,) if len(decades) > 4 else (1, 2, 5)
            marks = [step * 10.0**decade for decade in decades for step in steps]
        else:
            rough = (self.high - self.low) / _TICKS
            unit = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
            marks = [number * step for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [mark for mark in marks if self.low <= mark <= self.high]


@dataclass(slots=True, kw_only=True)
class Chart:
    """A chart that is being drawn; what comes later lies on top."""

    title: str
    caption: str
    x: Axis
    y: Axis
    _marks: list[str] = field(default_factory=list)
    _names: list[tuple[str, str]] = field(default_factory=list)

    def line(self, x: npt.ArrayLike, y: npt.ArrayLike, *, style: str, name: str = "") -> None:
        """Straight lines from point to point; `style` is a class, `name` its entry in the legend."""
        self._name(style, name)
        self._marks.append(f'<polyline class="{style}" points="{_joined(*self._places(x, y))}"/>')

    def steps(self, edges: npt.ArrayLike, y: npt.ArrayLike, *, style: str, name: str = "") -> None:
        """A level for each stretch between two edges."""
        self.line(np.repeat(np.asarray(edges), 2)[1:-1], np.repeat(np.asarray(y), 2), style=style, name=name)

    def band(self, x: npt.ArrayLike, low: npt.ArrayLike, high: npt.ArrayLike, *, style: str, name: str = "") -> None:
        self._name(style, name)
        there, back = _joined(*self._places(x, low)), _joined(*(part[::-1] for part in self._places(x, high)))
        self._marks.append(f'<polygon class="{style}" points="{there} {back}"/>')

    def points(self, x: npt.ArrayLike, y: npt.ArrayLike, *, style: str, name: str = "") -> None:
        """One path for all of them: a dot is a line of no length with round ends."""
        self._name(style, name)
        dots = "".join(f"M{a:.1f} {b:.1f}h0" for a, b in zip(*self._places(x, y), strict=True))
        self._marks.append(f'<path class="{style}" d="{dots}"/>')

    def html(self) -> str:
        """The chart as a figure element."""
        keys = "".join(f'<li class="{style}">{escape(name)}</li>' for style, name in self._names)
        return (
            f"<figure><figcaption><h2>{escape(self.title)}</h2><p>{escape(self.caption)}</p></figcaption>"
            f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(self.title)}">'
            f'{self._grid()}{"".join(self._marks)}</svg><ul class="keys">{keys}</ul></figure>'
        )

    def _name(self, style: str, name: str) -> None:
        if name:
            self._names.append((style, name))

    def _places(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[Floats, Floats]:
        across, up = self.x.share(x), self.y.share(y)
        shown = np.isfinite(across) & np.isfinite(up)
        left = _LEFT + np.clip(across[shown], 0, 1) * (_WIDTH - _LEFT - _RIGHT)
        top = _HEIGHT - _BOTTOM - np.clip(up[shown], 0, 1) * (_HEIGHT - _TOP - _BOTTOM)
        return left, top

    def _grid(self) -> str:
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        drawn = []
        for tick, place in zip(self.x.ticks(), self.x.share(self.x.ticks()).tolist(), strict=True):
            at = _LEFT + place * (right - _LEFT)
            drawn.append(f'<path class="grid" d="M{at:.1f} {_TOP}V{bottom}"/>')
            drawn.append(f'<text x="{at:.1f}" y="{bottom + 15}" text-anchor="middle">{shown(tick)}</text>')
        for tick, place in zip(self.y.ticks(), self.y.share(self.y.ticks()).tolist(), strict=True):
            at = bottom - place * (bottom - _TOP)
            drawn.append(f'<path class="grid" d="M{_LEFT} {at:.1f}H{right}"/>')
            drawn.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{shown(tick)}</text>')
        middle = (_TOP + bottom) / 2
        drawn.append(
            f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(self.x.label)}</text>'
        )
        drawn.append(
            f'<text transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">{escape(self.y.label)}</text>'
        )
        return "".join(drawn)


def shown(value: float) -> str:
    """A number of an axis, short."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= size * 10 or (abs(value) >= size and value % size == 0):
            return f"{value / size:g}{unit}"
    return f"{value:g}" if abs(value) < 1e-9 or abs(value) >= 1e-4 else f"{value:.0e}"


def _joined(x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> str:
    return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
