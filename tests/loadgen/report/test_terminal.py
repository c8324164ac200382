"""The report as text: aligned, 100 columns at most, complete, and harmless to a terminal."""

import pytest

from loadgen.analyze.summary import summarise
from loadgen.analyze.validity import GatewayView, JoinCounts
from loadgen.report.terminal import WIDTH, tables


def text_of(made, requests, **changes):
    return tables(summarise(made.evidence(requests, **changes)))


def row(text, label, after=""):
    """Cells of the first row with this label, after a heading."""
    lines = text[text.index(after) :].splitlines()
    line = next(line for line in lines if line.strip().startswith(label))
    return line.strip()[len(label) :].split("  ")


@pytest.mark.parametrize("arms", [1, 2, 10])
def test_no_line_is_wider_than_the_terminal(made, arms):
    requests = [made.request(i, at_ms=i, arm=f"a-rather-long-pool-name-{i % arms}") for i in range(300)]
    text = text_of(made, requests)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert all(f"a-rather-long-pool-name-{i}" in text for i in range(arms if 1 < arms < 8 else 0))


def test_arms_stand_side_by_side_with_all_requests_first(made):
    requests = [made.request(i, at_ms=i, arm="ab"[i % 2], ttft_ms=[100, 200][i % 2]) for i in range(1000)]
    text = text_of(made, requests)
    head, p99 = (
        [cell.strip() for cell in line.split("  ") if cell.strip()]
        for line in (
            next(line for line in text.splitlines() if "all requests" in line),
            next(line for line in text[text.index("\nTTFT\n") :].splitlines() if "P99" in line),
        )
    )
    assert head == ["all requests", "a", "b"]
    assert p99 == ["P99", "200 ms", "100 ms", "200 ms"]


def test_figures_line_up_under_their_heads(made):
    requests = [made.request(i, at_ms=i, arm="ab"[i % 2]) for i in range(20)]
    lines = text_of(made, requests).splitlines()
    head = next(line for line in lines if "all requests" in line)
    scheduled = next(line for line in lines if line.startswith("  scheduled"))
    assert len(head) == len(scheduled)
    assert head.index("all requests") + len("all requests") == scheduled.index("20") + 2


def test_the_verdict_and_its_remedies_come_last(made):
    text = text_of(made, [made.request(0), made.unsent(1)])
    verdict = text[text.rindex("INVALID") :]
    assert "error not_all_sent: 1 of 2 scheduled requests were sent" in verdict
    assert "→ Run for longer." in verdict


def test_a_percentile_that_was_refused_is_a_dash_with_an_explanation(made):
    text = text_of(made, [made.request(i, at_ms=i) for i in range(10)])
    assert row(text, "P99", "\nTTFT\n")[-1] == "–"
    assert "P50 needs 5, P90 29, P99 299" in text


def test_failures_and_phases_appear_when_there_are_any(made):
    requests = [made.request(i, at_ms=i) for i in range(6)]
    quiet = text_of(made, requests)
    assert "Failures" not in quiet
    assert "Time in the gateway" not in quiet
    counts = JoinCounts(**dict.fromkeys(JoinCounts.__struct_fields__, 0))
    view = GatewayView(counts=counts, pools={}, phases_ns={i: {"admit": 30_000} for i in range(6)}, outside_ns={})
    loud = text_of(made, [*requests, made.failed(6)], gateway=view)
    assert "no endpoint" in loud
    assert "admit: authentication, limits and queueing" in loud
    assert "30.0 µs" in loud


def test_errors_from_a_server_cannot_drive_the_terminal(made):
    text = text_of(made, [made.failed(0, error="\x1b[2J\x07gone\nwild " + "x" * 90, arm="\x1b[31mred")])
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    assert "gone wild" in text
    assert "x…" in text


@pytest.mark.parametrize("kind", ["empty", "all failed", "unsent"])
def test_runs_without_data_are_told_without_figures(made, kind):
    requests = {"empty": [], "all failed": [made.failed(i) for i in range(3)], "unsent": [made.unsent(0)]}[kind]
    text = text_of(made, requests, manifest=None)
    assert "without a manifest" in text
    assert "INVALID" in text
