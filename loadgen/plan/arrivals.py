"""When requests come: families of arrivals with a few parameters, from a short text such as `gamma:rate=5,cv=2`.

Every family is a rate curve and the burstiness that is left around it: renewals with gamma gaps on the scale on
which the rate is 1. Their number is random, as it is in traffic; nothing is conditioned on its mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np

from loadgen.plan.rates import RateCurve
from loadgen.workload.arrivals import renewals
from loadgen.workload.traffic import Floats

_LARGEST_CV = 10.0
"""Beyond it most gaps are shorter than a nanosecond."""
_SMALLEST_CV = 0.01
"""Below it gaps are taken as even, which is cv 0."""


class _Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of one family: rates in requests per second, times in seconds."""

    @property
    def residual_cv(self) -> float:
        return 1.0


class _Steady(_Family, frozen=True, kw_only=True):
    """Families of one rate; Poisson unless they say otherwise."""

    rate: float

    def curve(self, rng: np.random.Generator, duration_s: float) -> RateCurve:
        return RateCurve.steps([0.0, duration_s], [self.rate])


class _Constant(_Steady, frozen=True, kw_only=True):
    """Even gaps; only where the first request falls is random."""

    @property
    def residual_cv(self) -> float:
        return 0.0


class _Gamma(_Steady, frozen=True, kw_only=True):
    """Gamma gaps, by their coefficient of variation or by vLLM's `--burstiness`, which is their shape: 1/cv²."""

    cv: float | None = None
    burstiness: float | None = None

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give either cv or burstiness (which is 1/cv²)")

    @property
    def residual_cv(self) -> float:
        return self.cv if self.cv is not None else (self.burstiness or math.inf) ** -0.5


class _Mmpp(_Family, frozen=True, kw_only=True):
    """Poisson at `low` and at `high`, each for exponential times of the given means, from the stationary law on."""

    low: float
    high: float
    low_s: float
    high_s: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high is {self.high:g}: low is the lower one")

    @property
    def share_high(self) -> float:
        return self.high_s / (self.low_s + self.high_s)

    def curve(self, rng: np.random.Generator, duration_s: float) -> RateCurve:
        high = bool(rng.random() < self.share_high)
        switches = [0.0]
        while switches[-1] < duration_s:
            stay_s = self.high_s if high == (len(switches) % 2 == 1) else self.low_s
            switches.append(switches[-1] + rng.exponential(stay_s))
        pair = (self.high, self.low) if high else (self.low, self.high)
        rates = [pair[at % 2] for at in range(len(switches) - 1)]
        return RateCurve.steps([*switches[:-1], duration_s], rates)


class _Varying(_Family, frozen=True, kw_only=True):
    """Families whose rate changes by plan; `cv` is the burstiness around it, 1 for Poisson."""

    cv: float = 1.0

    @property
    def residual_cv(self) -> float:
        return self.cv


class _Piecewise(_Varying, frozen=True, kw_only=True):
    """Each of `rates` (with / between them) for `each` seconds, the last one until the end."""

    rates: str
    each: float

    def curve(self, rng: np.random.Generator, duration_s: float) -> RateCurve:
        rates = self._rates()[: math.ceil(duration_s / self.each)]
        return RateCurve.steps([*(at * self.each for at in range(len(rates))), duration_s], rates)

    def _rates(self) -> list[float]:
        try:
            rates = [float(rate) for rate in self.rates.split("/")]
        except ValueError:
            raise ValueError(f"rates is {self.rates!r}: expected numbers with / between them") from None
        if not all(0 <= rate < math.inf for rate in rates) or not any(rates):
            raise ValueError(f"rates is {self.rates!r}: give numbers of at least 0, not all 0")
        return rates

    def __post_init__(self) -> None:
        self._rates()


class _Bursts(_Varying, frozen=True, kw_only=True):
    """`times` the rate for `length` seconds in the middle of every `period`."""

    rate: float
    times: float = 10.0
    length: float = 10.0
    period: float = 60.0

    def __post_init__(self) -> None:
        if self.length >= self.period:
            raise ValueError(f"length is {self.length:g}: shorter than the period of {self.period:g} s")

    def curve(self, rng: np.random.Generator, duration_s: float) -> RateCurve:
        calm_s = (self.period - self.length) / 2
        starts = np.arange(math.ceil(duration_s / self.period)) * self.period
        edges = np.concatenate([[start, start + calm_s, start + calm_s + self.length] for start in starts])
        rates = np.tile([self.rate, self.rate * self.times, self.rate], len(starts))
        within = edges < duration_s
        return RateCurve.steps(np.append(edges[within], duration_s), rates[within])


