import pytest

from benchmarks import table
from benchmarks.results import (
    IdleResult,
    IdleScenario,
    LoadResult,
    LoadScenario,
    Machine,
    Quantiles,
    Report,
    Result,
    Scenario,
    StalledResult,
    StalledScenario,
    Window,
)
from benchmarks.wire import Shape

MACHINE = Machine(cpu="CPU", cores=2, kernel="6.1", memory_bytes=1, python="3.11.7")
SMALL = LoadScenario(name="S1", connections=32, requests=100, limit_s=1)
PACED = LoadScenario(
    name="S2/64", connections=64, requests=10, limit_s=1, shape=Shape(chunks=10, ttft_ms=20, gap_ms=10)
)
UNPACED = LoadScenario(name="S3", connections=4, requests=10, limit_s=1, shape=Shape(chunks=10))
PROMPT = LoadScenario(name="prompt", connections=1, requests=10, limit_s=1, prompt_bytes=4 << 20)
LINE = LoadScenario(name="line", connections=1, requests=10, limit_s=1, shape=Shape(chunks=1, pad_bytes=1 << 20))
IDLE = IdleScenario(name="idle", streams=5000, limit_s=1, settle_s=1)
STALLED = StalledScenario(name="stalled", clients=2, seconds=60)


def load(scenario: LoadScenario, late_ms: float = 0) -> LoadResult:
    times = Quantiles(p50=1 + late_ms, p99=2 + 2 * late_ms)
    chunks = scenario.shape.chunks
    return LoadResult(
        completed=100,
        altered=0,
        failed={},
        chunks=100 * chunks,
        duration_s=2.0,
        ttft_ms=times,
        total_ms=times,
        gap_ms=times if chunks else None,
        delay_ms=times if chunks else None,
    )


def idle(streams: int, growth_bytes: int) -> IdleResult:
    return IdleResult(
        streams=streams,
        failed={"timed out": 5000 - streams} if streams < 5000 else {},
        opened_s=2.5,
        rss_before_bytes=10_000_000,
        rss_after_bytes=10_000_000 + growth_bytes,
    )


def stalled(*taken_bytes: int, growth_bytes: int, resumed: bool = True) -> StalledResult:
    return StalledResult(
        clients=2,
        taken_bytes=[*taken_bytes],
        rss_before_bytes=10**7,
        rss_after_bytes=10**7 + growth_bytes,
        resumed=resumed,
    )


def window(
    scenario: Scenario, contestant: str, result: Result, *, repeat: int = 0, cpu_s: float | None = None
) -> Window:
    return Window(
        repeat=repeat,
        scenario=scenario.name,
        contestant=contestant,
        result=result,
        cpu_s=cpu_s,
        cpu_resolution=None if cpu_s is None else 0.01,
        rss_peak_bytes=None if cpu_s is None else 20_000_000,
        foreign_cores=0.0,
    )


def report(
    scenario: Scenario,
    *windows: Window,
    sources_changed: bool = False,
    missing: tuple[str, ...] = (),
    unmeasured: tuple[str, ...] = (),
) -> Report:
    return Report(
        date="2026-01-01",
        command=[],
        commit="c0ffee",
        sources_sha256="0" * 64,
        sources_changed=sources_changed,
        machine=MACHINE,
        versions={each.contestant: "1.0" for each in windows},
        scenarios=[scenario],
        windows=list(windows),
        missing=[*missing],
        unmeasured=[*unmeasured],
    )


def cells(text: str, title: str) -> list[str]:
    """Of the row with that title, cut into words."""
    line = next(line for line in text.splitlines() if line.startswith(f"  {title}"))
    return line.removeprefix(f"  {title}").split()


def notes(text: str) -> list[str]:
    return text.split("\n\n")[2].splitlines()


def test_ratios_are_taken_within_a_repeat_before_the_median() -> None:
    """Absolute costs drift threefold between repeats; each repeat's ratio is 2, 3 and 1.5."""
    measured = report(
        SMALL,
        *(window(SMALL, "nginx", load(SMALL), repeat=n, cpu_s=cpu_s) for n, cpu_s in enumerate((1.0, 2.0, 3.0))),
        *(window(SMALL, "weir", load(SMALL), repeat=n, cpu_s=cpu_s) for n, cpu_s in enumerate((2.0, 6.0, 4.5))),
    )
    text = table.render(measured, ranges=True)
    assert cells(text, "CPU, ms per request")[2:] == ["45.0000", "(20.0000–60.0000)"]
    assert cells(text, "CPU, ×nginx")[2:] == ["2.00", "(1.50–3.00)"]
    assert "median of 3 (min–max)" in text
    assert cells(table.render(measured), "CPU, ×nginx") == ["1.00", "2.00"]


