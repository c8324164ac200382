"""A local Ray cluster: three workers send one schedule, and one of them is lost."""

import asyncio
import logging

import pytest
import ray

from loadgen import record
from loadgen.drive import ray_workers
from loadgen.drive.ray_workers import ClusterError, place
from loadgen.procedure import run
from loadgen.report.command import write_report
from tests.loadgen.rows import TraceRow
from tests.loadgen.test_procedure import request, serve
from tests.scripted_engine import running

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", autouse=True)
def cluster():
    """One machine that has three CPUs to give. Warnings of ray's own are not ours to mend."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(address="local", num_cpus=3, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
        yield
        ray.shutdown()


async def test_workers_of_a_cluster_send_one_schedule_on_clocks_of_known_error(tmp_path):
    rows = [TraceRow(number * 0.005, 20 + number, 2) for number in range(60)]
    async with running(serve) as engine:
        crew = await place("auto", 3)
        await run(request(engine, tmp_path, rows=rows, crew=crew), asyncio.Event())
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("complete", {"ok": 60})
    assert [(worker.requests, worker.lost) for worker in manifest.workers] == [(20, None)] * 3
    for worker in manifest.workers:
        # All of them are on this machine, so the true offset is 0.
        assert abs(worker.clock.offset_ns) <= worker.clock.bound_ns
        assert worker.clock.exchanges == 30
    assert record.verify(tmp_path) == []
    records = sorted(record.read_requests(tmp_path), key=lambda each: each.index)
    assert [each.index for each in records] == list(range(60))
    worst_ns = max(worker.clock.bound_ns for worker in manifest.workers)
    assert all(each.sent_ns >= each.intended_ns for each in records)
    assert worst_ns < 50_000_000


async def test_a_stop_reaches_the_workers(tmp_path):
    stop = asyncio.Event()

    async def script(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 3:
            stop.set()

    async with running(script) as engine:
        rows = [TraceRow(0.0, 20, 2)] * 2 + [TraceRow(60.0, 20, 2)] * 4
        await run(request(engine, tmp_path, rows=rows, crew=await place("auto", 2)), stop)
    manifest = record.read_manifest(tmp_path)
    assert (manifest.status, manifest.outcomes) == ("interrupted", {"ok": 2, "unsent": 4})


async def test_a_lost_machine_makes_the_run_invalid_and_not_short(tmp_path):
    crew = await place("auto", 2)

    async def script(received, conversation):
        await serve(received, conversation)
        if len(engine.requests) == 11:
            ray.kill(crew._actors[0])

    async with running(script) as engine:
        rows = [TraceRow(number * 0.01, 20, 2) for number in range(100)]
        await run(request(engine, tmp_path, rows=rows, crew=crew), asyncio.Event())
    manifest = record.read_manifest(tmp_path)
    lost, other = manifest.workers
    assert lost.lost
    assert lost.clock is not None
    assert (other.lost, other.outcomes) == (None, {"ok": 50})
    summary, _ = write_report(tmp_path)
    assert summary.validity.verdict == "INVALID"
    assert {"lost_worker", "not_all_sent"} <= {reason.kind for reason in summary.validity.reasons}


async def test_more_workers_than_the_cluster_has_room_for_are_refused(monkeypatch):
    monkeypatch.setattr(ray_workers, "_PLACING_TIMEOUT_S", 1.0)
    with pytest.raises(ClusterError, match=r"no room for 4 workers .* start fewer with --workers"):
        await place("auto", 4)


async def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(ray_workers, "version", lambda name: "9.9")
    with pytest.raises(ClusterError, match=r"has weir .* and this is 9\.9"):
        await place("auto", 1)
