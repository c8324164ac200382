"""The workload file: a description of traffic small enough to read and publish, and its strict loader.

A description says when requests come (rates over time and the burstiness that is left around them), how long they are
(laws of prompt and output and how they hang together, in windows of time, since lengths drift), and which text their
prompts share; with where it was fitted and how well it fits. It holds figures only, never a row of the log it came
from. Loading accepts no unknown key and no silent default.
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
from loadgen.workload.kinds import Kind
from loadgen.workload.laws import Law
from loadgen.workload.sessions import Begun, requests_of
from loadgen.workload.sharing import Sharing
from loadgen.workload.traffic import Floats, Ints, Requests


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


class Rate(_Part, frozen=True, kw_only=True):
    """Mean requests per second from `start_s` on, until the next one's start."""

    start_s: float
    per_s: float


class _Residual(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="process"):
    """What is left of randomness on the scale on which the rate is 1."""

    def marks(self, rng: np.random.Generator, span: float) -> Floats:
        """Ascending, in [0, span), at a mean rate of 1."""
        raise NotImplementedError


class GammaRenewals(_Residual, frozen=True, kw_only=True, tag="gamma"):
    """Independent gamma gaps; `cv` is their coefficient of variation: 1 is Poisson, 0 is evenly spaced."""

    cv: float

    def __post_init__(self) -> None:
        if not 0 <= self.cv < math.inf:
            raise ValueError(f"cv is {self.cv}: give a number of at least 0")

    def marks(self, rng: np.random.Generator, span: float) -> Floats:
        return arrivals.renewals(rng, self.cv, span)


class WeibullRenewals(_Residual, frozen=True, kw_only=True, tag="weibull"):
    """Independent Weibull gaps; a `shape` of 1 is Poisson, below it is bursty."""

    shape: float

    def __post_init__(self) -> None:
        _above_zero("shape", self.shape)

    def marks(self, rng: np.random.Generator, span: float) -> Floats:
        return arrivals.weibull_renewals(rng, self.shape, span)


class TableRenewals(_Residual, frozen=True, kw_only=True, tag="table"):
    """Independent gaps as they were seen, at even steps of their share, of mean 1."""

    gaps: list[float]

    def __post_init__(self) -> None:
        if len(self.gaps) < 2 or sorted(self.gaps) != self.gaps or self.gaps[0] < 0:
            raise ValueError(f"gaps are {self.gaps}: expected two or more of at least 0 that never fall")
        # Straight lines between the points: the mean of a trapezoid.
        mean = float(np.trapezoid(self.gaps) / (len(self.gaps) - 1))
        if abs(mean - 1) > 0.01:
            raise ValueError(f"the mean of gaps is {mean:g}: scale them to 1")

    def marks(self, rng: np.random.Generator, span: float) -> Floats:
        return arrivals.table_renewals(rng, self.gaps, span)


class Switching(_Residual, frozen=True, kw_only=True, tag="mmpp"):
    """A Markov-modulated Poisson process of two states, in units of the mean rate and of mean gaps."""

    quiet_rate: float
    busy_rate: float
    quiet_stay: float
    busy_stay: float

    def __post_init__(self) -> None:
        if not 0 <= self.quiet_rate < self.busy_rate < math.inf:
            raise ValueError(f"rates are {self.quiet_rate} and {self.busy_rate}: need 0 <= quiet_rate < busy_rate")
        _above_zero("quiet_stay", self.quiet_stay)
        _above_zero("busy_stay", self.busy_stay)
        mean = (self.quiet_rate * self.quiet_stay + self.busy_rate * self.busy_stay) / (
            self.quiet_stay + self.busy_stay
        )
        if abs(mean - 1) > 0.01:
            raise ValueError(
                f"the mean of quiet_rate and busy_rate, weighed by their stays, is {mean:g}: scale it to 1"
            )

    def marks(self, rng: np.random.Generator, span: float) -> Floats:
        return arrivals.mmpp_marks(rng, (self.quiet_rate, self.busy_rate), (self.quiet_stay, self.busy_stay), span)


class Dispersion(_Part, frozen=True, kw_only=True):
    """Index of dispersion of counts, Var N / E N, in windows of one width: 1 for a Poisson process."""

    window_s: float
    trace: float
    model: float
    """Median over simulations of the fitted model."""
    low: float
    high: float
    """The middle 90 % of them."""


