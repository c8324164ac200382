"""`weir compare` on real directories: runs, folders of runs, plans; what it refuses, and its exit status."""

import argparse
import json
import shutil

import pytest

from loadgen import record
from loadgen.plan.command import add_plan_arguments, plan
from loadgen.plan.experiment import read_plan
from loadgen.report.compare_command import DIFFERENT, NO_CLAIM, REFUSED, SAME, add_compare_arguments, compare_runs


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_compare_arguments(parser)
    return compare_runs(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def make_run(made):
    def make(path, *, factor=1.0, repeat=0, started=0, **changes):
        requests = [made.request(i, at_ms=10 * i + repeat, ttft_ms=(100 + i % 7 + repeat) * factor) for i in range(300)]
        return made.run_directory(path, requests, started_unix_ns=started, **changes)

    return make


@pytest.fixture
def folders(tmp_path, make_run):
    """A and B with eight runs each, B slower by half."""
    for side, factor in (("a", 1.0), ("b", 1.5)):
        for repeat in range(8):
            make_run(tmp_path / side / f"r{repeat}", factor=factor, repeat=repeat, started=2 * repeat + (side == "b"))
    return tmp_path / "a", tmp_path / "b"


@pytest.fixture
def planned(tmp_path, make_run):
    """A plan of two arms, two levels and six repeats, all of it run; `b` is slower by half at level `x2`."""
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    words = ["--lengths", "20:2", "--arrivals", "poisson:rate=20", "--duration", "5", "--model", "m", "--repeats", "6"]
    arms = ["--arm", "a=http://127.0.0.1:1", "--arm", "b=http://127.0.0.1:2", "--levels", "1,2"]
    assert plan(parser.parse_args([*words, *arms, "-o", str(tmp_path / "plan")])) == 0
    found = read_plan(tmp_path / "plan")
    for cell in found.cells():
        factor = 1.5 if (cell.arm.name, cell.level.name) == ("b", found.file.experiment.levels[1].name) else 1.0
        make_run(found.run_directory(cell), factor=factor, repeat=cell.repeat, started=cell.order)
    return found


def shown_json(capsys):
    return json.loads(capsys.readouterr().out)["comparisons"]


def test_folders_of_runs_that_differ(folders, capsys):
    assert run(*folders) == DIFFERENT
    assert "B against A" in capsys.readouterr().out


def test_a_side_against_itself_does_not_differ(folders):
    assert run(folders[0], folders[0]) == SAME


def test_single_runs_carry_no_claim(folders, capsys):
    assert run(folders[0] / "r0", folders[1] / "r0") == NO_CLAIM
    assert "THE RUNS DO NOT CARRY A CLAIM" in capsys.readouterr().out


def test_json_holds_every_figure_of_the_metrics_asked_for(folders, capsys):
    run(
        *folders,
        "--json",
        "--metric",
        "ttft_p99",
        "--metric",
        "error_rate",
        "--margin",
        "10%",
        "--error-margin",
        "0.01",
    )
    (found,) = shown_json(capsys)
    assert found["schema"] == "weir.comparison/1"
    assert [row["metric"] for row in found["rows"]] == ["ttft_p99", "error_rate"]
    assert found["rows"][0]["claim"]["estimate"]["value"] == pytest.approx(1.5)
    assert found["margins"] == {"ratio": 0.1, "error_rate": 0.01}


def test_comparing_changes_no_file(folders):
    before = {path: path.read_bytes() for side in folders for path in side.rglob("*") if path.is_file()}
    run(*folders)
    assert {path: path.read_bytes() for side in folders for path in side.rglob("*") if path.is_file()} == before


def test_a_plan_is_compared_level_by_level(planned, capsys):
    assert run(planned.directory, "--metric", "ttft_p99", "--json") == DIFFERENT
    low, high = shown_json(capsys)
    assert [low["level"], high["level"]] == [level.name for level in planned.file.experiment.levels]
    assert (low["rows"][0]["verdict"], high["rows"][0]["verdict"]) == ("equivalent", "worse")


def test_one_level_and_the_arms_turned_round(planned, capsys):
    level = planned.file.experiment.levels[1].name
    assert run(planned.directory, "--level", level, "--arms", "b", "a", "--metric", "ttft_p50", "--json") == DIFFERENT
    (found,) = shown_json(capsys)
    assert found["rows"][0]["verdict"] == "better"


def test_a_repeat_that_one_arm_lacks_is_left_out(planned, capsys):
    cell = next(cell for cell in planned.cells() if cell.repeat == 2)
    shutil.rmtree(planned.run_directory(cell))
    run(planned.directory, "--level", cell.level.name, "--json")
    (found,) = shown_json(capsys)
    assert len(found["runs_a"]) == len(found["runs_b"]) == 5
    assert found["paired"]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["{plan}", "--arms", "a", "z"], "--arms a z: give two of a, b"),
        (["{plan}", "--arms", "a", "a"], "--arms a a: give two of a, b"),
        (["{plan}", "--level", "z"], "--level z: the plan has"),
        (["{plan}", "{plan}"], "is a plan: compare its arms with"),
        (["{empty}"], "is no plan"),
        (["{empty}", "{empty}"], "holds no run"),
        (["{empty}/x", "{empty}"], "is no directory"),
        (["{empty}", "{empty}", "{empty}"], "3 directories"),
        (["{empty}", "{empty}", "--arms", "a", "b"], "--arms belongs to a plan"),
        (["{empty}", "{empty}", "--level", "z"], "--level belongs to a plan"),
    ],
)
def test_wrong_input_is_one_line_with_the_remedy(planned, tmp_path, capsys, words, complaint):
    (tmp_path / "empty").mkdir()
    assert run(*(word.format(plan=planned.directory, empty=tmp_path / "empty") for word in words)) == REFUSED
    error = capsys.readouterr().err
    assert error.startswith("weir compare: ")
    assert complaint in error
    assert error.count("\n") == 1


