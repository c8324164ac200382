"""Laws of lengths in tokens: what a description may say of a column, and how it is drawn.

Each law turns uniform numbers into whole tokens by its inverse distribution, so equal uniforms give equal lengths,
whatever else is drawn beside them. Nothing here is fitted or read.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from scipy import special

from loadgen.workload.lengths import rounded_cdf
from loadgen.workload.traffic import Floats, Ints


class _Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="law"):
    """`min_tokens` and `max_tokens` are limits: what falls outside lies on them."""

    min_tokens: int
    max_tokens: int

    def check(self) -> None:
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"limits are {self.min_tokens}..{self.max_tokens}: need 1 <= min_tokens <= max_tokens")

    def __post_init__(self) -> None:
        self.check()

    def draw(self, uniforms: Floats) -> Ints:
        """Tokens, one for each uniform number in (0, 1)."""
        values = np.rint(self.quantile(uniforms))
        return np.clip(values, self.min_tokens, self.max_tokens).astype(np.int64)

    def quantile(self, uniforms: Floats) -> Floats:
        """The inverse distribution, before it is rounded and limited."""
        raise NotImplementedError


class Table(_Law, frozen=True, kw_only=True, tag="table"):
    """Empirical: tokens at given shares of the requests, straight lines between them. Repeated tokens are an atom."""

    shares: list[float]
    tokens: list[int]

    def check(self) -> None:
        super().check()
        if len(self.shares) != len(self.tokens) or len(self.shares) < 2:
            raise ValueError(f"{len(self.shares)} shares and {len(self.tokens)} tokens: give as many, and two or more")
        if self.shares[0] != 0 or self.shares[-1] != 1 or sorted(set(self.shares)) != self.shares:
            raise ValueError(f"shares are {self.shares}: expected to rise from 0 to 1")
        if sorted(self.tokens) != self.tokens:
            raise ValueError(f"tokens are {self.tokens}: expected never to fall")

    def quantile(self, uniforms: Floats) -> Floats:
        return np.interp(uniforms, self.shares, np.array(self.tokens, dtype=np.float64))


class Constant(_Law, frozen=True, kw_only=True, tag="constant"):
    """Always `max_tokens`, which is `min_tokens`."""

    def check(self) -> None:
        super().check()
        if self.min_tokens != self.max_tokens:
            raise ValueError(f"limits are {self.min_tokens}..{self.max_tokens}: a constant has equal ones")

    def quantile(self, uniforms: Floats) -> Floats:
        return np.full(len(uniforms), float(self.max_tokens))


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One lognormal: ln(tokens) has mean `mu` and standard deviation `sigma`."""

    weight: float
    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _positive("weight", self.weight)
        _positive("sigma", self.sigma)


class Mixture(_Law, frozen=True, kw_only=True, tag="lognormal_mixture"):
    """A mixture of lognormals; one component is the lognormal law."""

    components: list[Component]

    def check(self) -> None:
        super().check()
        total = sum(component.weight for component in self.components)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"weights of components sum to {total:g}: scale them to a sum of 1")

    def quantile(self, uniforms: Floats) -> Floats:
        mixture = [(part.weight, part.mu, part.sigma) for part in self.components]
        cdf = rounded_cdf(mixture, self.min_tokens, self.max_tokens)
        return (self.min_tokens + np.searchsorted(cdf, uniforms, side="left")).astype(np.float64)


class _ShapeAndScale(_Law, frozen=True, kw_only=True):
    shape: float
    scale: float

    def check(self) -> None:
        super().check()
        _positive("shape", self.shape)
        _positive("scale", self.scale)


class Gamma(_ShapeAndScale, frozen=True, kw_only=True, tag="gamma"):
    """Gamma with mean `shape * scale`."""

    def quantile(self, uniforms: Floats) -> Floats:
        values: Floats = special.gammaincinv(self.shape, uniforms) * self.scale
        return values


class Weibull(_ShapeAndScale, frozen=True, kw_only=True, tag="weibull"):
    """Weibull with distribution 1 - exp(-(x / scale) ** shape)."""

    def quantile(self, uniforms: Floats) -> Floats:
        return self.scale * (-np.log1p(-uniforms)) ** (1 / self.shape)


class LogLogistic(_ShapeAndScale, frozen=True, kw_only=True, tag="log_logistic"):
    """Log-logistic (Fisk) with median `scale`."""

    def quantile(self, uniforms: Floats) -> Floats:
        return self.scale * (uniforms / (1 - uniforms)) ** (1 / self.shape)


class Beta(_Law, frozen=True, kw_only=True, tag="beta"):
    """Beta on the range from `min_tokens` to `max_tokens`."""

    a: float
    b: float

    def check(self) -> None:
        super().check()
        _positive("a", self.a)
        _positive("b", self.b)

    def quantile(self, uniforms: Floats) -> Floats:
        values: Floats = special.betaincinv(self.a, self.b, uniforms)
        return self.min_tokens + values * (self.max_tokens - self.min_tokens)


Law = Table | Constant | Mixture | Gamma | Weibull | LogLogistic | Beta


def _positive(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: give a number above 0")
