"""Charts select and never compute: their data is the summary's, and their tables say the same in words."""

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.series import SCATTER_POINTS
from loadgen.analyze.summary import summarise
from loadgen.analyze.validity import GatewayView, JoinCounts
from loadgen.report.charts import PHASE_BARS, TABLE_ROWS, _every, chart_data, charts
from protocol.records import PHASES


@pytest.fixture
def requests(made):
    return [made.request(i, at_ms=100 * i, arm="ab"[i % 2], ttft_ms=[100, 200][i % 2]) for i in range(100)]


def view(spent):
    counts = JoinCounts(**dict.fromkeys(JoinCounts.__struct_fields__, 0))
    return GatewayView(counts=counts, pools={}, phases_ns=spent, outside_ns={})


def chart(summary, name):
    [found] = [each for each in charts(summary) if each.name == name]
    return found


def texts(table):
    return [[cell.text for cell in row] for part in table.sections for row in part.rows]


def test_there_is_a_chart_of_phases_only_where_records_were_joined(made, requests):
    without = [each.name for each in charts(summarise(made.evidence(requests)))]
    assert len(without) == len(set(without)) == 7
    joined = summarise(made.evidence(requests, gateway=view({0: {"admit": 30_000}})))
    assert [each.name for each in charts(joined)] == [*without, PHASE_BARS]


def test_wide_charts_leave_no_gap_in_rows_of_two(made, requests):
    for gateway in (None, view({0: {"admit": 30_000}})):
        wide = [each.wide for each in charts(summarise(made.evidence(requests, gateway=gateway)))]
        before_first_wide = wide.index(True)
        assert before_first_wide % 2 == 0
        assert all(wide[before_first_wide:])


def test_a_curves_table_ends_where_every_arm_is_complete(made, requests):
    for name, axis in (("ttft-cdf", "TTFT ≤"), ("e2e-cdf", "end to end ≤"), ("chunk-gap", "gap ≤")):
        [table] = chart(summarise(made.evidence(requests)), name).tables
        assert table.head == [axis, "a", "b"]
        rows = texts(table)
        assert 0 < len(rows) <= TABLE_ROWS + 2
        assert rows[-1][1:] == ["100%", "100%"]
    [table] = chart(summarise(made.evidence(requests)), "ttft-cdf").tables
    assert texts(table)[0] == ["100 ms", "100%", "0%"]


def test_a_table_for_each_arm_says_how_ttft_went_slice_by_slice(made, requests):
    tables = chart(summarise(made.evidence(requests)), "ttft-time").tables
    assert [table.head[0] for table in tables] == ["a: intended at", "b: intended at"]
    rows = texts(tables[1])
    assert sum(int(row[1]) for row in rows) == 50
    assert {row[2] for row in rows if row[1] != "0"} == {"200 ms"}
    assert rows[0][0].startswith("0 – ")


def test_a_thinned_scatter_says_so_and_a_whole_one_does_not(made):
    whole = [made.request(i, at_ms=i) for i in range(10)]
    assert "shown" not in chart(summarise(made.evidence(whole)), "ttft-time").caption
    many = [made.request(i, at_ms=i) for i in range(SCATTER_POINTS + 5)]
    caption = chart(summarise(made.evidence(many)), "ttft-time").caption
    assert "2,000 of 2,005 shown, the slowest all of them." in caption


def test_load_is_told_in_bins_of_the_summarys_width(made, requests):
    summary = summarise(made.evidence(requests))
    sends = chart(summary, "sends")
    assert sends.caption == "The load as it was offered. Bins of 1 s."
    rows = texts(sends.tables[0])
    assert rows[0] == ["0 s", "5.00", "5.00"]
    assert len(rows) == len(summary.series.t_s)
    assert texts(chart(summary, "tokens").tables[0])[1][1:] == ["55.0", "55.0"]
    assert chart(summary, "in-flight").tables[0].head == ["from", "a", "b"]


def test_phases_show_the_means_of_arms_that_have_any_and_a_dash_where_a_phase_was_not_entered(made, requests):
    spent = {i: {"admit": 20_000 + 20_000 * (i % 4 == 0)} for i in range(0, 100, 2)}
    summary = summarise(made.evidence(requests, gateway=view(spent)))
    [table] = chart(summary, PHASE_BARS).tables
    assert table.head == ["phase", "a"]
    rows = dict(texts(table))
    assert list(rows) == list(PHASES)
    assert (rows["admit"], rows["relay"]) == ("30.0 µs", "–")
    assert chart_data(summary)["phase_means_s"]["a"]["admit"] == pytest.approx(30e-6)


def test_the_data_is_the_summarys_own_and_survives_json(made, requests):
    summary = summarise(made.evidence(requests))
    data = chart_data(summary)
    for name in ("arms", "ttft_cdf", "e2e_cdf", "chunk_gap_cdf", "ttft_over_time", "series"):
        assert data[name] is getattr(summary, name)
    assert (data["phase_names"], data["phase_means_s"]) == (PHASES, {})
    assert msgspec.json.decode(msgspec.json.encode(data))["arms"] == ["a", "b"]


@pytest.mark.parametrize("kind", ["empty", "all failed"])
def test_runs_without_data_have_charts_with_empty_tables(made, kind):
    requests = [made.failed(i) for i in range(3)] if kind == "all failed" else []
    summary = summarise(made.evidence(requests, gateway=view({})))
    for name in ("ttft-cdf", "e2e-cdf", "chunk-gap"):
        assert texts(chart(summary, name).tables[0]) == []
    [phases] = chart(summary, PHASE_BARS).tables
    assert (phases.head, texts(phases)) == (["phase"], [[phase] for phase in PHASES])


@given(st.integers(0, 5000))
def test_a_few_rows_stand_for_many_evenly_and_always_with_the_first_and_the_last(n):
    found = list(_every(n))
    assert found == sorted(set(found))
    assert len(found) <= min(n, 2 * TABLE_ROWS + 1)
    if n:
        assert (found[0], found[-1]) == (0, n - 1)
        steps = {later - earlier for earlier, later in itertools.pairwise(found[:-1])}
        assert len(steps) <= 1