def test_a_plan_of_which_nothing_was_run_is_refused(planned, capsys):
    shutil.rmtree(planned.directory / "runs")
    assert run(planned.directory) == REFUSED
    assert "is complete in both arms" in capsys.readouterr().err


def test_three_arms_need_a_choice(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_plan_arguments(parser)
    words = ["--lengths", "20:2", "--arrivals", "poisson:rate=20", "--duration", "1", "--model", "m", "--repeats", "2"]
    arms = [word for name in "abc" for word in ("--arm", f"{name}=http://127.0.0.1:1")]
    assert plan(parser.parse_args([*words, *arms, "-o", str(tmp_path / "plan")])) == 0
    assert run(tmp_path / "plan") == REFUSED
    assert "has 3 arms, a, b, c: say which two" in capsys.readouterr().err


def test_invalid_runs_are_refused_by_name_and_compared_when_asked_for(folders, make_run, capsys):
    shutil.rmtree(folders[0] / "r3")
    make_run(folders[0] / "r3", repeat=3, started=6, status="interrupted")
    assert run(*folders) == REFUSED
    assert "INVALID runs carry no comparison: r3 (interrupted)" in capsys.readouterr().err
    assert run(*folders, "--invalid") == DIFFERENT
    assert "Warning: INVALID runs are among them, as asked for: r3" in capsys.readouterr().out.replace("\n", " ")


def test_a_run_whose_files_were_changed_is_invalid(folders, capsys):
    with (folders[0] / "r0" / record.REQUESTS).open("ab") as file:
        file.write(b"\n")
    assert run(*folders) == REFUSED
    assert "damaged_files" in capsys.readouterr().err


@pytest.mark.parametrize("share", ["0", "100%", "five", "-1%"])
def test_a_margin_is_a_share(share, capsys):
    with pytest.raises(SystemExit):
        run("a", "b", f"--margin={share}")
    assert "is no share between 0 and 1" in capsys.readouterr().err
