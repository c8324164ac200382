"""The real programs, as an operator starts them: stand-in engines and the gateway, each a process of its own."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from weir.processes import Child, Processes

MODEL = "llama-3-8b"


@dataclass(kw_only=True)
class Cluster:
    """Two pools of stand-in engines behind one gateway."""

    processes: Processes
    engines: dict[str, list[Child]]
    gateway: Child
    records: Path
    streams: list[Path]
    """What each engine says it sent, one file per engine."""


StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.fixture
def start_cluster(tmp_path: Path) -> StartCluster:
    """`async with start_cluster(per_pool=2) as cluster:`"""

    @asynccontextmanager
    async def start(per_pool: int = 1) -> AsyncIterator[Cluster]:
        streams: list[Path] = []
        async with Processes(logs=tmp_path / "logs") as processes:
            engines: dict[str, list[Child]] = {"vllm": [], "sglang": []}
            for kind, pool in engines.items():
                for number in range(per_pool):
                    streams.append(tmp_path / f"{kind}-{number}.jsonl")
                    pool.append(await _start_engine(processes, kind, number, streams[-1]))
            config = {
                "listen": {"port": 0},
                "pools": {
                    kind: {"engine": kind, "endpoints": [{"url": child.url} for child in pool]}
                    for kind, pool in engines.items()
                },
                "routes": [{"model": MODEL, "split": {"vllm": 1, "sglang": 1}}],
                "records": {"path": str(tmp_path / "gateway.jsonl")},
            }
            (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
            gateway = await processes.start("gateway", weir("serve", "--config", str(tmp_path / "gateway.yaml")))
            yield Cluster(
                processes=processes,
                engines=engines,
                gateway=gateway,
                records=tmp_path / "gateway.jsonl",
                streams=streams,
            )

    return start


async def _start_engine(processes: Processes, kind: str, number: int, streams: Path) -> Child:
    command = weir("engine", "--kind", kind, "--profile", "h100_llama-3-8b", "--model", MODEL, "--port", "0")
    return await processes.start(f"{kind}-{number}", [*command, "--record-streams", str(streams)])


def weir(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "weir", *arguments]
