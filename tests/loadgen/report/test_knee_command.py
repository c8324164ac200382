"""`weir knee` on a plan whose runs have a known capacity."""

import argparse
import json
import shutil

import pytest

from loadgen.plan.command import add_plan_arguments, plan
from loadgen.plan.experiment import read_plan
from loadgen.report.knee_command import REFUSED, add_knee_arguments, knee
from loadgen.report.terminal import WIDTH

CAPACITY = 20.0
"""Requests per second of the system in these runs: one at a time, 50 ms each."""


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_knee_arguments(parser)
    return knee(parser.parse_args([str(argument) for argument in arguments]))


def served(made, per_s):
    """60 s of even arrivals at a server that takes 50 ms each, one after another; the schedule ends 1 s later."""
    requests, free_ms = [], 0.0
    for i in range(round(60 * per_s)):
        at_ms = 1000 * i / per_s
        free_ms = max(free_ms, at_ms) + 1000 / CAPACITY
        requests.append(made.request(i, at_ms=at_ms, ttft_ms=free_ms - at_ms - 1, tokens=1))
    return requests


def make_plan(directory, levels, *, repeats="1", arms="a"):
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    words = ["--lengths", "20:1", "--arrivals", "poisson:rate=10", "--duration", "5", "--model", "m"]
    of_arms = [word for name in arms for word in ("--arm", f"{name}=http://127.0.0.1:1")]
    more = ["--repeats", repeats, "--levels", ",".join(map(str, levels)), *of_arms, "-o", str(directory)]
    assert plan(parser.parse_args([*words, *more])) == 0
    return read_plan(directory)


@pytest.fixture
def planned(made, tmp_path):
    found = make_plan(tmp_path / "plan", [0.8, 1.2, 1.6, 1.9, 2.2, 2.6, 3.0])
    for cell in found.cells():
        made.run_directory(found.run_directory(cell), served(made, 10 * cell.level.rate_scale))
    return found


def test_the_knee_drain_and_capacity_are_told(planned, capsys):
    assert run(planned.directory, "--slo", "ttft_p99=200ms") == 0
    text = capsys.readouterr().out.replace("\n", " ")
    assert "Knee: 19.7 requests/s" in text
    assert "the queue drained up to 18.7 requests/s, and grew at the next load" in text
    assert "Capacity under ttft_p99=200ms: 18.7 requests/s, broken at 21.7" in text
    assert "fewer than five a level, so without an interval" in text
    assert "Scalability law, for diagnosis" in text


def test_no_line_is_wider_than_the_terminal(planned, capsys):
    run(planned.directory, "--slo", "ttft_p99=200ms", "--slo", "e2e_p50=1s")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= WIDTH


def test_json_holds_every_figure(planned, capsys):
    assert run(planned.directory, "--json", "--arm", "a") == 0
    (found,) = json.loads(capsys.readouterr().out)["capacities"]
    assert found["schema"] == "weir.capacity/1"
    assert found["knee"]["load"] == pytest.approx(CAPACITY, rel=0.05)
    assert len(found["levels"]) == 7


def test_few_levels_are_told_what_they_lack(made, tmp_path, capsys):
    found = make_plan(tmp_path / "plan", [0.8, 1.2], repeats="5")
    for cell in found.cells():
        made.run_directory(found.run_directory(cell), served(made, 10 * cell.level.rate_scale))
    assert run(found.directory, "--slo", "ttft_p99=10ms") == 0
    text = capsys.readouterr().out.replace("\n", " ")
    assert "Knee: 2 loads were measured, a knee needs 7." in text
    assert "the queue drained at every load, up to 11.8" in text
    assert "none of these loads, broken at 7.89 (by the lower 95 % bound)" in text
    assert "Scalability law: fewer than 7" in text


def test_a_system_that_is_always_overloaded_is_told_so(made, tmp_path, capsys):
    found = make_plan(tmp_path / "plan", [3, 4])
    for cell in found.cells():
        made.run_directory(found.run_directory(cell), served(made, 10 * cell.level.rate_scale))
    assert run(found.directory, "--slo", "ttft_p1=1000s") == 0
    text = capsys.readouterr().out.replace("\n", " ")
    assert "the queue grew at every load" in text
    assert "never broken here" in text


@pytest.mark.parametrize(
    ("words", "complaint"),
    [(["{plan}", "--arm", "z"], "--arm z: the plan has a"), (["{empty}"], "is no plan")],
)
def test_wrong_input_is_one_line_with_the_remedy(planned, tmp_path, capsys, words, complaint):
    (tmp_path / "empty").mkdir()
    assert run(*(word.format(plan=planned.directory, empty=tmp_path / "empty") for word in words)) == REFUSED
    error = capsys.readouterr().err
    assert error.startswith("weir knee: ")
    assert complaint in error


def test_an_slo_that_is_none_is_refused(planned, capsys):
    with pytest.raises(SystemExit):
        run(planned.directory, "--slo", "fast")
    assert "write METRIC_pPERCENT=TIME" in capsys.readouterr().err


def test_a_plan_of_which_nothing_was_run_is_refused(planned, capsys):
    shutil.rmtree(planned.directory / "runs")
    assert run(planned.directory) == REFUSED
    assert "no cell of arm a has been run" in capsys.readouterr().err


def test_invalid_runs_are_refused_but_for_overload(made, planned, capsys):
    cell = planned.cells()[0]
    requests = [
        *served(made, 10 * cell.level.rate_scale),
        made.unsent(len(served(made, 10 * cell.level.rate_scale)), at_ms=60_000),
    ]
    shutil.rmtree(planned.run_directory(cell))
    made.run_directory(planned.run_directory(cell), requests)
    assert run(planned.directory) == REFUSED
    assert f"{cell.id} is INVALID (" in capsys.readouterr().err
    assert run(planned.directory, "--invalid") == 0
