"""A summary as one HTML file that needs nothing else: no network, no other file, no build step.

Every text is escaped on its way in, and the data block cannot end its script element. Tables are plain HTML and
complete without JavaScript; the charts add to them. Renders only; charts are drawn by the vendored uPlot, which is
50 KB, draws to canvas (thousands of points), and has log axes, zoom and a live legend.
"""

from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from string import Template

import msgspec

from loadgen.analyze.summary import ALL, NO_ARM, Group, Summary
from loadgen.analyze.validity import Reason
from loadgen.report.charts import PHASE_BARS, Chart, chart_data, charts
from loadgen.report.numbers import duration, load, number, percent
from loadgen.report.tables import (
    Cell,
    Section,
    Table,
    bucket_table,
    columns,
    counts_table,
    failure_table,
    latency_table,
    phase_table,
)

UPLOT_VERSION = "1.6.32"


def page(summary: Summary) -> str:
    """The report page of one run."""
    validity = summary.validity
    return Template(_asset("page.html")).substitute(
        title=escape(f"weir report {summary.run_id or ''}".strip()),
        css=_asset("page.css"),
        vendor_css=_asset("vendor/uPlot.min.css"),
        js=_asset("page.js"),
        # Every copy of the library carries its licence.
        vendor_js=f"/*\n{_asset('vendor/LICENSE')}*/\n{_asset('vendor/uPlot.iife.min.js')}",
        uplot_version=UPLOT_VERSION,
        verdict=validity.verdict,
        verdict_class=validity.verdict.lower(),
        headline=escape(_headline(summary)),
        subline=escape(_subline(summary)),
        reasons=_reasons(validity.reasons),
        cards=_cards(summary),
        facts=_facts(summary),
        counts=_section(counts_table(summary), "counts"),
        charts="\n".join(_figure(chart) for chart in charts(summary)),
        latency=_section(latency_table(summary), "latency"),
        buckets=_section(bucket_table(summary), "buckets"),
        phases=_section(phase_table(summary.phases), "phases") if summary.phases else "",
        failures=_section(failure_table(summary), "failures") if summary.failures else "",
        definitions="".join(
            f"<dt>{escape(d.label)} <code>{escape(d.name)}</code></dt><dd>{escape(d.meaning)}</dd>"
            for d in summary.definitions
        ),
        data=embedded_json(chart_data(summary)),
    )


def embedded_json(value: object) -> str:
    """JSON for a script element: no `<` is left that could close it or open a comment."""
    return msgspec.json.encode(value).decode().replace("<", "\\u003c")


def _asset(name: str) -> str:
    return files("loadgen.report").joinpath(name).read_text(encoding="utf-8")


def _headline(summary: Summary) -> str:
    overall = summary.groups[0]
    ttft = overall.latencies.ttft_s
    tail = f"P99 {duration(ttft.p99.value)}" if ttft.p99.value is not None else f"max {duration(ttft.max)}"
    if ttft.p50.value is None:
        return f"Not enough data: {ttft.n:,} of {overall.scheduled:,} scheduled requests received a token"
    return (
        f"TTFT P50 {duration(ttft.p50.value)}, {tail} over {ttft.n:,} requests at "
        f"{number(summary.scheduled_per_s)}/s; {percent(overall.outcomes.get('ok', 0) / overall.scheduled)} succeeded"
    )


def _subline(summary: Summary) -> str:
    pools = [arm for arm in summary.arms if arm not in (ALL, NO_ARM)]
    arms = f"arms {', '.join(pools)}" if pools else "no arms"
    return (
        f"{summary.model or 'unknown model'}, {arms}, run {summary.run_id or 'without a manifest'}. Latency counts "
        "from the intended send time. One run: intervals hold within it, and differences between arms need repeats."
    )


def _reasons(reasons: Sequence[Reason]) -> str:
    items = "".join(
        f'<li><span class="{reason.severity}">{reason.severity}: {escape(reason.kind.replace("_", " "))}.</span> '
        f"{escape(reason.text)}<em>→ {escape(reason.remedy)}</em></li>"
        for reason in reasons
    )
    return f'<ul class="reasons">{items}</ul>' if items else ""


