"""A plan is run cell by cell through the command line, and gone on with after an interruption."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from loadgen import record
from loadgen.plan.experiment import read_plan
from tests.loadgen.test_procedure import serve
from tests.scripted_engine import running


async def weir(*arguments):
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "weir", *map(str, arguments)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "WEIR_API_KEY": "secret"},
    )


async def done(*arguments):
    process = await weir(*arguments)
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def planned(tmp_path, *engines, duration="0.05"):
    arms = [word for name, engine in zip("ab", engines, strict=False) for word in ("--arm", f"{name}={engine.url}")]
    traffic = ["--lengths", "20:2", "--arrivals", "constant:rate=100", "--duration", duration]
    code, _, err = await done("plan", *traffic, *arms, "--model", "m", "--repeats", 1, "-o", tmp_path / "plan")
    assert code == 0, err
    return read_plan(tmp_path / "plan")


async def test_every_cell_of_a_plan_is_run_at_its_arm(tmp_path):
    async with running(serve) as a, running(serve) as b:
        plan = await planned(tmp_path, a, b)
        code, out, err = await done("run", "--plan", plan.directory)
    assert code == 0, err
    assert plan.remaining() == []
    assert out.splitlines()[-1] == f"{plan.directory}: 2 of 2 cells are complete"
    for cell in plan.cells():
        directory = plan.run_directory(cell)
        manifest = record.read_manifest(directory)
        assert (manifest.url, manifest.outcomes) == (cell.arm.url, {"ok": 5})
        assert record.digest(directory / record.SCHEDULE).sha256 == cell.schedule_sha256
        assert record.verify(directory) == []
    # One more than the schedule has: what the chat template adds is counted first.
    assert [len(engine.requests) for engine in (a, b)] == [6, 6]


async def test_an_interrupted_plan_is_gone_on_with_and_keeps_what_it_measured(tmp_path):
    process = None

    async def interrupting(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 3:
            process.send_signal(signal.SIGINT)

    async with running(interrupting) as engine:
        plan = await planned(tmp_path, engine, duration="1.0")
        process = await weir("run", "--plan", plan.directory)
        out, _ = await process.communicate()
        assert process.returncode == 130
        assert out.decode().splitlines()[-1] == f"{plan.directory}: 0 of 1 cells are complete"
        (cell,) = plan.cells()
        code, _, err = await done("run", "--plan", plan.directory)
        assert code == 2
        assert "1 of 1 cells have been run or begun: go on with --resume" in err
        code, _, err = await done("run", "--plan", plan.directory, "--resume")
    assert code == 0, err
    assert record.read_manifest(plan.run_directory(cell)).outcomes == {"ok": 100}
    aside = plan.run_directory(cell).with_name(f"{cell.id}.interrupted-1")
    assert record.read_manifest(aside).status == "interrupted"
    assert record.verify(aside) == []


async def test_a_finished_plan_has_nothing_to_go_on_with(tmp_path):
    async with running(serve) as engine:
        plan = await planned(tmp_path, engine)
        for _ in range(2):
            code, _, err = await done("run", "--plan", plan.directory, "--resume")
            assert code == 0, err
        assert len(engine.requests) == 6


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--plan", ".", "--url", "http://h"], "--plan says what to send and where to: drop --url"),
        (["--plan", ".", "--rate-scale", "2"], "drop --rate-scale"),
        (["--resume", "--url", "http://h", "--model", "m", "--lengths", "5:5"], "--resume belongs to --plan"),
        (["--lengths", "5:5"], "say where to send to with --url and --model"),
        (["--url", "http://h", "--model", "m"], "say what to send: --workload, --trace, --lengths or --schedule"),
    ],
)
async def test_what_does_not_go_together_is_refused(arguments, why):
    code, _, err = await done("run", *arguments)
    assert code == 2
    assert why in err
