"""The charts of a report: what each shows, its figures as a table, and the data that the page draws.

Selects from a `Summary`; never computes a figure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from loadgen.analyze.series import Curve
from loadgen.analyze.summary import Phases, Summary
from loadgen.report.numbers import duration, number, percent
from loadgen.report.tables import Cell, Section, Table
from protocol.records import PHASES

TABLE_ROWS = 20
PHASE_BARS = "phase-bars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """`name` is the id that the page's script draws into; `x` names the horizontal axis in the legend."""

    name: str
    title: str
    caption: str
    x: str
    wide: bool = False
    tables: Sequence[Table]


def charts(summary: Summary) -> list[Chart]:
    """Every chart in the order shown; gateway phases only where records were joined."""
    shown = [
        Chart(
            name="ttft-cdf",
            title="Time to first token, cumulative",
            caption="Share of requests whose first token came within this time of the intended send.",
            x="TTFT ≤",
            tables=[_curve_table(summary.ttft_cdf, "TTFT, cumulative", "TTFT ≤")],
        ),
        Chart(
            name="ttft-time",
            title="Time to first token over the run",
            caption=_scatter_caption(summary),
            x="intended at",
            tables=_slice_tables(summary),
        ),
        Chart(
            name="e2e-cdf",
            title="End to end, cumulative",
            caption="Share of successful requests finished within this time of the intended send.",
            x="end to end ≤",
            tables=[_curve_table(summary.e2e_cdf, "End to end, cumulative", "end to end ≤")],
        ),
        Chart(
            name="chunk-gap",
            title="Chunk gaps, share that are longer",
            caption="Pooled over all streams, both axes logarithmic: a stall shows as a tail to the right.",
            x="gap >",
            tables=[_curve_table(summary.chunk_gap_cdf, "Chunk gaps, cumulative", "gap ≤")],
        ),
        _load_chart(summary, "in-flight", "Requests in flight", "in_flight", "Mean of each bin."),
        _load_chart(
            summary,
            "tokens",
            "Output tokens per second",
            "output_tokens_per_s",
            "Successful responses; each one's tokens are shared out over its reads by the events they completed.",
        ),
        # Seventh of two to a row.
        replace(
            _load_chart(summary, "sends", "Requests sent per second", "sent_per_s", "The load as it was offered."),
            wide=True,
        ),
    ]
    return [*shown, _phase_chart(summary.phases)] if summary.phases else shown


def chart_data(summary: Summary) -> dict[str, object]:
    """What the page's script reads."""
    phases = summary.phases
    return {
        "arms": summary.arms,
        "ttft_cdf": summary.ttft_cdf,
        "e2e_cdf": summary.e2e_cdf,
        "chunk_gap_cdf": summary.chunk_gap_cdf,
        "ttft_over_time": summary.ttft_over_time,
        "series": summary.series,
        "phase_names": PHASES,
        "phase_means_s": _means(phases) if phases else {},
    }


def _means(phases: Phases) -> dict[str, dict[str, float | None]]:
    return {
        arm: {phase: distribution.mean for phase, distribution in of_arm.items()}
        for arm, of_arm in phases.arms.items()
        if any(distribution.n for distribution in of_arm.values())
    }


def _curve_table(curve: Curve, title: str, x: str) -> Table:
    rows = [
        [Cell(duration(curve.x[i])), *(Cell(percent(shares[i])) for shares in curve.share.values())]
        for i in _every(len(curve.x))
    ]
    return Table(title=title, head=[x, *curve.share], sections=[Section(rows=rows)])


def _every(n: int) -> Iterable[int]:
    """At most about `TABLE_ROWS` of `n` positions, evenly, always with the last."""
    step = max(1, n // TABLE_ROWS)
    return sorted({*range(0, n, step), n - 1}) if n else ()


def _scatter_caption(summary: Summary) -> str:
    thinned = [s for s in summary.ttft_over_time.values() if len(s.t_s) < s.n]
    note = f" {sum(len(s.t_s) for s in thinned):,} of {sum(s.n for s in thinned):,} shown, the slowest all of them."
    return "One point per request, at its intended send time." + (note if thinned else "")


def _slice_tables(summary: Summary) -> list[Table]:
    return [
        Table(
            title=f"TTFT over the run, {arm}",
            head=[f"{arm}: intended at", "n", "median", "max"],
            sections=[
                Section(
                    rows=[
                        [
                            Cell(f"{number(s.start_s)} – {number(s.end_s)} s"),
                            Cell(f"{s.n:,}"),
                            Cell(duration(s.median_s)),
                            Cell(duration(s.max_s)),
                        ]
                        for s in scatter.slices
                    ]
                )
            ],
        )
        for arm, scatter in summary.ttft_over_time.items()
    ]


def _load_chart(summary: Summary, name: str, title: str, field: str, caption: str) -> Chart:
    series = summary.series
    columns: list[list[float]] = [getattr(load, field) for load in series.arms.values()]
    rows = [
        [Cell(f"{number(series.t_s[i])} s"), *(Cell(number(column[i])) for column in columns)]
        for i in _every(len(series.t_s))
    ]
    table = Table(title=title, head=["from", *series.arms], sections=[Section(rows=rows)])
    return Chart(name=name, title=title, caption=f"{caption} Bins of {series.bin_s} s.", x="from", tables=[table])


def _phase_chart(phases: Phases) -> Chart:
    means = _means(phases)
    rows = [[Cell(phase), *(Cell(duration(of_arm[phase])) for of_arm in means.values())] for phase in PHASES]
    return Chart(
        name=PHASE_BARS,
        title="Mean time in the gateway, by phase",
        caption="Means, because they add up. Press a phase to leave it out and see the others larger.",
        x="",
        wide=True,
        tables=[Table(title="Mean time by phase", head=["phase", *means], sections=[Section(rows=rows)])],
    )