def _cards(summary: Summary) -> str:
    """One card per arm. Requests without an arm have no card of their own unless there is nothing else."""
    shown = [(name, group) for name, group in columns(summary) if name not in (ALL, NO_ARM)] or columns(summary)[:1]
    return f'<div class="cards">{"".join(_card(name, group, summary) for name, group in shown)}</div>'


def _card(name: str, group: Group, summary: Summary) -> str:
    ttft = group.latencies.ttft_s
    tail = ("TTFT P99", ttft.p99.value) if ttft.p99.value is not None else ("TTFT max", ttft.max)
    figures = (
        ("TTFT P50", duration(ttft.p50.value)),
        (tail[0], duration(tail[1])),
        ("TPOT P50", duration(group.latencies.tpot_s.p50.value)),
        ("tokens/s", number(group.rates.output_tokens_per_s)),
    )
    colour = summary.arms.index(name) if name in summary.arms else 0
    return (
        f'<section class="card" style="--arm:var(--a{colour})"><h2>{escape(name)}</h2><dl>'
        + "".join(f"<div><dt>{term}</dt><dd>{escape(value)}</dd></div>" for term, value in figures)
        + "</dl></section>"
    )


def _facts(summary: Summary) -> str:
    facts = [
        ("Target", summary.url or "unknown"),
        ("Schedule", f"{summary.source}, seed {summary.seed}, {number(summary.schedule_s)} s"),
        ("Load", load(summary)),
        ("In flight", f"{number(summary.in_flight_mean)} on average, {summary.in_flight_max:,} at most"),
    ]
    more = [("Command", " ".join(summary.command)), *summary.host.items(), *summary.versions.items()]
    return (
        f'<dl class="facts">{_terms(facts)}</dl><details><summary>Command, host and versions</summary>'
        f'<dl class="facts">{_terms(more)}</dl></details>'
    )


def _terms(pairs: Iterable[tuple[str, str]]) -> str:
    return "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in pairs)


def _section(table: Table, name: str) -> str:
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{escape(table.title)}</h2>{_table(table)}{note}</section>'
    )


def _figure(chart: Chart) -> str:
    title = escape(chart.title)
    if chart.name == PHASE_BARS:
        keys = '<div class="keys" id="phase-keys" role="group" aria-label="Phases shown"></div>'
        body = f'{keys}<div id="{PHASE_BARS}"></div>'
        reset = ""
    else:
        body = (
            f'<div class="plot" id="{chart.name}" role="group" aria-label="{title}; figures in the table below" '
            f'data-x="{escape(chart.x)}"></div>'
        )
        reset = f'<button type="button" data-reset="{chart.name}" aria-label="Reset {title}">Reset</button>'
    return (
        f'<figure{_class("wide", chart.wide)}><figcaption><div class="chart-head"><h3>{title}</h3>{reset}</div>'
        f"<p>{escape(chart.caption)}</p></figcaption>{body}<details><summary>Figures as a table</summary>"
        f"{''.join(map(_table, chart.tables))}</details></figure>"
    )


def _table(table: Table) -> str:
    head = "".join(
        f'<th scope="col"{_class("label", column < table.labels)}>{escape(name)}</th>'
        for column, name in enumerate(table.head)
    )
    bodies = "".join(_body(section, table) for section in table.sections)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(table.title)}"><table class="figures">'
        f"<thead><tr>{head}</tr></thead>{bodies}</table></div>"
    )


def _body(section: Section, table: Table) -> str:
    heading = (
        f'<tr><th class="group" scope="rowgroup" colspan="{len(table.head)}">{escape(section.heading)}</th></tr>'
        if section.heading
        else ""
    )
    return f"<tbody>{heading}{''.join(_row(row, table.labels) for row in section.rows)}</tbody>"


def _row(row: Sequence[Cell], labels: int) -> str:
    first = f'<th scope="row" class="label">{escape(row[0].text)}</th>'
    rest = "".join(
        f"<td{_class('label', column < labels)}>{_cell(cell)}</td>" for column, cell in enumerate(row[1:], 1)
    )
    return f"<tr>{first}{rest}</tr>"


def _class(name: str, applies: bool) -> str:
    return f' class="{name}"' if applies else ""


def _cell(cell: Cell) -> str:
    detail = f'<span class="detail">{escape(cell.detail)}</span>' if cell.detail else ""
    return f"{escape(cell.text)}{detail}"