def test_columns_stand_in_the_order_of_the_contestants() -> None:
    text = table.render(report(SMALL, window(SMALL, "weir", load(SMALL)), window(SMALL, "nginx", load(SMALL))))
    first, heading = text.split("\n\n")[1].splitlines()[:2]
    assert first.split() == ["weir", "nginx"]
    assert heading == "S1: 32 connections, small JSON answers"


def test_delays_are_over_those_of_the_baseline_and_of_the_reference() -> None:
    text = table.render(
        report(
            PACED,
            window(PACED, "direct", load(PACED)),
            window(PACED, "nginx", load(PACED, 0.1), cpu_s=0.01),
            window(PACED, "weir", load(PACED, 0.25), cpu_s=0.02),
        )
    )
    for what in ("TTFT", "chunk delay"):
        assert cells(text, f"{what} P50, ms over direct") == ["-", "0.10", "0.25"]
        assert cells(text, f"{what} P99, ms over direct") == ["-", "0.20", "0.50"]
        assert cells(text, f"{what} P99, ms over nginx") == ["-0.20", "-", "0.30"]
    assert cells(text, "CPU, µs per chunk") == ["-", "10.00", "20.00"]
    assert cells(text, "chunks/s") == ["500", "500", "500"]
    assert cells(text, "peak RSS, MB") == ["-", "20", "20"]


def test_streams_without_pace_have_no_latencies() -> None:
    text = table.render(report(UNPACED, window(UNPACED, "nginx", load(UNPACED), cpu_s=0.02)))
    assert cells(text, "CPU, µs per chunk") == ["20.00"]
    assert "TTFT" not in text


@pytest.mark.parametrize("scenario", [PROMPT, LINE])
def test_large_bodies_are_timed_as_a_whole(scenario: LoadScenario) -> None:
    text = table.render(
        report(
            scenario,
            window(scenario, "nginx", load(scenario), cpu_s=0.5),
            window(scenario, "weir", load(scenario, 0.5), cpu_s=1.0),
        )
    )
    assert cells(text, "time P50, ms") == ["1.00", "1.50"]
    assert cells(text, "time P50, ×nginx") == ["1.00", "1.50"]
    assert cells(text, "CPU, ms per request") == ["5.0000", "10.0000"]


def test_memory_is_divided_by_the_streams_that_are_held() -> None:
    text = table.render(
        report(
            IDLE,
            window(IDLE, "nginx", idle(5000, 5_000_000), cpu_s=0.1),
            window(IDLE, "weir", idle(4000, 16_000_000), cpu_s=0.1),
            window(IDLE, "broken", idle(0, 100)),
        )
    )
    assert cells(text, "RSS per stream, kB") == ["1.0", "4.0", "-"]
    assert cells(text, "RSS per stream, ×nginx") == ["1.00", "4.00", "-"]
    assert cells(text, "streams held") == ["5,000", "4,000", "0"]
    assert cells(text, "failed") == ["0", "1,000", "5,000"]
    assert notes(text) == ["idle weir repeat 1: 1000 failed: timed out", "idle broken repeat 1: 5000 failed: timed out"]


def test_a_stall_tells_who_held_the_engine_back() -> None:
    patient, greedy = (5_000_000, 9_000_000, 9_000_000), (50_000_000, 90_000_000, 130_000_000)
    text = table.render(
        report(
            STALLED,
            *(window(STALLED, "nginx", stalled(*patient, growth_bytes=100_000), repeat=n) for n in range(2)),
            *(window(STALLED, "router", stalled(*greedy, growth_bytes=10**8, resumed=False), repeat=n) for n in (0, 1)),
            window(STALLED, "fickle", stalled(*patient, growth_bytes=0), repeat=0),
            window(STALLED, "fickle", stalled(*greedy, growth_bytes=0), repeat=1),
        )
    )
    assert cells(text, "engine held back") == ["yes", "no", "1", "of", "2"]
    assert cells(text, "taken from the engine, MB") == ["9.0", "130.0", "69.5"]
    assert cells(text, "RSS growth, kB per client") == ["50", "50,000", "0"]
    assert cells(text, "fresh chunks 15 s later") == ["yes", "no", "yes"]


