"""Lengths: tables of what was seen in each window, the best single law of a whole column, and a verdict on it.

Deterministic: no sum is left to BLAS, whose last bits depend on the kernel and the threads it chooses, and EM, which
stops at a threshold, can turn a last bit into a visible digit.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from loadgen.workload.description import ColumnFit, Window
from loadgen.workload.laws import Beta, Component, Constant, Gamma, Law, LogLogistic, Mixture, Table, Weibull
from loadgen.workload.traffic import Floats, Ints

SHARES = (0.0, 0.005, 0.01, 0.02, *(round(0.04 * step, 2) for step in range(1, 25)), 0.98, 0.99, 0.995, 0.999, 1.0)
"""Where a table has its tokens: dense at both ends, since tails decide percentiles."""

_ADEQUATE_KS = 0.05
_ADEQUATE_ERROR = 0.05
_COMPONENTS = range(1, 7)
"""More than six did not come closer to the Azure traces: what is left over are atoms."""
_SMALLEST_SIGMA = 0.02
"""A component narrower than 2 % would describe one atom, not a law."""
_EM_STEPS = 500
_EM_GAIN = 1e-6
"""Per row; below it the likelihood has settled."""
_FEWEST_VALUES = 5


def table(tokens: Ints) -> Law:
    """What was seen, at 33 shares of the requests, or the constant that all of them are.

    Between two shares nothing is told of single requests; the least and the most are those of two of them.
    """
    low, high = int(tokens.min()), int(tokens.max())
    if low == high:
        return Constant(min_tokens=low, max_tokens=high)
    ordered = np.sort(tokens)
    at = np.interp(SHARES, np.linspace(0, 1, len(ordered)), ordered)
    return Table(min_tokens=low, max_tokens=high, shares=list(SHARES), tokens=[round(value) for value in at.tolist()])


def windows(at_s: Floats, prompt: Ints, output: Ints, starts_s: Floats) -> list[Window]:
    """Tables of each window, and how prompt and output hang together in it."""
    edges = np.searchsorted(at_s, starts_s[1:])
    parts = zip(starts_s.tolist(), np.split(prompt, edges), np.split(output, edges), strict=True)
    return [
        Window(start_s=round(start_s, 3), prompt=table(p), output=table(o), spearman=round(spearman(p, o), 4))
        for start_s, p, o in parts
    ]


def spearman(first: Ints, second: Ints) -> float:
    """Pearson's correlation of the ranks, ties at their mean; 0 when one of the two does not vary."""
    a, b = (ranks - ranks.mean() for ranks in (stats.rankdata(first), stats.rankdata(second)))
    spread = math.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / spread) if spread else 0.0


def judge_column(tokens: Ints) -> ColumnFit:
    """The best single law of a column, by rows that it was not fitted to: every second one."""
    values, counts = np.unique(tokens, return_counts=True)
    atom = float(counts.max() / len(tokens))
    fitted, others = tokens[::2], tokens[1::2]
    candidates = [] if len(values) < _FEWEST_VALUES else _candidates(fitted, int(values[0]), int(values[-1]))
    scored = [(_held_out(law, others), number, law) for number, law in enumerate(candidates)]
    if not scored:
        verdict = f"not fittable: {len(values)} different lengths"
        return ColumnFit(
            best=None, ks=1.0, ad=1.0, held_out=0.0, p50_error=0.0, p90_error=0.0, p99_error=0.0,
            largest_atom=round(atom, 4), verdict=verdict,
        )  # fmt: skip
    likelihood, _, best = max(scored, key=lambda one: (one[0], -one[1]))
    ks, ad = distances(best, tokens)
    errors = _percentile_errors(best, tokens)
    return ColumnFit(
        best=best,
        ks=round(ks, 4),
        ad=round(ad, 5),
        held_out=round(likelihood, 4),
        p50_error=round(errors[0], 4),
        p90_error=round(errors[1], 4),
        p99_error=round(errors[2], 4),
        largest_atom=round(atom, 4),
        verdict=_verdict(ks, errors, atom),
    )


def _verdict(ks: float, errors: list[float], atom: float) -> str:
    worst = max(errors, key=abs)
    if ks < _ADEQUATE_KS and abs(worst) <= _ADEQUATE_ERROR:
        return "adequate"
    if atom / 2 >= _ADEQUATE_KS:
        return f"use empirical: {atom:.0%} of the requests have one same length, which no smooth law has"
    if ks >= _ADEQUATE_KS:
        return f"use empirical: the best law is off by {ks:.3f} of the requests somewhere (KS), {_ADEQUATE_KS} at most"
    return f"use empirical: a percentile of the best law is off by {worst:+.0%}"


