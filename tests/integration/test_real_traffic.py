"""A minute of the Azure 2023 conversation trace, open loop, through the gateway to both kinds of engine.

What is checked is what the gateway and the load generator promise: requests leave on time, streams arrive whole
and byte for byte as the engine sent them, and every request can be followed through all three records.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadgen import record
from loadgen.join import join
from loadgen.plan.making import make_schedule
from loadgen.plan.schedule import Schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Part, Replayed
from loadgen.procedure import RunRequest, run
from loadgen.workload.traces import read_trace
from protocol.records import GatewayRecord, Manifest, StreamRecord, read_lines
from tests.integration.conftest import MODEL, Cluster, StartCluster

TRACE = Path(__file__).parents[3] / "shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv"
START_S = 600.0
DURATION_S = 60.0


def azure_minute() -> Schedule:
    trace = read_trace(TRACE)
    source = Replayed(name="azure-conv-2023", sha256=trace.sha256, requests=trace.requests)
    return make_schedule(source, Part(seed=1, duration_s=DURATION_S, start_s=START_S))


async def replay(cluster: Cluster, directory: Path) -> None:
    schedule = azure_minute()
    await run(
        RunRequest(
            url=cluster.gateway.url,
            model=MODEL,
            schedule=encode_schedule(schedule),
            requests=schedule,
            directory=directory,
            run_id="azure-minute",
            command=["pytest"],
        ),
        asyncio.Event(),
    )
    await cluster.processes.stop(cluster.gateway)


@pytest.mark.timeout(240)
@pytest.mark.skipif(
    not TRACE.exists(),
    reason=f"needs {TRACE}: AzureLLMInferenceTrace_conv.csv of github.com/Azure/AzurePublicDataset (CC-BY 4.0)",
)
async def test_a_minute_of_real_traffic(start_cluster: StartCluster, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    async with start_cluster(per_pool=2) as cluster:
        await replay(cluster, directory)
    manifest = msgspec.json.decode((directory / record.MANIFEST).read_bytes(), type=Manifest)
    requests = list(record.read_requests(directory))

    assert record.verify(directory) == []
    assert manifest.status == "complete"
    assert len(requests) == manifest.scheduled > 250
    assert {request.outcome for request in requests} == {"ok"}
    assert {request.arm for request in requests} == {"vllm", "sglang"}
    assert all(request.output_tokens == request.output_tokens_planned for request in requests)

    lateness_ms = [(request.sent_ns - request.intended_ns) / 1e6 for request in requests if request.sent_ns is not None]
    assert np.percentile(lateness_ms, 99) <= 5.0
    assert min(lateness_ms) >= 0.0

    sent = [stream for path in cluster.streams for stream in read_lines(path, StreamRecord)]
    by_trace = {stream.trace_id: stream for stream in sent if stream.completed}
    assert all(by_trace[request.trace_id].sha256 == request.body_sha256 for request in requests)

    # The join takes the calibration's record, which is no request of the run, as one without a partner.
    joined = join(requests, list(read_lines(cluster.records, GatewayRecord)))
    assert len(joined.pairs) == len(requests)