def test_the_memory_of_the_engine_alone_is_not_told() -> None:
    result = IdleResult(streams=5000, failed={}, opened_s=1, rss_before_bytes=None, rss_after_bytes=None)
    text = table.render(report(IDLE, window(IDLE, "direct", result)))
    assert cells(text, "RSS per stream, kB") == ["-"]


def test_a_report_on_changing_sources_says_so() -> None:
    text = table.render(report(SMALL, window(SMALL, "weir", load(SMALL), cpu_s=1.0), sources_changed=True))
    assert notes(text) == ["the gateway's sources changed during the run: quote nothing of weir from this report"]


def test_what_is_missing_leaves_the_other_repeats_standing_and_is_named() -> None:
    text = table.render(
        report(
            SMALL,
            *(window(SMALL, "nginx", load(SMALL), repeat=n, cpu_s=1.0) for n in range(2)),
            window(SMALL, "weir", load(SMALL), repeat=1, cpu_s=2.0),
            missing=("envoy is not installed; make bench-peers",),
            unmeasured=("S1 weir repeat 1: weir did not start; the end of its log:\nTraceback",),
        )
    )
    assert cells(text, "CPU, ×nginx") == ["1.00", "2.00"]
    assert notes(text) == [
        "envoy is not installed; make bench-peers",
        "not measured: S1 weir repeat 1: weir did not start; the end of its log:",
    ]


def broken(failed: int) -> Window:
    return Window(
        repeat=0,
        scenario="S2/64",
        contestant="weir",
        result=LoadResult(
            completed=0,
            altered=0,
            failed={"connection lost": failed},
            chunks=0,
            duration_s=1.0,
            ttft_ms=None,
            total_ms=None,
            gap_ms=None,
            delay_ms=None,
        ),
        cpu_s=0.5,
        cpu_resolution=0.04,
        rss_peak_bytes=None,
        foreign_cores=0.5,
    )


def test_a_contestant_that_completes_nothing_is_shown_with_its_failures() -> None:
    text = table.render(report(PACED, window(PACED, "direct", load(PACED)), broken(7)))
    assert cells(text, "CPU, µs per chunk") == ["-", "-"]
    assert cells(text, "TTFT P50, ms over direct") == ["-", "-"]
    assert cells(text, "failed") == ["0", "7"]
    advice = "quote no P99 and no absolute figure from this report"
    assert notes(text) == [
        "S2/64 weir repeat 1: 7 failed: connection lost",
        "CPU time is coarser than 2% in 1 of 2 windows",
        f"other processes used up to 0.50 cores, in 1 of 2 windows more than 0.1: {advice}",
    ]


@pytest.mark.parametrize(
    ("ended", "told"),
    [
        (broken(7), "repeat 1 S2/64 weir: 0 ok, 7 failed in 1.0 s"),
        (
            window(PACED, "weir", load(PACED), cpu_s=0.01),
            "repeat 1 S2/64 weir: 100 ok, 0 failed in 2.0 s, 10.0 µs CPU per chunk",
        ),
        (
            window(SMALL, "nginx", load(SMALL), cpu_s=0.01),
            "repeat 1 S1 nginx: 100 ok, 0 failed in 2.0 s, 100.0 µs CPU per request",
        ),
        (window(IDLE, "nginx", idle(4000, 1)), "repeat 1 idle nginx: 4000 streams held, opened in 2.5 s"),
        (
            window(STALLED, "nginx", stalled(9_000_000, 9_000_000, growth_bytes=1)),
            "repeat 1 stalled nginx: 9.0 MB taken, engine held back",
        ),
        (
            window(STALLED, "router", stalled(1, 2, 90_000_000, growth_bytes=1)),
            "repeat 1 stalled router: 90.0 MB taken, engine not held back",
        ),
    ],
)
def test_progress_names_what_was_seen(ended: Window, told: str) -> None:
    assert table.progress(ended) == told


@pytest.mark.parametrize(
    ("scenario", "heading"),
    [
        (SMALL, "S1: 32 connections, small JSON answers"),
        (PACED, "S2/64: 64 connections, streams of 10 chunks, one every 10 ms, first after 20 ms"),
        (UNPACED, "S3: 4 connections, streams of 10 chunks, no delay"),
        (PROMPT, "prompt: one connection, prompts of 4 MiB, small JSON answers"),
        (LINE, "line: one connection, streams of one line of 1 MiB"),
        (IDLE, "idle: 5000 open streams, silent after their first chunk"),
        (STALLED, "stalled: 2 clients that do not read for 60 s, the engine at full speed"),
    ],
)
def test_headings(scenario: Scenario, heading: str) -> None:
    assert table.describe(scenario) == heading
