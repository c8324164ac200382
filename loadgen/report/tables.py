"""The tables of a report, ready for any medium: the terminal and the page show the same ones.

Turns a `Summary` into text cells; never computes a figure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from loadgen.analyze.stats import Distribution, required_n
from loadgen.analyze.summary import ALL, Group, Phases, Summary
from loadgen.report.numbers import MISSING, duration, interval, number, percent, quantile
from protocol.records import PHASES


@dataclass(frozen=True, slots=True)
class Cell:
    """What a cell says, and the small print that a page adds to it."""

    text: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Rows under a common heading; an empty heading is not shown."""

    heading: str = ""
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`labels` counts the leading columns that name a row; all others hold figures."""

    title: str
    head: Sequence[str]
    sections: Sequence[Section]
    labels: int = 1
    note: str = ""


TOO_FEW = (
    f"{MISSING} where there are too few values: P50 needs {required_n(0.5)}, P90 {required_n(0.9)}, "
    f"P99 {required_n(0.99)}."
)
LATENCIES = (
    "ttft_s",
    "ttfo_s",
    "ttft_service_s",
    "tpot_s",
    "e2e_s",
    "e2e_service_s",
    "chunk_gap_s",
    "chunk_gap_max_s",
    "send_lateness_s",
)
PHASE_MEANINGS = {
    "receive": "reading the request from the client",
    "admit": "authentication, limits and queueing",
    "route": "choosing the pool and the endpoint",
    "connect": "a connection to the engine",
    "send": "writing the request to the engine",
    "first_byte": "waiting for the engine's first byte",
    "relay": "passing the response on as it arrives",
    "finish": "bookkeeping after the last byte",
}


def columns(summary: Summary) -> list[tuple[str, Group]]:
    """The groups that stand side by side: all requests and, where there are several, each arm."""
    arms: list[str | None] = [None, *summary.arms] if len(summary.arms) > 1 else [None]
    return [(arm or ALL, group) for arm in arms if (group := summary.group(arm))]


def counts_table(summary: Summary) -> Table:
    """Requests, tokens and rates of each arm."""
    groups = columns(summary)

    def row(label: str, figure: Callable[[Group], str]) -> list[Cell]:
        return [Cell(label), *(Cell(figure(group)) for _, group in groups)]

    def outcome_row(label: str, outcome: str) -> list[Cell]:
        return row(label, lambda g: _of(g.outcomes.get(outcome, 0), g.scheduled))

    outcomes = [name for name in summary.groups[0].outcomes if name != "ok"] if summary.groups else []
    requests = [
        row("scheduled", lambda g: f"{g.scheduled:,}"),
        row("sent", lambda g: f"{g.sent:,}"),
        outcome_row("succeeded", "ok"),
        *(outcome_row(name, name) for name in outcomes),
    ]
    tokens = [
        row("prompt tokens", lambda g: f"{g.prompt_tokens:,}"),
        row("of them cached", lambda g: _of(g.cached_tokens, g.prompt_tokens)),
        row("output tokens", lambda g: f"{g.output_tokens:,}"),
    ]
    rates = [
        row("requests/s", lambda g: number(g.rates.requests_per_s)),
        row("completions/s", lambda g: number(g.rates.completions_per_s)),
        row("output tokens/s", lambda g: number(g.rates.output_tokens_per_s)),
    ]
    return Table(
        title="Requests and throughput",
        head=["", *(name for name, _ in groups)],
        sections=[
            Section(heading="Requests", rows=requests),
            Section(heading="Tokens of successful requests", rows=tokens),
            Section(heading="Rates", rows=rates),
        ],
    )


def _of(count: int, whole: int) -> str:
    return f"{count:,} ({percent(count / whole)})" if whole else f"{count:,}"


def latency_table(summary: Summary) -> Table:
    """Every latency metric of each arm."""
    groups = columns(summary)
    labels = {definition.name: definition.label for definition in summary.definitions}
    reasoning = any(g.latencies.ttfo_s.n and g.latencies.ttfo_s != g.latencies.ttft_s for _, g in groups)
    return Table(
        title="Latency",
        head=["", *(name for name, _ in groups)],
        sections=[
            Section(heading=labels[name], rows=_stat_rows([getattr(g.latencies, name) for _, g in groups]))
            for name in LATENCIES
            if name != "ttfo_s" or reasoning
        ],
        note=f"Order statistics of raw values; in small print the {summary.interval}. {TOO_FEW}",
    )


def _stat_rows(distributions: Sequence[Distribution]) -> list[list[Cell]]:
    return [
        [Cell("n"), *(Cell(f"{d.n:,}") for d in distributions)],
        [Cell("mean"), *(Cell(duration(d.mean)) for d in distributions)],
        [Cell("P50"), *(_quantile_cell(d, "p50") for d in distributions)],
        [Cell("P90"), *(_quantile_cell(d, "p90") for d in distributions)],
        [Cell("P99"), *(_quantile_cell(d, "p99") for d in distributions)],
        [Cell("max"), *(Cell(duration(d.max)) for d in distributions)],
    ]


def _quantile_cell(distribution: Distribution, name: str) -> Cell:
    value = getattr(distribution, name)
    return Cell(quantile(value), value.refused or interval(value))


def bucket_table(summary: Summary) -> Table:
    """Latency by prompt length, arm under arm within each bucket."""
    names = [name for name, _ in columns(summary)]
    sections = [
        Section(
            heading=f"{bucket} prompt tokens",
            rows=[
                _bucket_row(name, group)
                for name in names
                if (group := summary.group(None if name == ALL else name, bucket))
            ],
        )
        for bucket in summary.buckets
    ]
    return Table(
        title="By prompt length",
        head=["", "sent", "ok", "TTFT P50", "TTFT P90", "TTFT P99", "TPOT P50", "TPOT P99", "E2E P50", "E2E P99"],
        sections=sections,
        note=f"Buckets of the planned prompt length. {TOO_FEW}",
    )


def _bucket_row(name: str, group: Group) -> list[Cell]:
    found = group.latencies
    shown = (
        (found.ttft_s, ("p50", "p90", "p99")),
        (found.tpot_s, ("p50", "p99")),
        (found.e2e_s, ("p50", "p99")),
    )
    return [
        Cell(name),
        Cell(f"{group.sent:,}"),
        Cell(f"{group.outcomes.get('ok', 0):,}"),
        *(_quantile_cell(distribution, at) for distribution, wanted in shown for at in wanted),
    ]


def phase_table(phases: Phases) -> Table:
    """Where the gateway's time went: phase by phase, arm under arm."""
    sections = [
        Section(
            heading=f"{phase}: {PHASE_MEANINGS[phase]}",
            rows=_phase_rows((arm, of_arm[phase]) for arm, of_arm in phases.arms.items()),
        )
        for phase in PHASES
    ]
    sections += [
        Section(
            heading="before the engine has the request: receive to send", rows=_phase_rows(phases.to_engine.items())
        ),
        Section(heading="outside the gateway: network, kernel and client", rows=_phase_rows(phases.outside.items())),
    ]
    counts = phases.counts
    return Table(
        title="Time in the gateway",
        head=["", "n", "mean", "P50", "P90", "P99", "max"],
        sections=[section for section in sections if section.rows],
        note=f"{counts.pairs:,} requests joined with their gateway record by trace id; "
        f"{counts.requests_without_gateway:,} sent requests and {counts.gateway_without_request:,} gateway records "
        "without a partner, "
        f"{counts.duplicate_requests + counts.duplicate_gateway:,} with a repeated trace id. Means add up, percentiles "
        "do not. Time outside is below zero where the client had the last byte before the gateway noted it. "
        f"{TOO_FEW}",
    )


def _phase_rows(arms: Iterable[tuple[str, Distribution]]) -> list[list[Cell]]:
    return [
        [
            Cell(arm),
            Cell(f"{d.n:,}"),
            Cell(duration(d.mean)),
            *(_quantile_cell(d, name) for name in ("p50", "p90", "p99")),
            Cell(duration(d.max)),
        ]
        for arm, d in arms
        if d.n
    ]


def failure_table(summary: Summary) -> Table:
    """Kinds of failure over all scheduled requests."""
    rows = [
        [
            Cell(failure.outcome),
            Cell(str(failure.status or MISSING)),
            Cell(failure.error or MISSING),
            Cell(f"{failure.count:,}"),
            Cell(percent(failure.share)),
        ]
        for failure in summary.failures
    ]
    return Table(
        title="Failures",
        head=["outcome", "status", "error", "requests", "of scheduled"],
        sections=[Section(rows=rows)],
        labels=3,
    )
