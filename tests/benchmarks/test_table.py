from benchmarks import table
from benchmarks.results import LoadResult, Machine, Quantiles, Report, Scenario, Window

MACHINE = Machine(cpu="CPU", cores=2, kernel="6.1", memory_bytes=1, python="3.11.7")
SMALL = Scenario(name="S1", connections=32, requests=100, limit_s=1)
PACED = Scenario(name="S2/64", connections=64, requests=10, limit_s=1, chunks=10, ttft_ms=20, gap_ms=10)
UNPACED = Scenario(name="S3", connections=4, requests=10, limit_s=1, chunks=10)


def window(scenario: Scenario, contestant: str, *, repeat: int = 0, cpu_s: float | None, late_ms: float = 0) -> Window:
    times = Quantiles(p50=1 + late_ms, p99=2 + 2 * late_ms)
    return Window(
        repeat=repeat,
        scenario=scenario.name,
        contestant=contestant,
        load=LoadResult(
            completed=100,
            altered=0,
            failed={},
            chunks=100 * scenario.chunks,
            duration_s=2.0,
            ttft_ms=times,
            gap_ms=times if scenario.chunks else None,
            delay_ms=times if scenario.chunks else None,
        ),
        cpu_s=cpu_s,
        cpu_resolution=None if cpu_s is None else 0.01,
        rss_peak_bytes=None if cpu_s is None else 20_000_000,
        foreign_cores=0.0,
    )


def render(
    scenario: Scenario, *windows: Window, sources_changed: bool = False, unmeasured: tuple[str, ...] = ()
) -> list[list[str]]:
    """Rows of the scenario's table, and the notes after it, cut into words."""
    report = Report(
        date="2026-01-01",
        command=[],
        commit="c0ffee",
        sources_sha256="0" * 64,
        sources_changed=sources_changed,
        machine=MACHINE,
        versions={each.contestant: "1.0" for each in windows},
        scenarios=[scenario],
        windows=list(windows),
        unmeasured=[*unmeasured],
    )
    lines = table.render(report).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(scenario.name))
    return [line.split() for line in lines[start + 2 :]]


def test_ratios_are_taken_within_a_repeat_before_the_median() -> None:
    """Absolute costs drift threefold between repeats; each repeat's ratio is 2, 3 and 1.5."""
    rows = render(
        SMALL,
        *(window(SMALL, "nginx", repeat=n, cpu_s=cpu_s) for n, cpu_s in enumerate((1.0, 2.0, 3.0))),
        *(window(SMALL, "weir", repeat=n, cpu_s=cpu_s) for n, cpu_s in enumerate((2.0, 6.0, 4.5))),
    )
    assert rows[1][:5] == ["weir", "45.0000", "(20.0000–60.0000)", "2.00", "(1.50–3.00)"]


def test_delays_are_added_to_those_of_the_baseline() -> None:
    rows = render(PACED, window(PACED, "direct", cpu_s=None), window(PACED, "weir", cpu_s=0.01, late_ms=0.25))
    assert rows[0] == ["direct", "-", "-", "500", "-", "-", "-", "-", "-", "0", "0"]
    assert rows[1] == ["weir", "10.00", "-", "500", "0.25", "0.50", "0.25", "0.50", "20", "0", "0"]


def test_streams_without_pace_have_no_delay_columns() -> None:
    rows = render(UNPACED, window(UNPACED, "nginx", cpu_s=0.02))
    assert rows[0] == ["nginx", "20.00", "1.00", "500", "20", "0", "0"]


def test_a_report_on_changing_sources_says_so() -> None:
    rows = render(SMALL, window(SMALL, "weir", cpu_s=1.0), sources_changed=True)
    assert " ".join(rows[-1]) == (
        "the gateway's sources changed during the run: quote nothing of weir from this report"
    )


def test_a_window_that_is_missing_leaves_the_other_repeats_standing() -> None:
    rows = render(
        SMALL,
        *(window(SMALL, "nginx", repeat=n, cpu_s=1.0) for n in range(2)),
        window(SMALL, "weir", repeat=1, cpu_s=2.0),
        unmeasured=("S1 weir repeat 1: weir did not start; the end of its log:\nTraceback",),
    )
    assert rows[1][:3] == ["weir", "20.0000", "2.00"]
    assert " ".join(rows[-1]) == "not measured: S1 weir repeat 1: weir did not start; the end of its log:"


def broken(failed: int) -> Window:
    return Window(
        repeat=0,
        scenario="S2/64",
        contestant="weir",
        load=LoadResult(
            completed=0,
            altered=0,
            failed={"connection lost": failed},
            chunks=0,
            duration_s=1.0,
            ttft_ms=None,
            gap_ms=None,
            delay_ms=None,
        ),
        cpu_s=0.5,
        cpu_resolution=0.04,
        rss_peak_bytes=None,
        foreign_cores=0.5,
    )


def test_a_contestant_that_completes_nothing_is_shown_with_its_failures() -> None:
    rows = render(PACED, window(PACED, "direct", cpu_s=None), broken(7))
    assert rows[1] == ["weir", "-", "-", "0", "-", "-", "-", "-", "-", "7", "0"]
    notes = [" ".join(words) for words in rows[2:] if words]
    advice = "quote no P99 and no absolute figure from this report"
    assert notes == [
        "S2/64 weir repeat 1: 7 failed: connection lost",
        "CPU time is coarser than 2% in 1 of 2 windows",
        f"other processes used up to 0.50 cores, in 1 of 2 windows more than 0.1: {advice}",
    ]


def test_progress_names_cost_and_failures() -> None:
    assert table.progress(broken(7)) == "repeat 1 S2/64 weir: 0 ok, 7 failed in 1.0 s"
    assert (
        table.progress(window(PACED, "weir", cpu_s=0.01))
        == "repeat 1 S2/64 weir: 100 ok, 0 failed in 2.0 s, 10.0 µs CPU per chunk"
    )
    assert table.progress(window(SMALL, "nginx", cpu_s=0.01)).endswith("100.0 µs CPU per request")
