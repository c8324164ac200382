"""Fits a workload description to a trace and says how well it fits.

The fit is deterministic: equal rows give equal figures. That is why no sum is left to BLAS: its last bits depend on
the kernel and the threads it chooses, and EM, which stops at a threshold, can turn a last bit into a visible digit.
With thousands of rows every p-value is 0, so adequacy is decided on distances (`LengthFit`); a law that misses is
kept and marked, never hidden.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from loadgen.workload import arrivals, lengths
from loadgen.workload.description import (
    ArrivalFit,
    Arrivals,
    Component,
    Coupling,
    Dispersion,
    LengthFit,
    Lengths,
    Source,
    Workload,
)
from loadgen.workload.traces import TraceRow

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_COMPONENTS = range(1, 7)
"""More than six did not come closer to the Azure traces: what is left over are atoms."""

_SMALLEST_SIGMA = 0.02
"""A component narrower than 2 % would describe one atom, not a law."""

_EM_STEPS = 2000
_EM_GAIN = 1e-7
"""Per row; below it the likelihood has settled."""

_WINDOWS_S = (1.0, 10.0, 60.0)
_SIMULATIONS = 20
_FEWEST_ROWS = 100


def fit_workload(rows: Sequence[TraceRow], *, name: str, source: Source, bin_s: float = 60.0) -> Workload:
    """Fits arrivals and lengths of rows in order of time.

    Raises ValueError for fewer than 100 rows or a trace shorter than one bin.
    """
    if len(rows) < _FEWEST_ROWS:
        raise ValueError(f"{len(rows)} rows: a fit needs at least {_FEWEST_ROWS}; replay the trace instead")
    prompts = np.array([max(1, row.prompt_tokens) for row in rows])
    outputs = np.array([max(1, row.output_tokens) for row in rows])
    return Workload(
        schema="weir.workload/1",
        name=name,
        source=source,
        arrivals=fit_arrivals(np.array([row.at_s for row in rows]), bin_s),
        prompt=fit_lengths(prompts),
        output=fit_lengths(outputs),
        coupling=Coupling(spearman=round(_spearman(prompts, outputs), 4)),
    )


def _spearman(first: Ints, second: Ints) -> float:
    """Pearson's correlation of the ranks, ties at their mean; 0 when one of the two does not vary."""
    a, b = (ranks - ranks.mean() for ranks in (stats.rankdata(first), stats.rankdata(second)))
    spread = math.sqrt((a * a).sum() * (b * b).sum())
    return float((a * b).sum() / spread) if spread else 0.0


def fit_arrivals(times_s: Floats, bin_s: float) -> Arrivals:
    """Rates of whole bins, and the cv of the gaps on rescaled time; what follows the last whole bin is left out."""
    bins = int(times_s[-1] / bin_s)
    if bins < 1:
        raise ValueError(f"the trace lasts {times_s[-1]:g} s, less than one bin of {bin_s:g} s: use smaller bins")
    duration_s = bins * bin_s
    times_s = times_s[times_s < duration_s]
    counts, _ = np.histogram(times_s, bins=bins, range=(0, duration_s))
    rates_per_s = [round(float(count) / bin_s, 6) for count in counts]
    curve = arrivals.cumulative(rates_per_s, bin_s)
    gaps = np.diff(arrivals.rescale(times_s, curve))
    cv = round(float(gaps.std() / gaps.mean()), 4)
    return Arrivals(
        bin_s=bin_s,
        rates_per_s=rates_per_s,
        cv=cv,
        fit=ArrivalFit(
            gap_ks=_gap_ks(gaps, cv),
            dispersion=[
                _dispersion(times_s, curve, cv, window_s) for window_s in _WINDOWS_S if 2 * window_s <= duration_s
            ],
        ),
    )


def _gap_ks(gaps: Floats, cv: float) -> float:
    if cv == 0:
        return 0.0
    law = stats.gamma(cv**-2, scale=gaps.mean() * cv**2)
    return round(float(stats.kstest(gaps, law.cdf).statistic), 4)


def _dispersion(times_s: Floats, curve: arrivals.Curve, cv: float, window_s: float) -> Dispersion:
    duration_s = float(curve[0][-1])
    simulated = [
        arrivals.sample(np.random.default_rng(seed), curve, cv=cv, window_s=(0.0, duration_s), rate_scale=1.0)
        for seed in range(_SIMULATIONS)
    ]
    model = [arrivals.dispersion(run, window_s, duration_s) for run in simulated]
    return Dispersion(
        window_s=window_s,
        trace=round(arrivals.dispersion(times_s, window_s, duration_s), 3),
        model=round(float(np.mean(model)), 3),
    )


def fit_lengths(tokens: Ints) -> Lengths:
    """The mixture of one to six lognormals with the least BIC, and how far it is from the lengths."""
    values, counts = np.unique(tokens, return_counts=True)
    logs, weights = np.log(values), counts.astype(float)
    fits = [_em(logs, weights, components) for components in _COMPONENTS if components <= len(values)]
    _, mixture = min(fits, key=lambda fit: fit[0])
    components = _rounded(mixture)
    low, high = int(values[0]), int(values[-1])
    cdf = lengths.rounded_cdf([(part.weight, part.mu, part.sigma) for part in components], low, high)
    return Lengths(components=components, min_tokens=low, max_tokens=high, fit=_length_fit(cdf, low, tokens))


def _rounded(mixture: list[tuple[float, float, float]]) -> list[Component]:
    """Figures with digits that mean something; weights still sum to 1."""
    shares = [round(weight, 4) for weight, _, _ in mixture]
    shares[0] = round(1 - sum(shares[1:]), 4)
    return [
        Component(weight=share, mu=round(mu, 4), sigma=round(sigma, 4))
        for share, (_, mu, sigma) in zip(shares, mixture, strict=True)
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
        joint = weight * stats.norm.pdf(logs[:, None], mu, sigma)
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


def _length_fit(cdf: Floats, min_tokens: int, tokens: Ints) -> LengthFit:
    counts = np.bincount(tokens - min_tokens, minlength=len(cdf))
    ks = float(np.abs(np.cumsum(counts) / len(tokens) - cdf).max())
    shares = (0.5, 0.9, 0.99)
    trace = np.quantile(tokens, shares, method="inverted_cdf")
    errors = (lengths.quantiles(cdf, min_tokens, shares) - trace) / trace
    p50, p90, p99 = (round(float(error), 4) for error in errors)
    return LengthFit(
        ks=round(ks, 4),
        p50_error=p50,
        p90_error=p90,
        p99_error=p99,
        largest_atom=round(float(counts.max() / len(tokens)), 4),
        adequate=ks < 0.05 and bool(np.abs(errors).max() <= 0.05),
    )
