"""Real engines with a gateway of `tests/gateway` in front, and a summary of which ones ran."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.engines.load import read_load
from gateway.engines.vllm import VLLM
from tests.gateway.conftest import RunningGateway, start_gateway
from tests.real.spans import Receiver, receiving
from tools.engines import places
from tools.engines.launch import MODEL_NAME, RunningEngine, running

__all__ = ["start_gateway"]

SLOTS = 4
"""Requests that an engine of these tests works on at once."""
QUEUE = 4
"""How many more it lets wait."""

FLAGS = {
    # vLLM's bound on its queue counts the requests that run as well.
    "vllm": f"--max-num-seqs {SLOTS} --max-num-queued-reqs {SLOTS + QUEUE} --scheduling-policy priority"
    " --enable-prompt-tokens-details",
    "sglang": f"--max-running-requests {SLOTS} --max-queued-requests {QUEUE} --enable-priority-scheduling"
    " --enable-cache-report",
}
ENVIRONMENT = {"vllm": {"VLLM_SERVER_DEV_MODE": "1"}, "sglang": {}}
"""vLLM resets its prefix cache only for developers."""

_STARTED = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def spans() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of an `engine` run once for each kind that the run names."""
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", metafunc.config.getoption("--real"), indirect=True, scope="session")


@pytest.fixture(scope="session")
def engine(request: pytest.FixtureRequest, spans: Receiver) -> Iterator[RunningEngine]:
    """A real engine, small enough to be filled by a test."""
    kind: str = request.param
    with running(kind, *FLAGS[kind].split(), env=ENVIRONMENT[kind], otlp_url=spans.url) as started:
        note_start(request.config, started)
        yield started


def note_start(config: pytest.Config, engine: RunningEngine) -> None:
    """For the summary."""
    config.stash.setdefault(_STARTED, []).append(f"{engine.kind} up in {engine.started_s:.0f} s")


POOL: dict[str, Any] = {"health": {"interval_s": 0.5, "timeout_s": 25.0}}
"""SGLang's health check takes a second and more, and a busy vLLM answers late."""


def pool_of(engine: RunningEngine, **more: Any) -> dict[str, Any]:
    return {"engine": engine.kind, **POOL, **more}


ROUTES = [{"model": MODEL_NAME, "split": {"p": 1}}]


def chat(content: str = "Tell me of rivers.", **more: Any) -> dict[str, Any]:
    """A request that generates exactly `max_tokens`, the same ones every time."""
    return {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 8,
        "temperature": 0,
        "ignore_eos": True,
        **more,
    }


async def at_work(engine: RunningEngine) -> int:
    """Requests that the engine itself says it runs or has queued."""
    async with httpx.AsyncClient(trust_env=False) as client:
        if engine.kind == "sglang":
            # Its gauges are as old as forty steps; this is what a router should ask.
            loads = (await client.get(f"{engine.url}/v1/loads", timeout=30)).json()["loads"]
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
        text = (await client.get(f"{engine.url}/metrics", timeout=30)).text
    assert VLLM.load is not None
    load = read_load(text, VLLM.load)
    assert load.running is not None, "a gauge that is not there would count as idle"
    assert load.waiting is not None
    return round(load.running + load.waiting)


async def until_idle(engine: RunningEngine, within_s: float = 10.0) -> None:
    """Waits until the engine has nothing to do. Raises TimeoutError."""
    async with asyncio.timeout(within_s):
        while await at_work(engine):
            await asyncio.sleep(0.02)


async def until_busy(engine: RunningEngine, requests: int, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while await at_work(engine) < requests:
            await asyncio.sleep(0.02)


async def in_flight_settles(gateway: RunningGateway) -> None:
    """Waits until the gateway has let go of everything."""
    async with asyncio.timeout(10):
        while any(gateway.in_flight()) or gateway.gateway.proxy.live:
            await asyncio.sleep(0.005)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Versions, seconds, and what ran against which engine."""
    config = terminalreporter.config
    if not config.getoption("--real"):
        return
    terminalreporter.section("real engines")
    terminalreporter.write_line("; ".join(config.stash.get(_STARTED, [])))
    for kind in config.getoption("--real"):
        found = places.installation(kind)
        assert found is not None
        terminalreporter.write_line(f"{kind} {found.version}: installed in {found.seconds:.0f} s, {found.size_mb:,} MB")
        for file, reports in sorted(_reports(terminalreporter, kind).items()):
            counts = Counter(report.outcome for report in reports if report.when == "call" or not report.passed)
            seconds = sum(report.duration for report in reports)
            told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
            terminalreporter.write_line(f"  {file:<40} {told}, {seconds:.0f} s")


def _reports(reporter: pytest.TerminalReporter, kind: str) -> dict[str, list[pytest.TestReport]]:
    """By file, set-up and teardown included; of the real engine, not of the stand-in that has its name."""
    found: dict[str, list[pytest.TestReport]] = defaultdict(list)
    for reports in reporter.stats.values():
        for report in reports:
            if (
                isinstance(report, pytest.TestReport)
                and f"[{kind}" in report.nodeid
                and "stand-in" not in report.nodeid
            ):
                found[report.nodeid.partition("::")[0]].append(report)
    return found
