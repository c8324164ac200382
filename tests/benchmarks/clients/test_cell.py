"""One run of one client, with processes of its own."""

import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.clients import cell
from benchmarks.clients.ours import LEAN
from benchmarks.clients.results import Cost, Level, Spread, Truth
from benchmarks.contestants import ContestantError

QUIET = Cost(
    cpu_s=1.0,
    chunks=50_000,
    window_s=10,
    rss_start_bytes=20_000_000,
    rss_load_bytes=30_000_000,
    start_s=0.5,
    wall_s=12,
    foreign_cores=0.05,
)
PUNCTUAL = Truth(real_time=True, streams=500, late_ms=Spread(p50=0.3, p99=1.2, max=2.5))


def test_a_quiet_cell_is_not_disturbed() -> None:
    assert cell.disturbed(PUNCTUAL, QUIET) is None


def test_other_work_and_a_late_server_disturb() -> None:
    import msgspec

    busy = msgspec.structs.replace(QUIET, foreign_cores=0.3)
    late = msgspec.structs.replace(PUNCTUAL, late_ms=Spread(p50=0.3, p99=5.0, max=9))
    assert cell.disturbed(PUNCTUAL, busy) == "other processes used 0.30 cores, at most 0.1"
    assert cell.disturbed(late, QUIET) == "the server itself was 5.0 ms late at P99, at most 2"
    assert cell.disturbed(late, busy) == f"{cell.disturbed(PUNCTUAL, busy)}; {cell.disturbed(late, QUIET)}"


def test_what_a_run_cost_is_told_per_thousand_chunks() -> None:
    assert QUIET.cpu_ms_per_1000_chunks == 20
    assert QUIET.rss_peak_bytes == 30_000_000


def test_the_clocks_differ_by_what_they_show() -> None:
    assert abs(time.time_ns() - time.monotonic_ns() - cell.wall_less_monotonic_ns()) < 5_000_000


def test_a_client_that_fails_says_so_with_its_last_words(tmp_path: Path) -> None:
    failing = replace(LEAN, command=lambda _: [sys.executable, "-c", "raise SystemExit('no such wheel')"])
    with pytest.raises(ContestantError, match=r"lean ended with status 1:\nno such wheel"):
        cell.measure(failing, Level(rate_per_s=1, seconds=1), tmp_path, repeat=0)


def test_a_client_that_sends_nothing_gives_no_figures(tmp_path: Path) -> None:
    idle = replace(LEAN, command=lambda _: [sys.executable, "-c", ""])
    with pytest.raises(ContestantError, match="nothing was sent"):
        cell.measure(idle, Level(rate_per_s=1, seconds=1), tmp_path, repeat=0)