class _Ramp(_Varying, frozen=True, kw_only=True):
    """From one rate to another, in a straight line over the whole duration."""

    begin: float = msgspec.field(name="from")
    end: float = msgspec.field(name="to")

    def __post_init__(self) -> None:
        if self.begin == self.end == 0:
            raise ValueError("from and to are 0: give a rate above 0 for one of them")

    def curve(self, rng: np.random.Generator, duration_s: float) -> RateCurve:
        return RateCurve(np.array([0.0, duration_s]), np.array([self.begin]), np.array([self.end]))


_AnyFamily = _Steady | _Mmpp | _Piecewise | _Bursts | _Ramp

_FAMILIES: dict[str, type[_AnyFamily]] = {
    "constant": _Constant,
    "poisson": _Steady,
    "gamma": _Gamma,
    "mmpp": _Mmpp,
    "piecewise": _Piecewise,
    "bursts": _Bursts,
    "ramp": _Ramp,
}
_MAY_BE_0 = {"cv", "low", "begin", "end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How long the rate of an MMPP was high: share of the time, and what its law says of that share."""

    share: float
    mean: float
    deviation: float
    """Standard deviation."""
    switches: float
    """Expected number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """What arrivals are said to follow: renewals of gamma gaps with `cv` on the time scale of `curve`."""

    curve: RateCurve
    cv: float
    """0 for even gaps."""
    occupancy: Occupancy | None = None
    """Of a rate that was drawn itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """One family with its parameters; `text` says which."""

    text: str
    family: _AnyFamily

    def draw(self, rng: np.random.Generator, *, duration_s: float, rate_scale: float = 1.0) -> tuple[Floats, Law]:
        """Ascending times in [0, duration_s), at `rate_scale` times the rate, and the law that they follow.

        Raises ValueError when no request is expected at all.
        """
        rates, gaps = rng.spawn(2)
        curve = self.family.curve(rates, duration_s).scaled(rate_scale)
        if not curve.total():
            raise ValueError(f"arrivals {self.text!r}: no request is expected in {duration_s:g} s")
        cv = self.family.residual_cv
        times = curve.when(renewals(gaps, cv, curve.total()))
        return times, Law(curve=curve, cv=cv, occupancy=_occupancy(self.family, curve, rate_scale))


def _occupancy(family: _AnyFamily, curve: RateCurve, rate_scale: float) -> Occupancy | None:
    """The variance of the share is that of the time average of a two-state Markov chain (its correlation is e^-st)."""
    if not isinstance(family, _Mmpp):
        return None
    mean, duration_s = family.share_high, curve.duration_s
    speed = duration_s * (1 / family.low_s + 1 / family.high_s)
    variance = 2 * mean * (1 - mean) / speed * (1 - (1 - math.exp(-speed)) / speed)
    high = np.diff(curve.knots_s)[curve.begins_per_s == family.high * rate_scale].sum()
    return Occupancy(
        share=float(high) / duration_s,
        mean=mean,
        deviation=math.sqrt(variance),
        switches=2 * duration_s / (family.low_s + family.high_s),
    )


def parse_arrivals(text: str) -> Arrivals:
    """From `FAMILY:NAME=VALUE,…`. Raises ValueError with what is wrong and what the family takes."""
    name, _, rest = text.strip().partition(":")
    kind = _FAMILIES.get(name)
    if kind is None:
        raise ValueError(f"arrivals {text!r}: no family {name!r}, there are {', '.join(_FAMILIES)}")
    takes = f"{name} takes {', '.join(field.encode_name for field in msgspec.structs.fields(kind))}"
    pairs = [pair.partition("=") for pair in rest.split(",")] if rest else []
    if not all(sign for _, sign, _ in pairs):
        raise ValueError(f"arrivals {text!r}: expected NAME=VALUE with commas between: {takes}")
    try:
        family = msgspec.convert({key.strip(): value.strip() for key, _, value in pairs}, kind, strict=False)
        _check_numbers(family)
    except ValueError as error:
        raise ValueError(f"arrivals {text!r}: {error} ({takes})") from error
    return Arrivals(text=text.strip(), family=family)


def _check_numbers(family: _AnyFamily) -> None:
    for field in msgspec.structs.fields(family):
        value = getattr(family, field.name)
        if isinstance(value, float) and not (0 < value < math.inf or (value == 0 and field.name in _MAY_BE_0)):
            raise ValueError(f"{field.encode_name} is {value:g}: give a number above 0")
    cv = family.residual_cv
    if cv and not _SMALLEST_CV <= cv <= _LARGEST_CV:
        raise ValueError(f"cv is {cv:g}: give 0 for even gaps, or {_SMALLEST_CV:g} to {_LARGEST_CV:g}")
