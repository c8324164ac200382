import msgspec
import pytest

from benchmarks.clients import page
from benchmarks.clients.results import Accuracy, Cell, Cost, Level, Must, Rejected, Report, Spread, Truth
from benchmarks.results import Machine

SLOW, FAST = Level(rate_per_s=20, seconds=20), Level(rate_per_s=200, seconds=10)
ACCURACY = Accuracy(
    requests=400,
    scheduled=400,
    unanswered=0,
    rate_ratio=1.001,
    cv=1.01,
    idc=0.9,
    joined="id",
    arrival_error_ms=Spread(p50=0.1, p99=0.4, max=2),
    ttft_bias_ms=0.12,
    ttft_error_p99_ms=0.3,
    gap_error_p99_ms=0.2,
    marked=400,
)
COST = Cost(
    cpu_s=0.8,
    chunks=40_000,
    window_s=20,
    rss_start_bytes=50_000_000,
    rss_load_bytes=45_000_000,
    start_s=0.8,
    wall_s=22,
    foreign_cores=0.01,
)
TRUTH = Truth(real_time=True, streams=400, late_ms=Spread(p50=0.3, p99=1.2, max=3))
CELL = Cell(repeat=0, level=SLOW, client="weir", accuracy=ACCURACY, truth=TRUTH, cost=COST, disturbed=None)


def with_accuracy(cell: Cell, **changed: object) -> Cell:
    return msgspec.structs.replace(cell, accuracy=msgspec.structs.replace(cell.accuracy, **changed))


def report(*cells: Cell, levels: tuple[Level, ...] = (SLOW,), **more: object) -> Report:
    return Report(
        date="2026-12-01T00:00:00+00:00",
        command=[],
        commit="abc",
        machine=Machine(cpu="CPU", cores=2, kernel="6", memory_bytes=1, python="3.11"),
        versions={"weir": "weir-llm 1", "other": "other 2"},
        levels=list(levels),
        cells=list(cells),
        musts=page.judge(cells, levels),
        **{"rejected": [], "missing": [], "unmeasured": [], **more},
    )


def musts(*cells: Cell) -> dict[str, Must]:
    return {must.name: must for must in page.judge(cells, [SLOW])}


def test_what_weir_promises_is_kept_up_to_its_limit() -> None:
    found = musts(CELL)
    assert len(found) == len(page.PROMISES)
    assert all(must.passed for must in found.values())
    assert found["CPU, ms per 1,000 chunks"].value == 20
    assert found["peak RSS, MB"].value == 50
    assert found["rate off the schedule, %"].value == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("rate off the schedule, %", {"rate_ratio": 0.99}),
        ("requests not sent, %", {"requests": 399}),
        ("requests without every mark, %", {"marked": 0}),
        ("arrival error P99, ms", {"arrival_error_ms": Spread(p50=0, p99=1.1, max=1.1)}),
        ("TTFT error P99, ms", {"ttft_error_p99_ms": 0.51}),
        ("gap error P99, ms", {"gap_error_p99_ms": None}),
    ],
)
def test_a_figure_over_its_limit_or_missing_breaks_its_promise(name: str, changed: dict[str, object]) -> None:
    broken = [must.name for must in musts(with_accuracy(CELL, **changed)).values() if not must.passed]
    assert broken == [name]


def test_costs_are_promised_too() -> None:
    dear = msgspec.structs.replace(COST, cpu_s=1.0, rss_start_bytes=70_000_000, start_s=1.2)
    broken = [must.name for must in musts(msgspec.structs.replace(CELL, cost=dear)).values() if not must.passed]
    assert broken == ["CPU, ms per 1,000 chunks", "peak RSS, MB", "start to first request, s"]


def test_the_median_of_the_repeats_is_judged_and_of_weir_alone() -> None:
    bad = with_accuracy(CELL, ttft_error_p99_ms=9.0)
    assert musts(CELL, CELL, bad)["TTFT error P99, ms"].passed
    assert page.judge([msgspec.structs.replace(CELL, client="other")], [SLOW]) == []


def test_a_disturbed_cell_counts_only_where_there_is_no_quiet_one() -> None:
    loud = msgspec.structs.replace(with_accuracy(CELL, ttft_error_p99_ms=9.0), disturbed="loud")
    assert musts(CELL, loud, loud)["TTFT error P99, ms"].value == 0.3
    assert musts(loud)["TTFT error P99, ms"].value == 9


def test_the_table_has_a_column_for_each_client_and_says_what_is_missing() -> None:
    other = with_accuracy(
        msgspec.structs.replace(CELL, client="other", level=FAST), arrival_error_ms=None, ttft_bias_ms=-1.5
    )
    text = page.table(report(CELL, other, levels=(SLOW, FAST)))
    lines = text.splitlines()
    assert [line.split() for line in lines if line.startswith("  arrival error P99")] == [
        ["arrival", "error", "P99,", "ms", "0.40", "–"],
        ["arrival", "error", "P99,", "ms", "–", "–"],
    ]
    assert [line.split()[-1] for line in lines if line.startswith("  TTFT bias")] == ["–", "-1.50"]
    assert "20 requests/s for 20 s, 100 chunks each, one every 10 ms" in lines
    assert "kept    20/s  TTFT error P99, ms: 0.30, at most 0.5" in lines


def test_what_must_be_known_before_quoting_is_said() -> None:
    loud = msgspec.structs.replace(CELL, disturbed="other processes used 0.30 cores, at most 0.1")
    unprivileged = msgspec.structs.replace(loud, truth=msgspec.structs.replace(TRUTH, real_time=False))
    rejected = [Rejected(repeat=0, rate_per_s=20, client="weir", reason="loud")]
    text = page.table(report(unprivileged, rejected=rejected, missing=["x is not installed"], unmeasured=["y:\nlog"]))
    assert "disturbed, quote nothing of it: weir at 20/s, repeat 1: other processes used 0.30 cores" in text
    assert "1 runs did not count" in text
    assert "the server had no real-time priority" in text
    assert "x is not installed" in text
    assert text.endswith("not measured: y:")


def test_progress_names_the_run_and_what_else_went_on() -> None:
    line = page.progress(CELL)
    assert line.startswith("repeat 1 20/s weir: rate 1.0010, arrival error P99, ms 0.40, ")
    assert line.endswith("foreign 0.01 cores, server 1.2 ms late at P99")


def test_the_page_is_made_anew_between_its_marks_and_again_gives_the_same() -> None:
    text = "# Measurement\n\n<!-- clients -->\nold\n<!-- /clients -->\n\nafter\n"
    broken = report(with_accuracy(CELL, ttft_error_p99_ms=0.7))
    once = page.render_into(text, broken, "client-x.json")
    assert once.startswith("# Measurement\n\n<!-- clients -->\n")
    assert once.endswith("\n<!-- /clients -->\n\nafter\n")
    assert "old" not in once
    assert "| TTFT error P99, ms | 0.70 | – |" in once
    assert "| TTFT error P99, ms | 0.5 | 0.70 **broken** |" in once
    assert "`client-x.json`" in once
    assert page.render_into(once, broken, "client-x.json") == once


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="put both where the table belongs"):
        page.render_into("# Measurement\n", report(CELL), "x")