class ArrivalFit(_Part, frozen=True, kw_only=True):
    """How well the arrivals are described."""

    gap_ks: float
    """Kolmogorov-Smirnov distance between the log's gaps on rescaled time and the residual's."""
    dispersion: list[Dispersion]
    grid_s: float
    """The log's times lay on multiples of it, and were spread evenly over it; 0: on none."""
    periods_s: list[float]
    """Of regular swings that stand out of the rest."""
    verdict: str


class Arrivals(_Part, frozen=True, kw_only=True):
    """When requests come."""

    duration_s: float
    rates: list[Rate]
    residual: GammaRenewals | WeibullRenewals | TableRenewals | Switching
    fit: ArrivalFit | None

    def __post_init__(self) -> None:
        _above_zero("duration_s", self.duration_s)
        starts = [rate.start_s for rate in self.rates]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts or starts[-1] >= self.duration_s:
            raise ValueError(f"rates start at {starts}: need 0 first, then later and later, before duration_s")
        for rate in self.rates:
            if not 0 <= rate.per_s < math.inf:
                raise ValueError(f"per_s is {rate.per_s}: give a number of at least 0")
        if not any(rate.per_s for rate in self.rates):
            raise ValueError("no rate is above 0: give requests per second")

    def curve(self) -> arrivals.Curve:
        """The expected number of requests over time."""
        starts, rates = np.array([(rate.start_s, rate.per_s) for rate in self.rates]).T
        return arrivals.cumulative(starts, rates, self.duration_s)

    def draw(self, rng: np.random.Generator, window_s: tuple[float, float], rate_scale: float) -> Floats:
        """Times from the start of the window on, at `rate_scale` times the rate."""
        return arrivals.sample(rng, self.curve(), self.residual.marks, window_s=window_s, rate_scale=rate_scale)

    def end_of(self, name: str, start_s: float, duration_s: float) -> float:
        """The end of a part of a workload. Raises ValueError when the rates end before."""
        end_s = start_s + duration_s
        if end_s > self.duration_s:
            raise ValueError(f"{name} describes {self.duration_s:g} s: start_s + duration_s is {end_s:g}")
        return end_s


class ColumnFit(_Part, frozen=True, kw_only=True):
    """How well the best single law describes a whole column, and whether one does."""

    best: Law | None
    """By the likelihood of rows that it was not fitted to; None when none could be fitted."""
    ks: float
    """Kolmogorov-Smirnov distance."""
    ad: float
    """Anderson-Darling statistic over the number of rows."""
    held_out: float
    """Mean log-likelihood of a row that was not used, natural logarithm."""
    p50_error: float
    p90_error: float
    p99_error: float
    """(law - log) / log."""
    largest_atom: float
    """Share of the most frequent single length: no smooth law has a KS below half of it."""
    verdict: str
    """`adequate`, `use empirical: …` or `not fittable: …`."""


class Window(_Part, frozen=True, kw_only=True):
    """Lengths from `start_s` on, until the next window's start."""

    start_s: float
    prompt: Law
    output: Law
    spearman: float
    """Rank correlation of prompt and output, as a Gaussian copula."""

    def __post_init__(self) -> None:
        if not -1 <= self.spearman <= 1:
            raise ValueError(f"spearman is {self.spearman}: give a number from -1 to 1")


class Lengths(_Part, frozen=True, kw_only=True):
    """How long requests are."""

    windows: list[Window]
    prompt_fit: ColumnFit | None
    output_fit: ColumnFit | None

    def __post_init__(self) -> None:
        starts = [window.start_s for window in self.windows]
        if not starts or starts[0] != 0 or sorted(set(starts)) != starts:
            raise ValueError(f"windows start at {starts}: need 0 first, then later and later")

    def draw(self, rng: np.random.Generator, at_s: Floats) -> tuple[Ints, Ints]:
        """Prompt and output tokens of requests at these times, ascending."""
        prompt, output = np.empty(len(at_s), dtype=np.int64), np.empty(len(at_s), dtype=np.int64)
        normals = rng.standard_normal((len(at_s), 2))
        edges = np.searchsorted(at_s, [window.start_s for window in self.windows[1:]])
        for window, part in zip(self.windows, np.split(np.arange(len(at_s)), edges), strict=True):
            u, v = lengths.coupled_uniforms(normals[part], window.spearman)
            prompt[part], output[part] = window.prompt.draw(u), window.output.draw(v)
        return prompt, output


