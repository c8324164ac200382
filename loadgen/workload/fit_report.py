"""A fit as one HTML page to look at: the log beside traffic drawn from what was fitted to it.

The page loads nothing and needs no script; charts are inline SVG. It shows thinned points and quantiles of the log, so
it is for those who may see the log: publish the workload file, not this page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from html import escape
from itertools import pairwise

import numpy as np

from loadgen.workload import arrivals
from loadgen.workload.description import ColumnFit, Workload
from loadgen.workload.fitting.rates import spread_over_grid
from loadgen.workload.sharing import reuse
from loadgen.workload.svg import Axis, Chart
from loadgen.workload.traffic import Floats, Ints, Requests

_DRAWS = 20
"""The band of a chart is the middle 90 % of them."""
_POINTS = 2000
"""Most shown of a scatter."""
_BINS = 240
"""Of the rate over time."""
_STRETCHES = 48
"""Of what drifts over time."""
_SHARES = np.concatenate((np.arange(0.5, 99, 0.5), np.linspace(99, 99.95, 20))) / 100

Drawn = list[Requests]


def fit_page(requests: Requests, workload: Workload) -> str:
    """The page of a workload that was fitted to these requests."""
    duration_s = workload.arrivals.duration_s
    times_s = _times_s(workload, requests)
    drawn = [
        workload.draw(np.random.default_rng(seed), start_s=0.0, duration_s=duration_s, rate_scale=1.0)
        for seed in range(_DRAWS)
    ]
    columns: list[tuple[str, Callable[[Requests], Ints]]] = [
        ("prompt", lambda some: np.maximum(1, some.prompt_tokens)),
        ("output", lambda some: np.maximum(1, some.output_tokens)),
    ]
    charts = [_rates(workload, times_s, drawn), _gaps(workload, times_s), _dispersion(times_s, drawn, duration_s)]
    for name, column in columns:
        log, models = column(requests), [column(some) for some in drawn]
        charts += [_cumulative(name, log, models[0]), _quantiles(name, log, models)]
        charts.append(_drift(name, times_s, log, drawn[0].at_s, models[0], duration_s))
    charts += [_joint("The log", requests, requests), _joint("One draw", drawn[0], requests)]
    if workload.sharing is not None:
        charts.append(_shared_text(times_s, requests, drawn[0], duration_s))
    return _PAGE.format(
        title=escape(workload.name),
        style=_STYLE,
        subline=escape(_subline(workload, requests)),
        verdicts=_verdicts(workload),
        charts="\n".join(chart.html() for chart in charts),
    )


def _times_s(workload: Workload, requests: Requests) -> Floats:
    """Of the log, off its grid as they were fitted."""
    fit = workload.arrivals.fit
    if fit is None or not fit.grid_s:
        return requests.at_s
    return spread_over_grid(requests.at_s, fit.grid_s, np.random.default_rng(0))


def _subline(workload: Workload, requests: Requests) -> str:
    parts = [f"{len(requests)} requests in {workload.arrivals.duration_s:g} s"]
    if workload.source is not None:
        parts += [workload.source.dataset, workload.source.licence, f"sha256 {workload.source.file_sha256[:16]}…"]
    return " · ".join(parts)


def _verdicts(workload: Workload) -> str:
    rows = []
    fit = workload.arrivals.fit
    if fit is not None:
        notes = [f"gaps KS {fit.gap_ks:g}", f"{len(workload.arrivals.rates)} rates"]
        if fit.grid_s:
            notes.append(f"times lie on a grid of {fit.grid_s:g} s and were spread evenly over it")
        notes += [f"a regular swing of {period:g} s" for period in fit.periods_s]
        rows.append(("arrivals", fit.verdict, "; ".join(notes)))
    for name, column in (
        ("prompt tokens", workload.lengths.prompt_fit),
        ("output tokens", workload.lengths.output_fit),
    ):
        if column is not None:
            rows.append((name, column.verdict, _column_notes(column)))
    if workload.sharing is not None and workload.sharing.fit is not None:
        shared = workload.sharing.fit
        ratios = (
            f"an unbounded cache hits {shared.trace_hit_ratio:.1%} in the log, {shared.model_hit_ratio:.1%} in a draw"
        )
        rows.append(("shared prefixes", shared.verdict, ratios))
    return "".join(
        f'<tr><th>{escape(name)}</th><td class="{_class(verdict)}">{escape(verdict)}<p>{escape(notes)}</p></td></tr>'
        for name, verdict, notes in rows
    )


def _column_notes(fit: ColumnFit) -> str:
    if fit.best is None:
        return f"most frequent length {fit.largest_atom:.1%}"
    law = type(fit.best).__struct_config__.tag
    return (
        f"best single law {law}: KS {fit.ks:g}, AD/n {fit.ad:g}, held-out log-likelihood {fit.held_out:g},"
        f" P50/P90/P99 {fit.p50_error:+.1%} {fit.p90_error:+.1%} {fit.p99_error:+.1%};"
        f" most frequent length {fit.largest_atom:.1%}"
    )


def _class(verdict: str) -> str:
    return "good" if verdict.startswith("adequate") else "bad" if verdict.startswith("not fittable") else "warn"


def _band(rows: Iterable[Floats]) -> tuple[Floats, Floats]:
    low, high = np.nanquantile(np.array(list(rows)), (0.05, 0.95), axis=0)
    return low, high


def _rates(workload: Workload, times_s: Floats, drawn: Drawn) -> Chart:
    known = workload.arrivals
    edges = np.linspace(0, known.duration_s, _BINS + 1)
    width = float(edges[1])

    def per_s(some: Floats) -> Floats:
        return np.histogram(some, bins=edges)[0] / width

    log = per_s(times_s)
    low, high = _band(per_s(some.at_s) for some in drawn)
    chart = Chart(
        title="Rate over time",
        caption=f"Requests per second in bins of {width:.3g} s; the steps are what was fitted.",
        x=Axis(label="s", low=0.0, high=known.duration_s),
        y=Axis.over("requests/s", log, high, zero=True),
    )
    chart.band((edges[1:] + edges[:-1]) / 2, low, high, style="b-model", name="90 % of draws")
    chart.line((edges[1:] + edges[:-1]) / 2, log, style="l-log", name="log")
    starts = [rate.start_s for rate in known.rates]
    chart.steps([*starts, known.duration_s], [rate.per_s for rate in known.rates], style="l-model", name="fitted rate")
    return chart


def _gaps(workload: Workload, times_s: Floats) -> Chart:
    gaps = np.diff(arrivals.rescale(times_s, workload.arrivals.curve()))
    log = np.quantile(gaps / gaps.mean(), _SHARES)
    runs = [
        np.diff(workload.arrivals.residual.marks(np.random.default_rng(s), float(len(gaps)))) for s in range(_DRAWS)
    ]
    # A residual whose marks are few leaves runs of different lengths, never none: gaps have a mean of 1.
    low, high = _band(np.quantile(run, _SHARES) for run in runs if len(run))
    middle = np.quantile(np.concatenate(runs), _SHARES)
    chart = Chart(
        title="Gaps, quantile by quantile",
        caption="On the scale on which the rate is 1. On the line where log and residual agree.",
        x=Axis.over("residual, mean gaps", middle, log=True),
        y=Axis.over("log, mean gaps", log, middle, log=True),
    )
    return _agreement(chart, middle, log, low, high)


def _agreement(chart: Chart, model: Floats, log: Floats, low: Floats, high: Floats) -> Chart:
    chart.band(model, low, high, style="b-model", name="90 % of draws")
    ends = [max(chart.x.low, chart.y.low), min(chart.x.high, chart.y.high)]
    chart.line(ends, ends, style="l-even", name="equal")
    chart.points(model, log, style="p-log", name="log")
    return chart


def _dispersion(times_s: Floats, drawn: Drawn, duration_s: float) -> Chart:
    windows = np.geomspace(0.1, max(0.2, duration_s / 8), 25)

    def indices(some: Floats) -> Floats:
        return np.array([arrivals.dispersion(some, window, duration_s) for window in windows.tolist()])

    log = indices(times_s)
    low, high = _band(indices(some.at_s) for some in drawn)
    chart = Chart(
        title="Dispersion of counts",
        caption="Variance over mean of the number of requests in windows; 1 for a Poisson process.",
        x=Axis.over("window, s", windows, log=True),
        y=Axis.over("variance / mean", log, low, high, [1.0], log=True),
    )
    chart.band(windows, low, high, style="b-model", name="90 % of draws")
    chart.line(windows, np.ones(len(windows)), style="l-even", name="Poisson")
    chart.line(windows, log, style="l-log", name="log")
    return chart


def _cumulative(name: str, log: Ints, model: Ints) -> Chart:
    shares = np.linspace(0, 1, 400)
    of_log, of_model = np.quantile(log, shares), np.quantile(model, shares)
    chart = Chart(
        title=f"{name.capitalize()} tokens, cumulative",
        caption="Share of requests with at most so many tokens.",
        x=Axis.over("tokens", of_log, of_model, log=True),
        y=Axis(label="share", low=0.0, high=1.0),
    )
    chart.line(of_model, shares, style="l-model", name="one draw")
    chart.line(of_log, shares, style="l-log", name="log")
    return chart


def _quantiles(name: str, log: Ints, models: list[Ints]) -> Chart:
    of_log, middle = np.quantile(log, _SHARES), np.quantile(np.concatenate(models), _SHARES)
    low, high = _band(np.quantile(model, _SHARES) for model in models)
    chart = Chart(
        title=f"{name.capitalize()} tokens, quantile by quantile",
        caption="On the line where log and draws agree; the last points are P99 and above.",
        x=Axis.over("draws, tokens", middle, log=True),
        y=Axis.over("log, tokens", of_log, low, high, log=True),
    )
    return _agreement(chart, middle, of_log, low, high)


def _drift(name: str, log_s: Floats, log: Ints, model_s: Floats, model: Ints, duration_s: float) -> Chart:
    edges = np.linspace(0, duration_s, _STRETCHES + 1)
    middles = (edges[1:] + edges[:-1]) / 2

    def over_time(times_s: Floats, tokens: Ints, share: float) -> Floats:
        cuts = np.searchsorted(times_s, edges)
        return np.array([np.quantile(tokens[a:b], share) if b > a else np.nan for a, b in pairwise(cuts)])

    curves = [(share, over_time(log_s, log, share), over_time(model_s, model, share)) for share in (0.5, 0.9)]
    chart = Chart(
        title=f"{name.capitalize()} tokens over time",
        caption=f"Median and P90 in stretches of {edges[1]:.3g} s.",
        x=Axis(label="s", low=0.0, high=duration_s),
        y=Axis.over("tokens", *(curve for _, *pair in curves for curve in pair), log=True),
    )
    for share, of_log, of_model in curves:
        chart.line(middles, of_model, style="l-model", name="one draw" if share == 0.5 else "")
        chart.line(middles, of_log, style="l-log", name="log" if share == 0.5 else "")
    return chart


def _joint(title: str, some: Requests, log: Requests) -> Chart:
    chosen = np.random.default_rng(0).permutation(len(some))[:_POINTS]
    chart = Chart(
        title=f"{title}: prompt and output together",
        caption=f"{len(chosen)} of {len(some)} requests.",
        x=Axis.over("prompt tokens", np.maximum(1, log.prompt_tokens), log=True),
        y=Axis.over("output tokens", np.maximum(1, log.output_tokens), log=True),
    )
    style = "p-log" if some is log else "p-model"
    chart.points(np.maximum(1, some.prompt_tokens[chosen]), np.maximum(1, some.output_tokens[chosen]), style=style)
    return chart


def _shared_text(times_s: Floats, log: Requests, model: Requests, duration_s: float) -> Chart:
    edges = np.linspace(0, duration_s, _STRETCHES + 1)

    def over_time(at_s: Floats, some: Requests) -> Floats:
        shared, _ = reuse(some)
        known, all_tokens = (np.histogram(at_s, bins=edges, weights=w)[0] for w in (shared, some.prompt_tokens))
        shares: Floats = known / np.maximum(1, all_tokens)
        return shares

    of_log, of_model = over_time(times_s, log), over_time(model.at_s, model)
    chart = Chart(
        title="Shared text over time",
        caption="Share of prompt tokens that a cache without bounds would have had.",
        x=Axis(label="s", low=0.0, high=duration_s),
        y=Axis.over("share", of_log, of_model, zero=True),
    )
    middles = (edges[1:] + edges[:-1]) / 2
    chart.line(middles, of_model, style="l-model", name="one draw")
    chart.line(middles, of_log, style="l-log", name="log")
    return chart


_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #17202a; --soft: #52606d; --line: #d5dbe1;
  --log: #c4500a; --model: #0072b2; --good: #14693a; --bad: #a11616; --warn: #7a4d00; }
@media (prefers-color-scheme: dark) { :root { --page: #11161c; --card: #1a2129; --ink: #e6ebf0; --soft: #a3b1bf;
  --line: #344150; --log: #ff9a4d; --model: #56b4f9; --good: #6fdc9c; --bad: #ff9d9d; --warn: #f0c070; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 16px 20px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
.brand { font-weight: 700; margin: 0; } .brand span, .soft, figcaption p { color: var(--soft); font-weight: 400; }
h1 { font-size: 21px; margin: 14px 0 4px; overflow-wrap: anywhere; } h2 { font-size: 15px; margin: 0; }
figcaption p { font-size: 13px; margin: 2px 0 8px; }
.scroll, figure { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { padding: 7px 14px; text-align: left; vertical-align: top; } th { white-space: nowrap; }
tr + tr > * { border-top: 1px solid var(--line); }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
td { font-weight: 600; } td p { margin: 0; font-weight: 400; color: var(--ink); }
.charts { display: grid; gap: 16px; margin: 18px 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 390px), 1fr)); }
figure { margin: 0; min-width: 0; padding: 14px 16px 8px; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 11px; }
.grid { stroke: var(--line); stroke-width: .6; }
polyline { fill: none; stroke-width: 1.4; stroke-linejoin: round; }
.l-log { stroke: var(--log); } .l-model { stroke: var(--model); }
.l-even { stroke: var(--soft); stroke-dasharray: 4 3; }
.b-model { fill: var(--model); fill-opacity: .22; }
path.p-log, path.p-model { fill: none; stroke-width: 3; stroke-linecap: round; stroke-opacity: .55; }
path.p-log { stroke: var(--log); } path.p-model { stroke: var(--model); }
.keys { display: flex; flex-wrap: wrap; gap: 4px 16px; list-style: none; margin: 4px 0 6px; padding: 0;
  font-size: 13px; }
.keys li::before { content: ""; display: inline-block; width: 16px; height: 4px; border-radius: 2px; margin-right: 6px;
  vertical-align: middle; background: var(--soft); }
.keys .l-log::before, .keys .p-log::before { background: var(--log); }
.keys .l-model::before, .keys .b-model::before { background: var(--model); }
.keys .b-model::before { opacity: .4; height: 10px; } .keys .l-even::before { height: 2px; }
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>weir fit {title}</title>
<style>{style}</style>
</head>
<body>
<p class="brand">weir <span>fit report</span></p>
<h1>{title}</h1>
<p class="soft">{subline}</p>
<div class="scroll"><table>{verdicts}</table></div>
<div class="charts">
{charts}
</div>
<p class="soft">Orange is the log, blue what is drawn from the workload. Points are single requests of the log:
publish the workload file, not this page.</p>
</body>
</html>
"""
