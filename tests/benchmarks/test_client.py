"""The comparison for real, in small, with weir and the bare client; and what becomes of a disturbed run."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import client
from benchmarks.clients.ours import LEAN, Contestant
from benchmarks.clients.results import Accuracy, Cell, Cost, Level, Report, Spread, Truth
from benchmarks.contestants import ContestantError
from benchmarks.results import ROOT

LEVEL = Level(rate_per_s=20, seconds=2)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.client", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


def test_weir_and_the_bare_client_are_measured_against_the_truth(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    done = run("--only", "weir", "lean", "--quick", "--tries", "1", "--output", str(output))
    assert done.returncode in {0, 1}, done.stderr
    report = msgspec.json.decode(output.read_bytes(), type=Report)
    assert [(cell.client, cell.level) for cell in report.cells] == [("weir", LEVEL), ("lean", LEVEL)]
    for cell in report.cells:
        check(cell)
    weir, lean = report.cells
    assert weir.accuracy.marked == weir.accuracy.scheduled == lean.accuracy.scheduled
    assert {must.rate_per_s for must in report.musts} == {20}
    assert "arrival error P99, ms" in done.stdout


def check(cell: Cell) -> None:
    """However busy the machine is: the right requests are joined, and errors are those of a client, not of the join."""
    accuracy, cost = cell.accuracy, cell.cost
    assert accuracy.requests == accuracy.scheduled == cell.truth.streams
    assert (accuracy.joined, accuracy.unanswered) == ("id", 0)
    assert accuracy.rate_ratio == pytest.approx(1, abs=0.05)
    assert accuracy.arrival_error_ms is not None
    # The two clocks of a run directory are joined to within this.
    assert -0.5 < accuracy.arrival_error_ms.p50 < 100
    assert accuracy.ttft_bias_ms is not None
    assert -0.2 < accuracy.ttft_bias_ms < 100
    assert accuracy.gap_error_p99_ms is not None
    assert cost.chunks == 100 * accuracy.requests
    assert cost.cpu_s is not None
    assert cost.cpu_s > 0
    assert cost.rss_load_bytes > 10_000_000
    assert 0 < cost.start_s < cost.wall_s


def test_a_client_that_is_not_installed_and_was_asked_for_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = Contestant(
        name="gone",
        version=("/nonexistent/python",),
        install="make load-peers",
        command=LEAN.command,
        read=LEAN.read,
    )
    monkeypatch.setitem(client.CONTESTANTS, "gone", gone)
    assert client.main(["--only", "gone"]) == 2
    versions, missing = client.installed(client.CONTESTANTS, None)
    assert {"weir", "lean"} <= versions.keys()
    assert "gone is not installed; make load-peers" in missing


def test_rates_have_their_own_times_unless_one_is_given() -> None:
    def levels(*arguments: str) -> list[tuple[float, float]]:
        return [(level.rate_per_s, level.seconds) for level in client._parse(arguments)[1]]

    assert levels() == [(20, 20), (100, 15), (200, 10)]
    assert levels("--rates", "200", "50") == [(200, 10), (50, 10)]
    assert levels("--seconds", "3", "--rates", "100") == [(100, 3)]
    assert levels("--quick") == [(20, 2)]
    assert client._parse([])[0].repeats == 3
    assert client._parse(["--quick"])[0].repeats == 1
    for wrong in (["--repeats", "0"], ["--tries", "0"], ["--rates", "0"], ["--seconds", "-1"]):
        with pytest.raises(SystemExit):
            client._parse(wrong)


class Runs:
    """Gives these results one after the other: foreign cores of a run, or why it failed."""

    def __init__(self, *results: float | str) -> None:
        self._results = list(results)

    def __call__(self, contestant: Contestant, level: Level, _: Path, *, repeat: int) -> Cell:
        result = self._results.pop(0)
        if isinstance(result, str):
            raise ContestantError(result)
        return measured(contestant.name, level, repeat, result)


def measured(name: str, level: Level, repeat: int, foreign_cores: float) -> Cell:
    nothing = Spread(p50=0, p99=0, max=0)
    return Cell(
        repeat=repeat,
        level=level,
        client=name,
        accuracy=Accuracy(
            requests=40,
            scheduled=40,
            unanswered=0,
            rate_ratio=1,
            cv=1,
            idc=1,
            joined="id",
            arrival_error_ms=nothing,
            ttft_bias_ms=0,
            ttft_error_p99_ms=0,
            gap_error_p99_ms=0,
            marked=None,
        ),
        truth=Truth(real_time=True, streams=40, late_ms=nothing),
        cost=Cost(
            cpu_s=1,
            chunks=4000,
            window_s=2,
            rss_start_bytes=1,
            rss_load_bytes=1,
            start_s=1,
            wall_s=3,
            foreign_cores=foreign_cores,
        ),
        disturbed=f"{foreign_cores:g} cores" if foreign_cores > 0.1 else None,
    )


def comparison(*results: float | str) -> client.Comparison:
    found = client.Comparison(tries=3, run=Runs(*results))
    found.measure(LEAN, LEVEL, Path("schedule"), repeat=0)
    return found


def test_a_quiet_run_is_kept_at_once() -> None:
    found = comparison(0.05)
    assert [cell.cost.foreign_cores for cell in found.cells] == [0.05]
    assert (found.rejected, found.unmeasured) == ([], [])


def test_a_disturbed_run_is_rejected_and_made_again() -> None:
    found = comparison(0.5, "no answer", 0.0)
    assert [cell.cost.foreign_cores for cell in found.cells] == [0.0]
    assert [each.reason for each in found.rejected] == ["no answer", "0.5 cores"]


def test_of_disturbed_runs_only_the_quietest_is_kept_and_says_so() -> None:
    found = comparison(0.5, 0.2, 0.4)
    assert [(cell.cost.foreign_cores, cell.disturbed) for cell in found.cells] == [(0.2, "0.2 cores")]
    assert [each.reason for each in found.rejected] == ["0.5 cores", "0.4 cores"]


def test_a_client_that_always_fails_is_not_measured() -> None:
    found = comparison("no", "no", "never")
    assert found.cells == []
    assert found.unmeasured == ["lean at 20/s: never"]
    assert len(found.rejected) == 3


def test_the_page_is_rendered_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    report = Report(
        date="2026-12-01",
        command=[],
        commit="abc",
        machine=client.results.describe_machine(),
        versions={"lean": "1"},
        levels=[LEVEL],
        cells=[measured("lean", LEVEL, 0, 0)],
        rejected=[],
        musts=[],
        missing=[],
        unmeasured=[],
    )
    client.results.save(report, tmp_path / "client.json")
    page = tmp_path / "measurement.md"
    page.write_text("<!-- clients -->\n<!-- /clients -->\n", encoding="utf-8")
    monkeypatch.setattr(client, "PAGE", page)
    assert client.main(["--page", str(tmp_path / "client.json")]) == 0
    assert "| CPU, ms per 1,000 chunks | 250.0 |" in page.read_text(encoding="utf-8")
