import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys

import pytest

from loadgen import commands, record
from loadgen.report.command import write_report
from tests.loadgen.test_procedure import serve
from tests.scripted_engine import running


def weir_run_here(*arguments):
    """Exit status of the verb, called as the command line calls it."""
    parser = argparse.ArgumentParser(prog="weir run")
    commands.add_run_arguments(parser)
    return commands.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def log(tmp_path):
    """Three minutes of two requests per second, the first without output."""
    rows = [f"2023-11-16 18:{k // 120:02}:{k % 120 / 2:09.6f},{100 + k % 50},{k % 9}\n" for k in range(361)]
    path = tmp_path / "log.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def test_a_run_that_is_refused_is_one_line_and_exit_2(tmp_path, log, capsys, unused_tcp_port):
    out = tmp_path / "run"
    url = f"http://127.0.0.1:{unused_tcp_port}"
    arguments = ["--url", url, "--model", "m", "--trace", log, "--format", "azure", "--out", out]
    assert weir_run_here(*arguments) == 2
    assert "weir run: http://127.0.0.1" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--tokenizer", "t.json", "--tokenize", "http://e:1"], "--tokenize asks an engine what texts are made of"),
        (["--token-ids"], "--token-ids needs the model's tokenizer: give --tokenizer FILE or --tokenize URL"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(capsys, arguments, why):
    assert weir_run_here("--url", "http://h:1", "--model", "m", "--lengths", "5:5", *arguments) == 2
    assert why in capsys.readouterr().err


async def weir_run(engine, tmp_path, *arguments):
    """`weir run` as a process of its own, so that it has its own loop and takes signals."""
    program = (
        "import argparse, sys; from loadgen import commands; parser = argparse.ArgumentParser();"
        "commands.add_run_arguments(parser); sys.exit(commands.run(parser.parse_args()))"
    )
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", program, "--url", engine.url, "--model", "m", "--out", str(tmp_path / "run"), *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "WEIR_API_KEY": "secret"},
    )


async def test_a_run_prints_its_directory_and_what_became_of_it(tmp_path, log):
    async with running(serve) as engine:
        process = await weir_run(engine, tmp_path, "--trace", str(log), "--format", "azure", "--duration", "1")
        out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    directory, sent, outcomes = out.decode().splitlines()
    assert directory == str(tmp_path / "run")
    assert re.fullmatch(r"complete: scheduled 2, sent 2, late P50/P99 \d+\.\d\d/\d+\.\d\d ms", sent)
    assert outcomes == "outcomes: 2 ok"
    assert record.verify(tmp_path / "run") == []
    assert {request.headers["authorization"] for request in engine.requests} == {"Bearer secret"}
    assert "secret" not in (tmp_path / "run" / record.MANIFEST).read_text()


@pytest.mark.parametrize(
    ("loop", "arrivals"),
    [
        (["--concurrency", "2", "--requests", "6"], "closed"),
        (["--arrivals", "constant:rate=1000", "--duration", "0.006", "--max-connections", "2"], "constant:rate=1000"),
    ],
)
async def test_a_loop_with_a_limit_has_no_more_requests_at_once(tmp_path, loop, arrivals):
    """A closed loop has its own; an open one may be given one, and is late then."""
    async with running(serve) as engine:
        process = await weir_run(engine, tmp_path, "--lengths", "20:2", *loop)
        _, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    requests = list(record.read_requests(tmp_path / "run"))
    assert [request.outcome for request in requests] == ["ok"] * 6
    ends = sorted(request.end_ns for request in requests)
    # They are written down as they end; the third to be taken up waited for the first to end, whichever that was.
    taken_up = sorted(request.dequeued_ns for request in requests)
    assert all(taken >= ended for taken, ended in zip(taken_up[2:], ends, strict=False))
    summary, page = write_report(tmp_path / "run")
    assert summary.arrivals == arrivals
    assert ("CLOSED LOOP" in page.read_text()) is (arrivals == "closed")


async def test_a_closed_loop_takes_no_other_limit(tmp_path):
    async with running(serve) as engine:
        loop = ("--lengths", "20:2", "--concurrency", "2", "--requests", "6", "--max-connections", "3")
        process = await weir_run(engine, tmp_path, *loop)
        _, err = await process.communicate()
    assert process.returncode == 2
    assert b"drop --max-connections" in err


@pytest.mark.parametrize(
    ("signals", "outcome"), [([signal.SIGINT], "ok"), ([signal.SIGINT, signal.SIGTERM], "cancelled")]
)
async def test_one_signal_stops_the_sending_and_a_second_what_is_in_flight(tmp_path, log, signals, outcome):
    async def script(received, conversation):
        if len(engine.requests) == 1:
            await serve(received, conversation)
            return
        for number in signals:
            process.send_signal(number)
        if len(signals) == 1:
            await serve(received, conversation)
        else:
            await conversation.until_left()

    async with running(script) as engine:
        process = await weir_run(engine, tmp_path, "--trace", str(log), "--format", "azure", "--duration", "100")
        out, err = await process.communicate()
    assert process.returncode == 130, err.decode()
    manifest = record.read_manifest(tmp_path / "run")
    assert manifest.status == "interrupted"
    assert manifest.outcomes == {outcome: 1, "unsent": 199}
    assert b"interrupted: scheduled 200, sent 1," in out


def test_a_run_without_a_request_has_a_summary(tmp_path, made):
    directory = made.run_directory(tmp_path / "run", [])
    assert commands.summary(directory) == "complete: scheduled 0, sent 0, late P50/P99 -\noutcomes: none"
