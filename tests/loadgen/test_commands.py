import argparse
import asyncio
import os
import re
import signal
import subprocess
import sys

import pytest

from loadgen import commands, record
from loadgen.plan import decode_schedule
from loadgen.workload.description import load_workload
from tests.loadgen.test_procedure import serve
from tests.scripted_engine import running

VERBS = {
    "fit": (commands.add_fit_arguments, commands.fit),
    "plan": (commands.add_plan_arguments, commands.plan),
    "run": (commands.add_run_arguments, commands.run),
}


def weir(verb, *arguments):
    """Exit status of a verb, called as the command line calls it."""
    define, body = VERBS[verb]
    parser = argparse.ArgumentParser(prog=f"weir {verb}")
    define(parser)
    return body(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def log(tmp_path):
    """Three minutes of two requests per second, the first without output."""
    rows = [f"2023-11-16 18:{k // 120:02}:{k % 120 / 2:09.6f},{100 + k % 50},{k % 9}\n" for k in range(361)]
    path = tmp_path / "log.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows))
    return path


def test_fit_writes_a_workload_and_says_how_well_it_fits(tmp_path, log, capsys):
    out = tmp_path / "w.yaml"
    assert weir("fit", log, "--format", "azure", "--name", "w", "-o", out, "--licence", "mine") == 0
    workload = load_workload(out)
    assert (workload.source.rows, workload.source.licence) == (361, "mine")
    assert "ISCA 2024" in workload.source.citation
    assert len(workload.arrivals.rates_per_s) == 3
    printed = capsys.readouterr()
    assert re.search(r"prompt lengths: \d components, KS 0\.\d+, errors of P50/P90/P99 .*adequate", printed.out)
    assert "requests with 0 tokens in or out count as 1" in printed.err


def test_plan_prints_the_identity_of_the_schedule(tmp_path, log, capsys):
    out = tmp_path / "s.jsonl"
    assert weir("plan", "--trace", log, "--format", "azure", "--duration", 10, "--start", 5, "-o", out) == 0
    header, requests = decode_schedule(out.read_bytes())
    assert (header.source, len(requests)) == ("log[5s+10s]x1", 20)
    printed = capsys.readouterr().out
    assert "20 requests in 10 s (2/s)" in printed
    assert printed.endswith(f"sha256 {record.digest(out).sha256}\n")


def test_a_workload_is_found_by_name_and_by_file(tmp_path, log):
    named, mine, filed = (tmp_path / name for name in ("named.jsonl", "w.yaml", "filed.jsonl"))
    assert weir("plan", "--workload", "azure-conv-2023", "--seed", 4, "--duration", 30, "-o", named) == 0
    assert decode_schedule(named.read_bytes())[0].seed == 4
    assert weir("fit", log, "--format", "azure", "--name", "mine", "-o", mine) == 0
    assert weir("plan", "--workload", mine, "--rate-scale", 5, "-o", filed) == 0
    assert decode_schedule(filed.read_bytes())[0].source == "mine[0s+60s]x5"


def test_a_schedule_is_taken_as_it_is(tmp_path, log):
    first, second = tmp_path / "a", tmp_path / "b"
    weir("plan", "--trace", log, "--format", "azure", "-o", first)
    first.write_bytes(first.read_bytes().replace(b'{"index":0,', b'{ "index": 0,'))
    assert weir("plan", "--schedule", first, "-o", second) == 0
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "no-such"], "No such file"),
        (["--workload", "azure-conv-2023", "--format", "azure"], "--format belongs to --trace"),
        (["--workload", "azure-conv-2023", "--duration", "9999"], "describes 3480 s"),
        (["--trace", "LOG"], "--trace needs --format: one of azure, weir"),
        (["--trace", "LOG", "--format", "weir"], "not a GatewayRecord"),
        (["--trace", "LOG", "--format", "azure", "--seed", "-1"], "seed is -1"),
        (["--schedule", "LOG"], "log.csv: line 1: "),
        (["--schedule", "LOG", "--seed", "1"], "--schedule is complete: drop"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(tmp_path, log, capsys, arguments, message):
    given = [str(log) if argument == "LOG" else argument for argument in arguments]
    assert weir("plan", *given, "-o", tmp_path / "s.jsonl") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("weir plan: ")
    assert message in line


def test_a_run_that_is_refused_is_one_line_and_exit_2(tmp_path, log, capsys, unused_tcp_port):
    out = tmp_path / "run"
    url = f"http://127.0.0.1:{unused_tcp_port}"
    arguments = ["--url", url, "--model", "m", "--trace", log, "--format", "azure", "--out", out]
    assert weir("run", *arguments) == 2
    assert "weir run: http://127.0.0.1" in capsys.readouterr().err
    assert not out.exists()


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
