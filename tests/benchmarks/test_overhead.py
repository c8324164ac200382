"""The whole comparison for real, with small counts: engine, load, nginx and a Python proxy as processes."""

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks import contestants, overhead
from benchmarks.results import ROOT, Report

NAMES = ["direct", "nginx", "fastapi-httpx"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.overhead", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=55, check=False)


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is missing: apt-get install nginx-light")
def test_quick_comparison_gives_a_table_and_data(tmp_path: Path) -> None:
    output = tmp_path / "report.json"
    done = run("--quick", "--only", *NAMES, "--output", str(output))
    assert done.returncode == 0, done.stderr

    report = msgspec.json.decode(output.read_bytes(), type=Report)
    assert [(window.scenario, window.contestant) for window in report.windows] == [
        (scenario.name, name) for scenario in overhead.QUICK for name in NAMES
    ]
    for window in report.windows:
        assert window.load.failed == {}
        assert window.load.altered == 0
        assert window.load.completed > 0
        assert window.load.ttft_ms is not None
        assert 0 < window.load.ttft_ms.p50 <= window.load.ttft_ms.p99
        if window.contestant == "direct":
            assert window.cpu_s is None
        else:
            assert window.cpu_s is not None
            assert window.cpu_s > 0
            assert window.rss_peak_bytes is not None
            assert window.rss_peak_bytes > 1_000_000
    assert "nginx/" in report.versions["nginx"]

    rows = {line.split()[0]: line.split() for line in _table(done.stdout, "S1:")}
    assert list(rows) == NAMES
    assert all(float(rows[name][1]) > 0 and float(rows[name][2]) > 0 for name in NAMES[1:])
    assert rows["nginx"][2] == "1.00"


def _table(text: str, title: str) -> list[str]:
    block = next(block for block in text.split("\n\n") if block.startswith(title))
    return block.splitlines()[2:]


def test_a_contestant_that_is_not_installed_is_named_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert overhead.main(["--quick", "--only", "nginx"]) == 2
    assert capsys.readouterr().err == "nginx is not installed; apt-get install nginx-light\n"


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
    windows, unmeasured = overhead.compare(["broken", "direct"], overhead.QUICK[:1], 1)
    assert [window.contestant for window in windows] == ["direct"]
    (reason,) = unmeasured
    assert reason.startswith("S1 broken repeat 1: broken did not start")
    assert reason.endswith("no such setting\n")
    assert reason in capsys.readouterr().err
