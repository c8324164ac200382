"""Tables as cells: which figures stand where, for one arm, for several, and for none at all."""

import pytest

from loadgen.analyze.summary import summarise
from loadgen.analyze.validity import GatewayView, JoinCounts
from loadgen.report.tables import (
    LATENCIES,
    PHASE_MEANINGS,
    bucket_table,
    columns,
    counts_table,
    failure_table,
    latency_table,
    phase_table,
)
from protocol.records import PHASES


def texts(rows):
    return [[cell.text for cell in row] for row in rows]


def section(table, heading):
    [found] = [each for each in table.sections if each.heading == heading]
    return texts(found.rows)


@pytest.fixture
def two_arms(made):
    """100 requests, every other one of arm b and slower; 6 more that failed."""
    requests = [made.request(i, at_ms=100 * i, arm="ab"[i % 2], ttft_ms=[100, 200][i % 2]) for i in range(100)]
    return [*requests, *(made.failed(i, at_ms=100 * i) for i in range(100, 106))]


def test_arms_stand_beside_all_requests_only_where_there_are_several(made, two_arms):
    one = summarise(made.evidence([made.request(0)]))
    assert [name for name, _ in columns(one)] == ["all requests"]
    several = summarise(made.evidence(two_arms))
    assert [name for name, _ in columns(several)] == ["all requests", *several.arms]
    assert {"a", "b"} <= set(several.arms)
    empty = summarise(made.evidence([]))
    assert [name for name, _ in columns(empty)] == ["all requests"]
    assert counts_table(empty).sections[0].rows[0][1].text == "0"


def test_counts_add_up_over_the_arms(made, two_arms):
    table = counts_table(summarise(made.evidence(two_arms)))
    a = table.head.index("a")
    rows = {row[0]: row for row in section(table, "Requests")}
    assert rows["scheduled"][1] == "106"
    assert rows["sent"][a] == "50"
    assert rows["succeeded"][1] == "100 (94.34%)"
    assert rows["succeeded"][a] == "50 (100%)"
    assert rows["error"][1] == "6 (5.66%)"
    tokens = {row[0]: row for row in section(table, "Tokens of successful requests")}
    assert tokens["prompt tokens"][1] == "10,000"
    assert tokens["of them cached"][1] == "0 (0%)"
    assert tokens["output tokens"][a] == f"{11 * 50}"


def test_a_share_of_nothing_is_only_a_count(made):
    table = counts_table(summarise(made.evidence([made.failed(0)])))
    tokens = {row[0]: row for row in section(table, "Tokens of successful requests")}
    assert tokens["of them cached"][1] == "0"


def test_every_latency_is_there_with_its_interval_or_the_reason_it_was_refused(made, two_arms):
    summary = summarise(made.evidence(two_arms))
    table = latency_table(summary)
    assert len(table.sections) == len(LATENCIES) - 1
    assert "TTFO" not in {part.heading for part in table.sections}
    assert all(len(row) == len(table.head) for part in table.sections for row in part.rows)
    [ttft] = [part for part in table.sections if part.heading == "TTFT"]
    rows = {row[0].text: row for row in ttft.rows}
    a, b = table.head.index("a"), table.head.index("b")
    assert (rows["n"][a].text, rows["P50"][a].text, rows["P50"][b].text) == ("50", "100 ms", "200 ms")
    assert rows["P50"][a].detail == "100 ms – 100 ms"
    assert rows["P99"][a].text == "–"
    assert rows["P99"][a].detail == summary.group("a").latencies.ttft_s.p99.refused
    assert rows["max"][1].text == "200 ms"
    assert summary.interval in table.note


def test_buckets_have_a_row_for_each_arm_that_has_requests_in_them(made):
    requests = [
        made.request(0, arm="a", prompt_tokens_planned=100),
        made.request(1, arm="b", prompt_tokens_planned=100),
        made.request(2, arm="b", prompt_tokens_planned=5000),
    ]
    table = bucket_table(summarise(made.evidence(requests)))
    assert [part.heading for part in table.sections] == ["≤ 128 prompt tokens", "> 4096 prompt tokens"]
    assert [row[0] for row in texts(table.sections[0].rows)] == ["all requests", "a", "b"]
    assert [row[:3] for row in texts(table.sections[1].rows)] == [["all requests", "1", "1"], ["b", "1", "1"]]
    assert all(len(row) == len(table.head) for part in table.sections for row in part.rows)


def test_phases_come_in_order_with_their_meaning_and_leave_out_what_never_happened(made):
    requests = [made.request(i, at_ms=i, arm="ab"[i % 2]) for i in range(10)]
    counts = JoinCounts(**{**dict.fromkeys(JoinCounts.__struct_fields__, 0), "pairs": 1234, "duplicate_gateway": 2})
    spent = {i: {"admit": 30_000, "relay": 2_000_000} for i in range(0, 10, 2)}
    view = GatewayView(counts=counts, pools={}, phases_ns=spent, outside_ns=dict.fromkeys(spent, -5_000))
    table = phase_table(summarise(made.evidence(requests, gateway=view)).phases)
    assert [part.heading for part in table.sections] == [
        f"admit: {PHASE_MEANINGS['admit']}",
        f"relay: {PHASE_MEANINGS['relay']}",
        "before the engine has the request: receive to send",
        "outside the gateway: network, kernel and client",
    ]
    assert texts(table.sections[0].rows) == [["a", "5", "30.0 µs", "30.0 µs", "–", "–", "30.0 µs"]]
    assert table.sections[3].rows[0][-1].text == "-5.00 µs"
    assert "1,234 requests joined" in table.note
    assert "2 with a repeated trace id" in table.note
    assert PHASE_MEANINGS.keys() == set(PHASES)


def test_failures_are_told_with_what_is_missing_as_a_dash(made):
    requests = [made.request(0), made.failed(1), made.failed(2), made.unsent(3), made.failed(4, error=None)]
    table = failure_table(summarise(made.evidence(requests)))
    assert table.labels == 3
    rows = texts(table.sections[0].rows)
    assert rows[0] == ["error", "503", "no endpoint", "2", "40.00%"]
    assert ["error", "503", "–", "1", "20.00%"] in rows
    assert [row[1] for row in rows if row[0] == "unsent"] == ["–"]


def test_the_first_token_of_the_answer_is_told_where_reasoning_came_before_it(made):
    thinking = [made.request(i, at_ms=i, first_answer_ns=round((i + 300) * 1e6)) for i in range(10)]
    (ttfo,) = [part for part in latency_table(summarise(made.evidence(thinking))).sections if part.heading == "TTFO"]
    assert {row[0].text: row[1].text for row in ttfo.rows}["P50"] == "300 ms"
