import subprocess

import pytest

from benchmarks.planning import CASES, Planned, arguments, main, measure


def planned(**changes):
    return Planned(**({"requests": 100, "wall_s": 1.0, "peak_bytes": 2**20, "file_bytes": 1} | changes))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"requests": 94}, "94 requests, 100 wanted"),
        ({"wall_s": 31.0}, "took 31.0 s, at most 30"),
        ({"peak_bytes": 2**31}, "took 2048 MiB, at most 1024"),
    ],
)
def test_a_case_must_keep_its_bounds(changes, problem):
    assert planned().problems(100) == []
    assert planned(**changes).problems(100) == [problem]


def test_a_plan_that_fails_is_no_measurement(tmp_path, capfd):
    with pytest.raises(subprocess.CalledProcessError):
        measure(["--lengths", "nonsense", "--arrivals", "poisson:rate=1"], tmp_path / "s")
    assert "expected PROMPT:OUTPUT" in capfd.readouterr().err


def test_every_case_is_measured_in_a_process_of_its_own(capsys):
    assert main(["--requests", "20000"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CASES)
    assert all(line.endswith("ok") for line in lines)


def test_the_number_of_requests_sets_the_rates():
    assert "poisson:rate=50" in arguments("Poisson, given lengths", 50_000)
