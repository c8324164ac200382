import argparse
import shutil
import subprocess

import pytest

from loadgen import record
from loadgen.plan.command import add_plan_arguments, plan
from loadgen.plan.experiment import read_plan
from loadgen.plan.schedule_file import read_schedule
from protocol.records import encode_line

ARMS = ["--arm", "a=http://a:1", "--arm", "b=http://b:1", "--model", "m"]


def weir_plan(*arguments):
    """Exit status of the verb, called as the command line calls it."""
    parser = argparse.ArgumentParser(prog="weir plan")
    add_plan_arguments(parser)
    return plan(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def log(tmp_path):
    """Three minutes of two requests per second, some without output."""
    rows = [f"2023-11-16 18:{k // 120:02}:{k % 120 / 2:09.6f},{100 + k % 50},{k % 9}\n" for k in range(361)]
    path = tmp_path / "log.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def test_a_schedule_of_a_log_is_written_with_its_identity(tmp_path, log, capsys):
    out = tmp_path / "s.parquet"
    assert weir_plan("--trace", log, "--format", "azure", "--duration", 10, "--start", 5, "-o", out) == 0
    schedule = read_schedule(out)
    assert (schedule.header.source, len(schedule)) == ("log[5s+10s]x1", 20)
    printed = capsys.readouterr()
    assert "log[5s+10s]x1, seed 0: 20 requests in 10 s (2/s)," in printed.out
    assert printed.out.endswith(f"sha256 {record.digest(out).sha256}\n")
    assert "2 requests with 0 tokens in or out count as 1" in printed.err


def test_a_log_on_a_grid_is_replayed_and_told(tmp_path, log, capsys):
    assert weir_plan("--trace", log, "--format", "azure", "--duration", 120, "-o", tmp_path / "s") == 0
    assert "log: its times lie on a grid and are replayed so (phase_1s is " in capsys.readouterr().err


def test_requests_that_a_log_does_not_count_are_left_out_and_told(tmp_path, made, capsys):
    records = [made.gateway(made.request(k, at_ms=k * 100 + k % 7)) for k in range(5)]
    records.append(made.gateway(made.request(5), prompt_tokens=None))
    (tmp_path / "records.jsonl").write_bytes(b"".join(map(encode_line, records)))
    assert weir_plan("--trace", tmp_path / "records.jsonl", "--format", "weir", "-o", tmp_path / "s") == 0
    assert len(read_schedule(tmp_path / "s")) == 5
    assert "records: 1 rows are left out: no usage" in capsys.readouterr().err


def test_arrivals_replace_the_times_of_a_workload(tmp_path, capsys):
    out = tmp_path / "s.parquet"
    arguments = ["--workload", "azure-conv-2023", "--arrivals", "gamma:rate=9,cv=2", "--seed", 4, "--text-seed", 1]
    assert weir_plan(*arguments, "-o", out) == 0
    header = read_schedule(out).header
    assert (header.seed, header.text_seed, header.arrivals) == (4, 1, "gamma:rate=9,cv=2")
    assert " by gamma:rate=9,cv=2," in capsys.readouterr().out


def test_a_closed_loop_is_planned_only_when_asked_for_and_says_so(tmp_path, capsys):
    out = tmp_path / "s.parquet"
    assert weir_plan("--lengths", "64:8", "--concurrency", 4, "--requests", 9, "-o", out) == 0
    assert read_schedule(out).header.concurrency == 4
    assert "lengths 64:8[0s+], seed 0: 9 requests closed loop, 4 at once, 576 prompt and 72" in capsys.readouterr().out


def test_a_schedule_is_taken_as_it_is(tmp_path, log):
    first, second = tmp_path / "a", tmp_path / "b"
    weir_plan("--trace", log, "--format", "azure", "-o", first)
    assert weir_plan("--schedule", first, "-o", second) == 0
    assert second.read_bytes() == first.read_bytes()


def test_an_experiment_is_a_directory_that_says_everything(tmp_path, capsys):
    out = tmp_path / "plan"
    arguments = ["--lengths", "64:8", "--arrivals", "poisson:rate=5", "--levels", "0.5,2", "--repeats", 2]
    assert weir_plan(*arguments, *ARMS, "--order", "abba", "--name", "pair", "-o", out) == 0
    made = read_plan(out)
    assert "pair, 2 arms x 2 levels x 2 repeats = 8 cells in abba order, " in capsys.readouterr().out
    assert [cell.id for cell in made.cells()] == [
        *("0-x0.5-r0-a", "1-x0.5-r0-b", "2-x2-r0-a", "3-x2-r0-b"),
        *("4-x2-r1-b", "5-x2-r1-a", "6-x0.5-r1-b", "7-x0.5-r1-a"),
    ]
    checked = subprocess.run(["sha256sum", "-c", record.SUMS], cwd=out, capture_output=True, text=True, check=True)
    assert len(checked.stdout.splitlines()) == 5


def test_an_experiment_file_is_planned_and_a_plan_holds_the_file_that_makes_it_again(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    assert weir_plan("--lengths", "64:8", "--requests", 9, "--levels", "1,4", *ARMS, "--seed", 3, "-o", first) == 0
    text = (first / "plan.yaml").read_text()
    inner = text[text.index("experiment:\n") : text.index("schedules:\n")].splitlines()[1:]
    (tmp_path / "e.yaml").write_text("\n".join(line.removeprefix("  ") for line in inner))
    assert weir_plan(tmp_path / "e.yaml", "-o", second) == 0
    assert read_plan(second).file.cells == read_plan(first).file.cells
    assert read_plan(second).file.schedules == read_plan(first).file.schedules
    assert {cell.level.concurrency for cell in read_plan(second).cells()} == {1, 4}


def test_arms_that_share_an_engine_are_told_of_its_cache(tmp_path, capsys):
    arguments = ["--lengths", "64:8", "--requests", 9, "--arm", "a=http://h:1", "--arm", "b=http://h:1", "--model", "m"]
    assert weir_plan(*arguments, "-o", tmp_path / "plan") == 0
    assert "http://h:1 serves a and b: flush its prefix cache between cells" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "say what to send: --workload, --trace, --lengths or --schedule"),
        (["--workload", "no-such"], "No such file"),
        (["--workload", "azure-conv-2023", "--format", "azure"], "format belongs to a trace"),
        (["--workload", "azure-conv-2023", "--duration", "99999"], "describes "),
        (["--workload", "azure-conv-2023", "--duration", "600", "--time-scale", "60"], "describes "),
        (["--lengths", "5:5", "--arrivals", "poisson:rate=1", "--time-scale", "2"], "time_scale belongs to a workload"),
        (["--lengths", "5:5", "--bad-rows", "0.1"], "bad_rows belongs to a trace: drop it"),
        (
            ["--lengths", "5:5", "--tokenizer", "t.json"],
            "--tokenizer is of use here to count the texts of a --trace: give it to `weir run`",
        ),
        ([*ARMS, "--lengths", "5:5", "--tokenizer", "t.json"], "--tokenizer is of use here"),
        (["--trace", "LOG", "--bad-rows", "2"], "a share of 2 bad rows"),
        (["--trace", "LOG", "--format", "weir"], "not a GatewayRecord"),
        (["--trace", "LOG", "--format", "azure", "--seed", "-1"], "seed is -1"),
        (["--trace", "LOG", "--format", "azure", "--arrivals", "poisson:rate=100"], "log has 361 requests from 0 s on"),
        (["--lengths", "5:5"], "lengths have no times of their own"),
        (["--lengths", "5:5", "--arrivals", "poison:rate=1"], "no family 'poison'"),
        (
            ["--lengths", "5:5", "--arrivals", "poisson:rate=9", "--requests", "5"],
            "--requests belongs to --concurrency",
        ),
        (["--lengths", "5:5", "--concurrency", "5"], "--concurrency needs --requests"),
        (["--lengths", "5:5", "--concurrency", "5", "--requests", "9", "--duration", "1"], "takes no --duration"),
        (["--schedule", "LOG"], "log.csv: not a schedule: "),
        (["--schedule", "LOG", "--seed", "1"], "--schedule is complete: drop --seed"),
        (["--schedule", "LOG", "--rate-scale", "1"], "--schedule is complete: drop --rate-scale"),
        (["--lengths", "5:5", "--levels", "1,2"], "--levels belongs to an experiment: give --arm NAME=URL"),
        (["--lengths", "5:5", "--arm", "a=http://h"], "--arm needs --model"),
        (["--lengths", "5:5", "--arm", "a", "--model", "m"], "--arm a: expected NAME=URL"),
        (["--lengths", "5:5", "--arm", "a=h:1", "--model", "m"], "url of arm a is 'h:1': expected http://HOST:PORT"),
        (["--lengths", "5:5", *ARMS, "--levels", "1,x"], "--levels: could not convert string to float: 'x'"),
        (["--lengths", "5:5", *ARMS, "--levels", "0"], "--levels: rate_scale of level x0 is 0"),
        (["--lengths", "5:5", *ARMS, "--rate-scale", "2"], "an experiment makes its schedules"),
        (["--lengths", "5:5", *ARMS, "--order", "abba", "--repeats", "3"], "repeats is 3: order abba"),
        (["LOG", "--seed", "1"], "log.csv says everything: drop --seed"),
        (["LOG"], "log.csv: Expected `object`"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, log, capsys, arguments, message):
    given = [str(log) if argument == "LOG" else argument for argument in arguments]
    assert weir_plan(*given, "-o", tmp_path / "out") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("weir plan: ")
    assert message in line


def test_a_directory_in_use_is_left_alone(tmp_path, capsys):
    (tmp_path / "note").write_text("mine")
    assert weir_plan("--lengths", "5:5", "--arrivals", "poisson:rate=5", *ARMS, "-o", tmp_path) == 2
    assert "a plan never overwrites another" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["note"]
    shutil.rmtree(tmp_path)