class Workload(_Part, frozen=True, kw_only=True):
    """A whole description; `draw` makes traffic of it."""

    schema: Literal["weir.workload/2"]
    name: str
    source: Source | None
    """None when it was written by hand."""
    arrivals: Arrivals
    lengths: Lengths
    sharing: Sharing | None
    """None: no two prompts have text in common."""

    @property
    def independent(self) -> bool:
        """Whether requests come independently of one another."""
        return True

    def verdicts(self) -> dict[str, str]:
        """What each part was found to be when it was fitted; nothing for one that was not."""
        sharing = None if self.sharing is None else self.sharing.fit
        parts = {
            "arrivals": self.arrivals.fit,
            "prompt lengths": self.lengths.prompt_fit,
            "output lengths": self.lengths.output_fit,
            "shared text": sharing,
        }
        return {name: fit.verdict for name, fit in parts.items() if fit is not None}

    def digest(self) -> str:
        """SHA-256 (hex) of the content, whatever the file's comments and layout."""
        return _digest(self)

    def draw(self, rng: np.random.Generator, *, start_s: float, duration_s: float, rate_scale: float) -> Requests:
        """Requests of [start_s, start_s + duration_s), times from `start_s` on, at `rate_scale` times the rate.

        Arrivals, lengths and sharing use separate streams of `rng`. Raises ValueError when the rates end before.
        """
        end_s = self.arrivals.end_of(self.name, start_s, duration_s)
        when, how_long, what = rng.spawn(3)
        times = self.arrivals.draw(when, (start_s, end_s), rate_scale)
        prompt, output = self.lengths.draw(how_long, times + start_s)
        if self.sharing is None:
            return Requests.unshared(times, prompt, output)
        return self.sharing.draw(what, times, prompt, output)


class MixedWorkload(_Part, frozen=True, kw_only=True):
    """A description by the kinds of use that it is made of, written by hand; `draw` makes traffic of it."""

    schema: Literal["weir.workload/2"]
    name: str
    arrivals: Arrivals
    """When sessions begin."""
    kinds: list[Kind]

    def __post_init__(self) -> None:
        if not self.kinds:
            raise ValueError("kinds are none: give at least one of single, conversation, rag, agent")

    @property
    def independent(self) -> bool:
        """Whether requests come independently of one another."""
        return all(kind.alone for kind in self.kinds)

    def digest(self) -> str:
        """SHA-256 (hex) of the content, whatever the file's comments and layout."""
        return _digest(self)

    def draw(self, rng: np.random.Generator, *, start_s: float, duration_s: float, rate_scale: float) -> Requests:
        """Requests of [start_s, start_s + duration_s), those of sessions that began before `start_s` among them.

        Sessions begin at `rate_scale` times the rate. Raises ValueError when the rates end before.
        """
        end_s = self.arrivals.end_of(self.name, start_s, duration_s)
        when, which, *each = rng.spawn(2 + len(self.kinds))
        begin_s = self.arrivals.draw(when, (0, end_s), rate_scale)
        shares = np.cumsum([kind.share for kind in self.kinds])
        of_kind = np.searchsorted(shares, which.random(len(begin_s)) * shares[-1], side="right")
        begun: list[Begun] = []
        for number, (kind, own) in enumerate(zip(self.kinds, each, strict=True)):
            begins = begin_s[of_kind == number]
            sessions = kind.sessions(own, len(begins))
            begun.append(Begun(sessions=sessions, begin_s=begins, known_tokens=kind.known_tokens()))
        return requests_of(begun, start_s, end_s)


def _digest(workload: Workload | MixedWorkload) -> str:
    return hashlib.sha256(msgspec.json.encode(workload, order="sorted")).hexdigest()


def _above_zero(name: str, value: float) -> None:
    if not 0 < value < math.inf:
        raise ValueError(f"{name} is {value}: give a number above 0")


def parse_workload(text: str) -> Workload | MixedWorkload:
    """Reads the YAML of a workload file; one with `kinds` is mixed of those.

    Raises ValueError with the field, its value and the remedy.
    """
    try:
        content = yaml.safe_load(text)
        if isinstance(content, dict) and "kinds" in content:
            return msgspec.convert(content, MixedWorkload, strict=True)
        return msgspec.convert(content, Workload, strict=True)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def load_workload(path: Path) -> Workload | MixedWorkload:
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
    content = msgspec.to_builtins(workload)
    # Tables of all windows have the same shares, which YAML says once when they are one object.
    written: dict[str, list[float]] = {}
    for window in content["lengths"]["windows"]:
        for law in (window["prompt"], window["output"]):
            if "shares" in law:
                law["shares"] = written.setdefault(str(law["shares"]), law["shares"])
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=118, default_flow_style=None)
    return f"# {workload.source.command}\n{body}" if workload.source else body