def _candidates(tokens: Ints, low: int, high: int) -> list[Law]:
    values = tokens.astype(np.float64)
    limits = {"min_tokens": low, "max_tokens": high}
    laws: list[Law] = []
    shape, _, scale = stats.gamma.fit(values, floc=0)
    laws.append(Gamma(shape=_round(shape), scale=_round(scale), **limits))
    shape, _, scale = stats.weibull_min.fit(values, floc=0)
    laws.append(Weibull(shape=_round(shape), scale=_round(scale), **limits))
    shape, _, scale = stats.fisk.fit(values, floc=0)
    laws.append(LogLogistic(shape=_round(shape), scale=_round(scale), **limits))
    if high - low >= _FEWEST_VALUES:
        inside = (values - low + 0.5) / (high - low + 1)
        mean, variance = float(inside.mean()), float(inside.var())
        common = mean * (1 - mean) / variance - 1
        if common > 0:
            laws.append(Beta(a=_round(mean * common), b=_round((1 - mean) * common), **limits))
    different, counts = np.unique(tokens, return_counts=True)
    mixtures = [_em(np.log(different), counts.astype(float), k) for k in _COMPONENTS if k <= len(different)]
    for wanted in (mixtures[:1], [min(mixtures, key=lambda fit: fit[0])]):
        laws += [Mixture(components=_rounded(mixture), **limits) for _, mixture in wanted]
    return laws


def _round(value: float) -> float:
    """Four digits that mean something."""
    return float(f"{value:.5g}")


def _cdf(law: Law, values: Ints) -> Floats:
    """Probability of at most each number of tokens, by inverting the quantiles at many shares."""
    shares = (np.arange(20_000) + 0.5) / 20_000
    drawn = law.draw(shares)
    return np.searchsorted(drawn, values, side="right") / len(drawn)


def _held_out(law: Law, tokens: Ints) -> float:
    """Mean log-likelihood of whole tokens; a thousandth is spread evenly, so that nothing is impossible."""
    values, counts = np.unique(tokens, return_counts=True)
    mass = _cdf(law, values) - _cdf(law, values - 1)
    even = 0.001 / (law.max_tokens - law.min_tokens + 1)
    return float((counts * np.log(0.999 * mass + even)).sum() / len(tokens))


def distances(law: Law, tokens: Ints) -> tuple[float, float]:
    """Kolmogorov-Smirnov, and Anderson-Darling over the number of rows, both at every length that occurs."""
    values, counts = np.unique(tokens, return_counts=True)
    seen = np.cumsum(counts) / len(tokens)
    model = _cdf(law, values)
    ks = float(np.abs(seen - model).max())
    inner = np.clip(model, 1e-4, 1 - 1e-4)
    return ks, float((((seen - model) ** 2 / (inner * (1 - inner))) * counts).sum() / len(tokens))


def _percentile_errors(law: Law, tokens: Ints) -> list[float]:
    shares = np.array((0.5, 0.9, 0.99))
    seen = np.quantile(tokens, shares, method="inverted_cdf")
    drawn = law.draw(shares)
    return [float(value) for value in (drawn - seen) / seen]


def _rounded(mixture: list[tuple[float, float, float]]) -> list[Component]:
    """Figures with digits that mean something; weights still sum to 1."""
    shares = [round(weight, 4) for weight, _, _ in mixture]
    shares[-1] = round(1 - sum(shares[:-1]), 4)
    return [
        Component(weight=share, mu=round(mu, 4), sigma=round(sigma, 4))
        for share, (_, mu, sigma) in zip(shares, mixture, strict=True)
        if share > 0
    ]


def _em(logs: Floats, counts: Floats, components: int) -> tuple[float, list[tuple[float, float, float]]]:
    """BIC and mixture by expectation-maximisation from a start at equal slices of the data, by mu."""
    total = counts.sum()
    slices = np.array_split(np.repeat(logs, counts.astype(int)), components)
    weight = np.full(components, 1 / components)
    mu = np.array([part.mean() for part in slices])
    sigma = np.array([max(part.std(), _SMALLEST_SIGMA) for part in slices])
    likelihood = -math.inf
    for _ in range(_EM_STEPS):
        z = (logs[:, None] - mu) / sigma
        joint = weight * np.exp(-0.5 * z * z) / (sigma * math.sqrt(2 * math.pi))
        density = np.maximum(joint.sum(axis=1), np.finfo(float).tiny)
        before, likelihood = likelihood, float((counts * np.log(density)).sum())
        if likelihood - before < _EM_GAIN * total:
            break
        share = joint / density[:, None] * counts[:, None]
        mass = np.maximum(share.sum(axis=0), np.finfo(float).tiny)
        weight, mu = mass / total, (logs[:, None] * share).sum(axis=0) / mass
        variance = (share * (logs[:, None] - mu) ** 2).sum(axis=0) / mass
        sigma = np.maximum(np.sqrt(variance), _SMALLEST_SIGMA)
    bic = (3 * components - 1) * math.log(total) - 2 * likelihood
    order = np.argsort(mu)
    return bic, [(float(weight[k]), float(mu[k]), float(sigma[k])) for k in order]
