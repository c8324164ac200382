"""The whole comparison for real, with small counts: engine, load, nginx and a Python proxy as processes."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from benchmarks import contestants, overhead
from benchmarks.results import ROOT, IdleResult, LoadResult, Report, Result, StalledScenario

NAMES = ["direct", "nginx"]
needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing: apt-get install nginx-light")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.overhead", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


@needs_nginx
def test_quick_comparison_gives_a_table_and_data(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    done = run("--quick", "--only", *NAMES, "--output", str(output))
    assert done.returncode == 0, done.stderr

    report = msgspec.json.decode(output.read_bytes(), type=Report)
    assert [(window.scenario, window.contestant) for window in report.windows] == [
        (scenario.name, name) for scenario in overhead.QUICK for name in NAMES
    ]
    for window in report.windows:
        check(window.result)
        if window.contestant == "direct":
            assert window.cpu_s is None
        else:
            assert window.cpu_s is not None
            assert window.rss_peak_bytes is not None
            assert window.rss_peak_bytes > 1_000_000
    assert "nginx/" in report.versions["nginx"]

    assert rows(done.stdout, "CPU, ×nginx")[0] == ["-", "1.00"]
    assert rows(done.stdout, "engine held back") == [["yes", "yes"]]


@needs_nginx
def test_a_python_proxy_costs_more_than_nginx() -> None:
    done = run("--quick", "--scenarios", "S1", "--only", "nginx", "fastapi-httpx")
    assert done.returncode == 0, done.stderr
    ((reference, ratio),) = rows(done.stdout, "CPU, ×nginx")
    assert reference == "1.00"
    assert float(ratio.replace(",", "")) > 5


def rows(table: str, title: str) -> list[list[str]]:
    """The cells of every row of that title."""
    return [line.removeprefix(f"  {title}").split() for line in table.splitlines() if line.startswith(f"  {title}")]


def check(result: Result) -> None:
    if isinstance(result, LoadResult):
        check_load(result)
    elif isinstance(result, IdleResult):
        assert (result.streams, result.failed) == (200, {})
    else:
        # The engine wrote what the buffers on the way hold, and no more.
        assert result.held_back
        assert result.resumed
        assert 100_000 < result.taken_bytes[-1] < 100_000_000


def check_load(result: LoadResult) -> None:
    assert (result.failed, result.altered) == ({}, 0)
    assert result.completed > 0
    assert result.ttft_ms is not None
    assert 0 < result.ttft_ms.p50 <= result.ttft_ms.p99


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--stalled-seconds", "0"], "--stalled-seconds must be more than 0"),
        (["--quick", "--scenarios", "S2/256"], "--quick has none of these scenarios"),
        (["--only", "nobody"], "invalid choice: 'nobody'"),
    ],
)
def test_senseless_arguments_are_refused(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        overhead.main(arguments)
    assert complaint in capsys.readouterr().err


def test_a_contestant_that_is_not_installed_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert overhead.main(["--quick", "--only", "nginx"]) == 2
    assert capsys.readouterr().err == "nginx is not installed; apt-get install nginx-light\n"


def test_without_names_a_peer_that_is_not_installed_is_named_and_the_others_take_part(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    envoy = replace(contestants.CONTESTANTS["envoy"], version=("/nowhere/python",))
    for name in set(contestants.CONTESTANTS) - {"direct"}:
        monkeypatch.delitem(contestants.CONTESTANTS, name)
    monkeypatch.setitem(contestants.CONTESTANTS, "envoy", envoy)
    assert overhead.main(["--quick", "--scenarios", "S1"]) == 0
    out, err = capsys.readouterr()
    remedy = "envoy is not installed; make bench-peers"
    assert remedy in err
    assert remedy in out
    assert "repeat 1 S1 direct: 1600 ok, 0 failed" in err


def test_a_contestant_that_does_not_start_is_reported_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = contestants.Contestant(
        name="broken",
        version=(sys.executable, "--version"),
        install="",
        command=(sys.executable, "-c", "raise SystemExit('no such setting')"),
    )
    monkeypatch.setitem(contestants.CONTESTANTS, "broken", broken)
    scenarios = [overhead.QUICK[0], StalledScenario(name="stalled", clients=1, seconds=0.1)]
    windows, unmeasured = overhead.compare(["broken", "direct"], scenarios, 1)
    told = capsys.readouterr().err
    assert [(window.scenario, window.contestant) for window in windows] == [("S1", "direct"), ("stalled", "direct")]
    for scenario, reason in zip(scenarios, unmeasured, strict=True):
        assert reason.startswith(f"{scenario.name} broken repeat 1: broken did not start")
        assert reason.endswith("no such setting\n")
        assert reason in told
