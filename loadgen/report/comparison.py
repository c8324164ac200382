"""A comparison as text for a terminal: what differs in what was run first, then what the runs say of each metric.

Renders only; every figure comes from the `Comparison`.
"""

from collections.abc import Sequence

from loadgen.analyze.claims import Row
from loadgen.analyze.compare import Comparison
from loadgen.analyze.effects import Estimate
from loadgen.analyze.repeats import MIN_RUNS, Between
from loadgen.report.numbers import MISSING, duration, number, percent
from loadgen.report.tables import Cell, Section, Table
from loadgen.report.terminal import table_text, wrapped

_SHOWN_VALUES = 3


def comparison_text(found: Comparison) -> str:
    """The whole comparison, ending in a newline."""
    level = f" at level {found.level}" if found.level else ""
    parts = [wrapped(f"A: {found.a}, {len(found.runs_a)} runs. B: {found.b}, {len(found.runs_b)} runs{level}.")]
    parts.append(_differing(found))
    parts += [wrapped(f"Warning: {warning}") for warning in found.warnings]
    parts.append(_claims(found))
    parts.append(table_text(_runs_table(found)))
    if found.buckets:
        parts.append(table_text(_bucket_table(found)))
    parts += [wrapped(line) for line in _same_stream(found)]
    if found.within:
        parts.append(table_text(_within_table(found)))
    return "\n\n".join(parts) + "\n"


def _differing(found: Comparison) -> str:
    if not found.differing:
        return "Nothing that was recorded of hosts, versions, targets and load differs between the runs."
    rows = [[Cell(each.field), Cell(_values(each.a)), Cell(_values(each.b))] for each in found.differing]
    return table_text(
        Table(title="Differs between the runs", head=["", "A", "B"], sections=[Section(rows=rows)], labels=2)
    )


def _values(values: Sequence[str]) -> str:
    more = f" … {len(values)} values" if len(values) > _SHOWN_VALUES else ""
    return ", ".join(values[:_SHOWN_VALUES]) + more


def _claims(found: Comparison) -> str:
    runs = min(len(found.runs_a), len(found.runs_b))
    if runs < MIN_RUNS:
        return "\n".join(
            (
                wrapped(
                    f"THE RUNS DO NOT CARRY A CLAIM: {runs} a side, and {MIN_RUNS} are the least. Requests of one run "
                    "share its queues, so no number of them makes up for repeats."
                ),
                table_text(_repeats_table(found)),
            )
        )
    return table_text(_claim_table(found))


def _claim_table(found: Comparison) -> Table:
    margins = found.margins
    return Table(
        title="B against A",
        head=["", "A", "B", "B / A", "interval", "p", "p equal", "finds", f"runs for {margins.ratio:.3g}", "verdict"],
        sections=[Section(rows=[_claim_row(row) for row in found.rows])],
        note=f"{_capital(found.pairing)}. Hodges-Lehmann ratio of runs with its exact interval (of "
        "error rates the difference); p: exact permutation test over runs that there is no difference; p equal: two "
        f"one-sided tests that it is not within ±{margins.ratio:.3g} (error rate ±{percent(margins.error_rate)}); both "
        "after Holm over the rows. finds: the smallest effect that so many runs find with 90 %; runs for: how many of "
        "each side find the margin with 90 %. A and B are geometric means over runs."
        + _short_interval([row.claim.estimate for row in found.rows if row.claim]),
    )


def _short_interval(estimates: Sequence[Estimate]) -> str:
    lowest = min((estimate.confidence for estimate in estimates), default=1.0)
    return f" So few runs allow no exact 95 %: the intervals hold with {lowest:.1%}." if lowest < 0.95 else ""


def _claim_row(row: Row) -> list[Cell]:
    claim = row.claim
    figures = [MISSING] * 4
    if claim is not None:
        estimate = claim.estimate
        interval = f"{_effect(row, estimate.low)} – {_effect(row, estimate.high)}"
        figures = [_effect(row, estimate.value), interval, _p(claim.p_holm), _p(claim.equivalence_p_holm)]
    return [
        Cell(row.label),
        Cell(_side(row, row.a, row.between_a)),
        Cell(_side(row, row.b, row.between_b)),
        *map(Cell, figures),
        Cell(_effect(row, row.detectable)),
        Cell(_count(row.repeats_needed)),
        Cell(row.verdict),
    ]


