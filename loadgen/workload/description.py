"""The workload file: a description of traffic small enough to read and publish, and its strict loader.

A description says when requests come (a rate curve and the burstiness that is left around it) and how long
they are (two mixtures and how they are coupled), with where it was fitted and how well it fits. It holds
figures only, never a row of the log it came from. Loading accepts no unknown key and no silent default.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import yaml

from loadgen.workload import arrivals, lengths
from loadgen.workload.traces import TraceRow


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each check of a part names the field, its value and the remedy."""


class Source(_Part, frozen=True, kw_only=True):
    """What was fitted, and by which command."""

    dataset: str
    citation: str
    licence: str
    file_sha256: str
    rows: int
    command: str


class Dispersion(_Part, frozen=True, kw_only=True):
    """Index of dispersion of counts, Var N / E N, in windows of one width: 1 for a Poisson process."""

    window_s: float
    trace: float
    model: float
    """Mean over simulations of the fitted model."""


class ArrivalFit(_Part, frozen=True, kw_only=True):
    """How well the arrivals are described. Distances are Kolmogorov-Smirnov."""

    gap_ks: float
    """Between the trace's gaps on rescaled time and the gamma law of the same cv."""
    dispersion: list[Dispersion]


class Arrivals(_Part, frozen=True, kw_only=True):
    """A gamma renewal process on time rescaled by the rate curve."""

    bin_s: float
    rates_per_s: list[float]
    """Mean rate in each bin of `bin_s`, from the start on."""
    cv: float
    """Coefficient of variation of the gaps on rescaled time: 1 is Poisson, 0 is evenly spaced."""
    fit: ArrivalFit | None

    def __post_init__(self) -> None:
        _above_zero("bin_s", self.bin_s)
        if not self.rates_per_s or max(self.rates_per_s) <= 0:
            raise ValueError("rates_per_s has no rate above 0: give requests per second, one per bin")
        for rate in self.rates_per_s:
            if not 0 <= rate < math.inf:
                raise ValueError(f"rates_per_s has {rate}: give numbers of at least 0")
        if not 0 <= self.cv < math.inf:
            raise ValueError(f"cv is {self.cv}: give a number of at least 0")

    @property
    def duration_s(self) -> float:
        return self.bin_s * len(self.rates_per_s)


class Component(_Part, frozen=True, kw_only=True):
    """One lognormal: ln(tokens) has mean `mu` and standard deviation `sigma`."""

    weight: float
    mu: float
    sigma: float

    def __post_init__(self) -> None:
        _above_zero("weight", self.weight)
        _above_zero("sigma", self.sigma)


class LengthFit(_Part, frozen=True, kw_only=True):
    """How well lengths are described: relative errors of percentiles are (model - trace) / trace."""

    ks: float
    p50_error: float
    p90_error: float
    p99_error: float
    largest_atom: float
    """Share of the most frequent single length in the trace: no smooth law has a KS below half of it."""
    adequate: bool
    """KS below 0.05 and each percentile within 5 %."""


class Lengths(_Part, frozen=True, kw_only=True):
    """A lognormal mixture, rounded to whole tokens; what falls outside the limits lies on them."""

    components: list[Component]
    min_tokens: int
    max_tokens: int
    fit: LengthFit | None

    def __post_init__(self) -> None:
        total = sum(component.weight for component in self.components)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"weights of components sum to {total:g}: scale them to a sum of 1")
        if not 1 <= self.min_tokens <= self.max_tokens:
            raise ValueError(f"limits are {self.min_tokens}..{self.max_tokens}: need 1 <= min_tokens <= max_tokens")

    def cdf(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Probability of at most k tokens, for k from `min_tokens` to `max_tokens`; the last is 1."""
        mixture = [(part.weight, part.mu, part.sigma) for part in self.components]
        return lengths.rounded_cdf(mixture, self.min_tokens, self.max_tokens)


class Coupling(_Part, frozen=True, kw_only=True):
    """How prompt and output lengths hang together: a Gaussian copula with this Spearman correlation."""

    spearman: float

    def __post_init__(self) -> None:
        if not -1 <= self.spearman <= 1:
            raise ValueError(f"spearman is {self.spearman}: give a number from -1 to 1")


class Workload(_Part, frozen=True, kw_only=True):
    """A whole description; `draw` makes traffic of it."""

    schema: Literal["weir.workload/1"]
    name: str
    source: Source
    arrivals: Arrivals
    prompt: Lengths
    output: Lengths
    coupling: Coupling

    def digest(self) -> str:
        """SHA-256 (hex) of the content, whatever the file's comments and layout."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()

    def draw(self, rng: np.random.Generator, *, start_s: float, duration_s: float, rate_scale: float) -> list[TraceRow]:
        """Requests of [start_s, start_s + duration_s), times from `start_s` on, at `rate_scale` times the rate.

        Arrivals and lengths use separate streams of `rng`. Raises ValueError when the rate curve is shorter.
        """
        end_s = start_s + duration_s
        if end_s > self.arrivals.duration_s:
            raise ValueError(f"{self.name} describes {self.arrivals.duration_s:g} s: start_s + duration_s is {end_s:g}")
        when, how_long = rng.spawn(2)
        curve = arrivals.cumulative(self.arrivals.rates_per_s, self.arrivals.bin_s)
        times = arrivals.sample(when, curve, cv=self.arrivals.cv, window_s=(start_s, end_s), rate_scale=rate_scale)
        u, v = lengths.coupled_uniforms(how_long, len(times), self.coupling.spearman)
        prompts = lengths.quantiles(self.prompt.cdf(), self.prompt.min_tokens, u)
        outputs = lengths.quantiles(self.output.cdf(), self.output.min_tokens, v)
        rows = zip(times.tolist(), prompts.tolist(), outputs.tolist(), strict=True)
        return [TraceRow(at_s, prompt, output) for at_s, prompt, output in rows]


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: give a number above 0")


def parse_workload(text: str) -> Workload:
    """Reads the YAML of a workload file. Raises ValueError with the field, its value and the remedy."""
    try:
        return msgspec.convert(yaml.safe_load(text), Workload, strict=True)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def load_workload(path: Path) -> Workload:
    """Reads a workload file; ValueError names the file."""
    try:
        return parse_workload(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def shipped(name: str) -> Path | None:
    """The file of a workload that comes with the package, by name."""
    path = Path(__file__).parent.parent / "workloads" / f"{name}.yaml"
    return path if path.is_file() else None


def dump_workload(workload: Workload) -> str:
    """The workload as the text of its file, headed by the command that made it."""
    body = yaml.safe_dump(
        msgspec.to_builtins(workload), sort_keys=False, allow_unicode=True, width=110, default_flow_style=None
    )
    return f"# {workload.source.command}\n{body}"
