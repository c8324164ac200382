"""Workers in processes of their own, through the procedure that starts them."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from loadgen import record
from loadgen.drive.crew import WorkerProcesses
from loadgen.drive.worker import lost_worker
from loadgen.procedure import run
from loadgen.report.command import write_report
from tests.loadgen.rows import TraceRow
from tests.loadgen.test_procedure import request, serve
from tests.scripted_engine import running


async def test_two_workers_send_one_schedule_and_leave_one_run(tmp_path):
    rows = [TraceRow(number * 0.005, 20 + number, 2) for number in range(60)]
    async with running(serve) as engine:
        await run(request(engine, tmp_path, rows=rows, crew=WorkerProcesses(2)), asyncio.Event())
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("complete", {"ok": 60})
    assert [(worker.name, worker.requests, worker.outcomes, worker.lost) for worker in manifest.workers] == [
        ("0", 30, {"ok": 30}, None),
        ("1", 30, {"ok": 30}, None),
    ]
    assert all(worker.health.cpu_s > 0 for worker in manifest.workers)
    assert record.verify(tmp_path) == []
    records = sorted(record.read_requests(tmp_path), key=lambda each: each.index)
    assert [each.index for each in records] == list(range(60))
    assert [each.intended_ns for each in records] == [round(row.at_s * 1e9) for row in rows]
    assert all(each.intended_ns <= each.sent_ns < each.intended_ns + 1_000_000_000 for each in records)
    assert not list(tmp_path.glob("worker-*"))


async def test_a_stop_reaches_every_worker(tmp_path):
    stop = asyncio.Event()

    async def script(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 5:
            stop.set()

    async with running(script) as engine:
        rows = [TraceRow(0.0, 20, 2)] * 4 + [TraceRow(60.0, 20, 2)] * 4
        await run(request(engine, tmp_path, rows=rows, crew=WorkerProcesses(2)), stop)
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("interrupted", {"ok": 4, "unsent": 4})


async def test_a_run_that_was_stopped_before_its_workers_started_sends_nothing(tmp_path):
    stop = asyncio.Event()
    stop.set()
    async with running(serve) as engine:
        await run(request(engine, tmp_path, rows=[TraceRow(0.0, 20, 2)] * 4, crew=WorkerProcesses(2)), stop)
        assert len(engine.requests) == 1, "only the calibration of the template"
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("interrupted", {"unsent": 4})
    assert [worker.lost for worker in manifest.workers] == [None, None]


class _OneFails(WorkerProcesses):
    """The second worker cannot write its records, once the first one is there."""

    async def work(self, number, share, requests, stop, halt, tell):
        if number == 1:
            while not senders():
                await asyncio.sleep(0.01)
            raise OSError("disk full")
        return await super().work(number, share, requests, stop, halt, tell)


async def test_where_a_worker_cannot_go_on_no_other_goes_on_behind_the_run(tmp_path):
    async with running(serve) as engine:
        rows = [TraceRow(60.0, 20, 2)] * 2
        with pytest.raises(OSError, match="disk full"):
            await run(request(engine, tmp_path, rows=rows, crew=_OneFails(2)), asyncio.Event())
    # One whose creation was cut short is killed by the event loop, and not waited for.
    async with asyncio.timeout(10):
        while senders():
            await asyncio.sleep(0.01)


async def test_a_halt_cancels_what_is_in_flight_at_every_worker(tmp_path):
    stop, halt = asyncio.Event(), asyncio.Event()

    async def script(received, conversation):
        if len(engine.requests) == 1:
            await serve(received, conversation)
            return
        if len(engine.requests) == 3:
            stop.set()
            halt.set()
        await conversation.until_left()

    async with running(script) as engine:
        rows = [TraceRow(0.0, 20, 2)] * 2
        await run(request(engine, tmp_path, rows=rows, crew=WorkerProcesses(2), grace_s=60.0), stop, halt=halt)
    assert record.read_manifest(tmp_path).outcomes == {"cancelled": 2}


async def test_a_worker_that_is_killed_makes_the_run_invalid_and_not_short(tmp_path):
    """The other one sends its share to the end."""

    async def script(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 11:
            os.kill(senders()[0], signal.SIGKILL)

    async with running(script) as engine:
        rows = [TraceRow(number * 0.01, 20, 2) for number in range(100)]
        await run(request(engine, tmp_path, rows=rows, crew=WorkerProcesses(2)), asyncio.Event())
    manifest = record.read_manifest(tmp_path)
    (lost,) = [worker for worker in manifest.workers if worker.lost is not None]
    (other,) = [worker for worker in manifest.workers if worker.lost is None]
    assert lost.lost == "its process ended with status -9"
    assert (lost.health, other.outcomes) == (None, {"ok": 50})
    assert manifest.outcomes["ok"] >= 50
    summary, _ = write_report(tmp_path)
    assert summary.validity.verdict == "INVALID"
    assert "lost_worker" in {reason.kind for reason in summary.validity.reasons}


def children():
    """Processes that this one has started."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def senders():
    return [pid for pid in children() if b"loadgen.drive.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def test_the_report_of_a_lost_worker_says_why():
    report = lost_worker("3", 7, "it fell over")
    assert (report.name, report.requests, report.outcomes, report.lost) == ("3", 7, {}, "it fell over")
    assert msgspec.json.decode(msgspec.json.encode(report))["lost"] == "it fell over"
