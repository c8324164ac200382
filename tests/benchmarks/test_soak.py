"""The soak for real, only short: weir, misbehaving engines, and clients that leave."""

import subprocess
import sys

import pytest

from benchmarks import soak, soak_checks
from benchmarks.results import ROOT


@pytest.mark.timeout(180)
def test_nothing_stays_behind() -> None:
    command = [sys.executable, "-m", "benchmarks.soak", "--seconds", "60"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    *checks, verdict = done.stdout.splitlines()
    assert [line[:6] for line in checks] == ["ok    "] * len(soak_checks.CHECKS)
    assert verdict.startswith("PASSED: ")
    assert int(verdict.split()[1]) > 5000


def test_a_gateway_that_cannot_start_is_reported_with_its_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "_CONFIG", "pools: {}\n")
    assert soak.main(["--seconds", "1"]) == 2
    err = capsys.readouterr().err
    assert "weir did not start" in err
    assert "pools" in err


def test_a_senseless_length_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        soak.main(["--seconds", "0"])
    assert "--seconds must be more than 0" in capsys.readouterr().err