def _repeats_table(found: Comparison) -> Table:
    rows = [
        [
            Cell(row.label),
            Cell(_side(row, row.a, row.between_a)),
            Cell(_side(row, row.b, row.between_b)),
            Cell(_count(row.repeats_needed)),
        ]
        for row in found.rows
    ]
    return Table(
        title="What the runs show, without a claim",
        head=["", "A", "B", f"runs for {found.margins.ratio:.3g}"],
        sections=[Section(rows=rows)],
        note=f"{_capital(found.pairing)}. runs for: how many of each side find a difference of the "
        "margin with 90 %, as far as so few runs tell their spread.",
    )


def _runs_table(found: Comparison) -> Table:
    sides = (("A", found.runs_a, "a"), ("B", found.runs_b, "b"))
    sections = [
        Section(
            heading=f"{side}: {getattr(found, name)}",
            rows=[
                [Cell(run), *(Cell(_value(row, getattr(row, name)[at])) for row in found.rows)]
                for at, run in enumerate(runs)
            ],
        )
        for side, runs, name in sides
    ]
    return Table(title="Run by run", head=["", *(row.label for row in found.rows)], sections=sections)


def _bucket_table(found: Comparison) -> Table:
    sections = [
        Section(heading=f"{bucket} prompt tokens", rows=[_bucket_row(row) for row in rows])
        for bucket, rows in found.buckets.items()
    ]
    return Table(
        title="By prompt length",
        head=["", "A", "B", "B / A", "interval", "p", f"runs for {found.margins.ratio:.3g}", "verdict"],
        sections=sections,
        note="Buckets of the planned prompt length; p after Holm over this table, whose many rows take more runs.",
    )


def _bucket_row(row: Row) -> list[Cell]:
    cells = _claim_row(row)
    return [*cells[:6], *cells[-2:]]


def _same_stream(found: Comparison) -> list[str]:
    if not found.paired:
        return [f"Request by request: {found.pairing}."]
    if found.same_stream_ratio is not None:
        ratio = found.same_stream_ratio
        text = (
            f"Request by request, the same one in both runs of a pair: B's TTFT is {ratio.value:.3f} times A's at the "
            f"median ({ratio.low:.3f} – {ratio.high:.3f}, {ratio.confidence:.1%}, over {len(found.same_stream)} pairs)."
        )
        return [text]
    return [
        f"Request by request, B's {pair.b} over A's {pair.a}: TTFT is {pair.ratio.value:.3f} times A's at the median "
        f"of {pair.requests:,} requests ({pair.ratio.low:.3f} – {pair.ratio.high:.3f}, {found.within_label})."
        for pair in found.same_stream
        if pair.ratio is not None
    ]


def _within_table(found: Comparison) -> Table:
    labels = {row.metric: row.label for row in found.rows}
    rows = [
        [
            Cell(f"{each.side} {each.run}"),
            Cell(labels[each.metric]),
            Cell(duration(each.found.value)),
            Cell(f"{duration(each.found.low)} – {duration(each.found.high)}"),
            Cell(f"{each.found.block:,}"),
        ]
        for each in found.within
    ]
    return Table(
        title="Within single runs",
        head=["", "", "value", "interval", "block"],
        sections=[Section(rows=rows)],
        labels=2,
        note=f"{_capital(found.within_label)}; block: requests drawn together. These intervals say "
        "nothing about another run of the same system, so sides must not be compared by them.",
    )


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _side(row: Row, values: Sequence[float | None], between: Between | None) -> str:
    if between is not None:
        return _value(row, between.value)
    known = [value for value in values if value is not None]
    return _value(row, sum(known) / len(known)) if row.scale == "difference" and known else MISSING


def _value(row: Row, value: float | None) -> str:
    if row.unit == "s":
        return duration(value)
    return percent(value) if row.unit == "share" else number(value)


def _effect(row: Row, effect: float | None) -> str:
    if effect is None:
        return MISSING
    return f"{effect:.3f}" if row.scale == "ratio" else f"{effect * 100:+.2f} pp"


def _count(repeats: int | None) -> str:
    return MISSING if repeats is None else f"{repeats:,}"


def _p(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"
