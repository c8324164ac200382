"""The real demo as a process of its own: what it leaves behind, and what Ctrl-C leaves of it, at any moment."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from loadgen import record
from loadgen.analyze.summary import Summary
from tests.weir.conftest import Marked
from weir.demo import _start_pool
from weir.processes import Processes, StartError

ROOT = Path(__file__).parents[2]
STARTING = "starting 4 stand-in engines and the gateway"


@contextmanager
def demo(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "weir", "demo", *map(str, arguments)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def line_with(process: subprocess.Popen[str], words: str) -> str:
    """The next line on stderr that has these words."""
    assert process.stderr is not None
    return next(line for line in process.stderr if words in line)


def eventually(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs coreutils")
def test_the_whole_loop_ends_in_a_sealed_run_with_a_report_and_a_verdict(tmp_path: Path, marked: Marked) -> None:
    out = tmp_path / "demo"
    with demo("--duration", "3", "--rate-scale", "3", "--out", out) as process:
        shown, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert marked.pids() == []
    run = out / "run"
    assert shown.splitlines()[-1] == str(run / "report.html")
    assert (run / "report.html").read_text().startswith("<!doctype html>")
    assert re.search(r"^(IN)?VALID\b", shown, re.MULTILINE)
    checked = subprocess.run(
        ["sha256sum", "-c", "SHA256SUMS"], cwd=run, capture_output=True, text=True, check=False, timeout=30
    )
    assert checked.returncode == 0, checked.stdout
    assert record.verify(run) == []

    manifest = record.read_manifest(run)
    assert (manifest.status, manifest.run_id, manifest.outcomes) == ("complete", "demo", {"ok": manifest.scheduled})
    summary = msgspec.json.decode((run / "summary.json").read_bytes(), type=Summary)
    assert set(summary.arms) == {"vllm", "sglang"}
    assert summary.phases is not None
    assert summary.phases.counts.pairs == manifest.scheduled > 10


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_stop_while_things_start_leaves_nothing_and_says_so(
    tmp_path: Path, marked: Marked, number: signal.Signals
) -> None:
    with demo("--out", tmp_path / "demo") as process:
        line_with(process, STARTING)
        eventually(lambda: len(marked.pids()) > 1)
        process.send_signal(number)
        shown, said = process.communicate(timeout=20)
    assert (process.returncode, shown) == (130, "")
    assert said.strip() == "weir demo: stopped before any traffic was sent; everything it started has ended"
    assert marked.pids() == []
    assert not (tmp_path / "demo" / "run").exists()


def waits_for(process: subprocess.Popen[str], number: signal.Signals) -> bool:
    """Whether a signal has not reached the process yet."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [pending] = re.findall(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return bool(int(pending, 16) & 1 << (number - 1))


def finished(url: str) -> float:
    """Requests that the gateway is done with, the calibration included."""
    text = httpx.get(f"{url}/metrics", trust_env=False).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("weir_requests_total{"))


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]],
    ids=["SIGINT", "SIGINT twice", "SIGTERM twice"],
)
def test_a_stop_while_traffic_runs_leaves_sealed_evidence_and_a_report(
    tmp_path: Path, marked: Marked, numbers: list[signal.Signals]
) -> None:
    run = tmp_path / "demo" / "run"
    with demo("--duration", "60", "--rate-scale", "12", "--out", run.parent) as process:
        url = line_with(process, "gateway at ").split()[2].rstrip(",")
        eventually(lambda: finished(url) > 3)
        for number in numbers:
            process.send_signal(number)
            # Two of a kind that wait for the process together reach it as one.
            eventually(lambda number=number: not waits_for(process, number))
        began_s = time.monotonic()
        shown, said = process.communicate(timeout=40)
        took_s = time.monotonic() - began_s
    assert process.returncode == 130, said
    assert marked.pids() == []
    assert record.verify(run) == []
    manifest = record.read_manifest(run)
    assert manifest.status == "interrupted"
    assert manifest.outcomes["ok"] > 0
    assert manifest.outcomes["unsent"] > 0
    assert sum(manifest.outcomes.values()) == manifest.scheduled
    assert shown.splitlines()[-1] == str(run / "report.html")
    assert (run / "report.html").is_file()
    assert "\nINVALID\n" in shown
    if len(numbers) > 1:
        # What is in flight would have had 10 s.
        assert took_s < 5


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--out", "taken"], "[Errno 17] File exists: 'taken'"),
        (["--out", "taken/file/demo"], "[Errno 20] Not a directory: 'taken/file/demo'"),
        (["--out", "new", "--duration", "99999"], "azure-conv-2023 describes 3501.9 s: start_s + duration_s is 100599"),
    ],
)
def test_what_cannot_start_is_one_line_and_exit_2(
    tmp_path: Path,
    marked: Marked,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    from weir.cli import main

    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    monkeypatch.chdir(tmp_path)
    assert main(["demo", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"weir demo: {reason}\n")
    assert not (tmp_path / "new").exists()


async def test_an_engine_that_does_not_start_is_the_reason_that_is_given(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path) as processes:
        with pytest.raises(StartError, match=r"^tgi-\d ended with status 2: .*invalid choice: 'tgi'"):
            await _start_pool(processes, "tgi", 1)
    assert marked.pids() == []
