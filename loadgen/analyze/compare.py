"""Whether two sides of runs differ, and by how much: what differs in what they ran on first, then metric by metric.

A claim needs `MIN_RUNS` valid runs a side. Below that a comparison says so and holds nothing but intervals within
single runs, which carry no claim. Pure: figures of runs in, `Comparison` out.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from loadgen.analyze import blocks
from loadgen.analyze.blocks import Within, quantile_within
from loadgen.analyze.claims import Margins, Matched, Row, Value, as_shown
from loadgen.analyze.effects import Estimate, Sides, hodges_lehmann
from loadgen.analyze.repeats import MIN_RUNS
from loadgen.analyze.run_figures import BY_NAME, Metric, RunFigures
from loadgen.analyze.stats import Values
from loadgen.analyze.summary import BUCKETS

BUCKET_METRICS = ("ttft_p50", "ttft_p99")
_WITHIN: dict[str, tuple[Callable[[RunFigures], Values], float]] = {
    "ttft_p50": (lambda run: run.ttft_s, 0.5),
    "ttft_p99": (lambda run: run.ttft_s, 0.99),
    "e2e_p99": (lambda run: run.e2e_s, 0.99),
}
"""Percentiles of one value per request, which blocks of requests can be drawn for."""


class Differing(msgspec.Struct, frozen=True, kw_only=True):
    """A fingerprint field in which the sides differ, and the values of each."""

    field: str
    a: list[str]
    b: list[str]


class WithinRun(msgspec.Struct, frozen=True, kw_only=True):
    """A percentile of one run, where there are too few runs for a claim."""

    side: str
    """A or B."""
    run: str
    metric: str
    found: Within


class RequestPair(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs of one schedule, request by request: the median of B's TTFT over A's for the same request."""

    a: str
    b: str
    requests: int
    ratio: Within | None
    """Its interval holds within these two runs only."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`weir compare --json`."""

    schema: Literal["weir.comparison/1"] = "weir.comparison/1"
    level: str | None
    """Of a plan."""
    a: str
    b: str
    runs_a: list[str]
    runs_b: list[str]
    differing: list[Differing]
    paired: bool
    pairing: str
    """How runs were matched, or why they were not."""
    warnings: list[str]
    margins: Margins
    rows: list[Row]
    buckets: dict[str, list[Row]]
    same_stream: list[RequestPair]
    same_stream_ratio: Estimate | None
    """Hodges-Lehmann over the pairs' medians."""
    within_label: str = blocks.LABEL
    within: list[WithinRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: the names of both sides, the metrics, and what counts as no difference."""

    a: str
    b: str
    metrics: Sequence[Metric]
    margins: Margins
    level: str | None = None


def compare(
    question: Question, runs_a: Sequence[RunFigures], runs_b: Sequence[RunFigures], rng: np.random.Generator
) -> Comparison:
    """Compares runs of B with runs of A; `rng` decides resamples. Each side has a run at least."""
    runs_a, runs_b, paired, pairing = _matched(runs_a, runs_b)
    matched = Matched(runs_a=runs_a, runs_b=runs_b, paired=paired, margins=question.margins, rng=rng)
    same_stream = [_request_pair(a, b, rng) for a, b in zip(runs_a, runs_b, strict=True)] if paired else []
    return Comparison(
        level=question.level,
        a=question.a,
        b=question.b,
        runs_a=[run.name for run in runs_a],
        runs_b=[run.name for run in runs_b],
        differing=_differing(runs_a, runs_b, paired),
        paired=paired,
        pairing=pairing,
        warnings=_warnings(runs_a, runs_b),
        margins=question.margins,
        rows=matched.rows([(metric, _of_run(metric.name)) for metric in question.metrics]),
        buckets=_bucket_rows(matched),
        same_stream=same_stream,
        same_stream_ratio=_over_pairs(same_stream),
        within=_within(question, runs_a, runs_b, rng) if matched.few else [],
    )


def _matched(
    runs_a: Sequence[RunFigures], runs_b: Sequence[RunFigures]
) -> tuple[list[RunFigures], list[RunFigures], bool, str]:
    """Both sides in the order of time, or pair by pair where every run has a partner with the same schedule."""
    in_time = [sorted(runs, key=lambda run: run.started_unix_ns) for runs in (runs_a, runs_b)]
    by_schedule: tuple[dict[str, list[RunFigures]], ...] = (defaultdict(list), defaultdict(list))
    for side, runs in zip(by_schedule, in_time, strict=True):
        for run in runs:
            side[run.schedule_sha256].append(run)
    counts = [{sha256: len(runs) for sha256, runs in side.items()} for side in by_schedule]
    if counts[0] != counts[1]:
        alone = sum(abs(counts[0].get(sha256, 0) - counts[1].get(sha256, 0)) for sha256 in {*counts[0], *counts[1]})
        why = f"not paired: {alone} runs have no partner with the same schedule, so both sides are compared as groups"
        return in_time[0], in_time[1], False, why
    a, b = ([run for sha256 in by_schedule[0] for run in side[sha256]] for side in by_schedule)
    return a, b, True, f"{len(a)} pairs of runs, each of one schedule"


def _differing(runs_a: Sequence[RunFigures], runs_b: Sequence[RunFigures], paired: bool) -> list[Differing]:
    """Fields in which the runs of some pair differ; without pairs, fields whose values are not the same on both sides.

    What changes from repeat to repeat alike on both sides, as the number of requests does, is no difference.
    """
    found = []
    for name in {name: None for run in (*runs_a, *runs_b) for name in run.fingerprint}:
        a, b = ([run.fingerprint.get(name, "not recorded") for run in runs] for runs in (runs_a, runs_b))
        if a != b if paired else set(a) != set(b):
            found.append(Differing(field=name, a=sorted(set(a)), b=sorted(set(b))))
    return found


def _warnings(runs_a: Sequence[RunFigures], runs_b: Sequence[RunFigures]) -> list[str]:
    found = []
    invalid = [run.name for run in (*runs_a, *runs_b) if run.validity.verdict == "INVALID"]
    if invalid:
        found.append(f"INVALID runs are among them, as asked for: {', '.join(invalid)}. Nothing below can be defended.")
    starts_a, starts_b = ([run.started_unix_ns for run in runs] for runs in (runs_a, runs_b))
    if max(starts_a) < min(starts_b) or max(starts_b) < min(starts_a):
        found.append(
            "All runs of one side came before those of the other: what changed with time cannot be told from what "
            "changed between the sides. Interleave them (`weir plan` does)."
        )
    return found


def _bucket_rows(matched: Matched) -> dict[str, list[Row]]:
    """TTFT by bucket of the prompt's length; its p values are a family of their own."""
    buckets = [name for name in BUCKETS if any(name in run.buckets for run in (*matched.runs_a, *matched.runs_b))]
    family = [(bucket, BY_NAME[name]) for bucket in buckets for name in BUCKET_METRICS]
    rows = matched.rows([(metric, _in_bucket(bucket, metric.name)) for bucket, metric in family])
    return {bucket: [row for (of, _), row in zip(family, rows, strict=True) if of == bucket] for bucket in buckets}


def _of_run(name: str) -> Value:
    return lambda run: run.values[name]


def _in_bucket(bucket: str, name: str) -> Value:
    def value(run: RunFigures) -> float | None:
        of_bucket: Mapping[str, float | None] = run.buckets.get(bucket, {})
        return of_bucket.get(name)

    return value


def _request_pair(a: RunFigures, b: RunFigures, rng: np.random.Generator) -> RequestPair:
    ratios = b.ttft_s / a.ttft_s
    known = ratios[~np.isnan(ratios)]
    return RequestPair(a=a.name, b=b.name, requests=len(known), ratio=quantile_within(known, 0.5, rng))


def _over_pairs(pairs: Sequence[RequestPair]) -> Estimate | None:
    ratios = np.array([pair.ratio.value for pair in pairs if pair.ratio is not None])
    if len(ratios) < MIN_RUNS:
        return None
    logs = np.log(ratios)
    return as_shown(BY_NAME["ttft_p50"], hodges_lehmann(Sides(a=np.zeros(len(logs)), b=logs, paired=True)))


def _within(
    question: Question, runs_a: Sequence[RunFigures], runs_b: Sequence[RunFigures], rng: np.random.Generator
) -> list[WithinRun]:
    wanted = [metric.name for metric in question.metrics if metric.name in _WITHIN]
    sides = [*(("A", run) for run in runs_a), *(("B", run) for run in runs_b)]
    found = [(side, run, name, _percentile_within(run, name, rng)) for name in wanted for side, run in sides]
    return [
        WithinRun(side=side, run=run.name, metric=name, found=within) for side, run, name, within in found if within
    ]


def _percentile_within(run: RunFigures, name: str, rng: np.random.Generator) -> Within | None:
    series, q = _WITHIN[name]
    values = series(run)
    return quantile_within(values[~np.isnan(values)], q, rng)
