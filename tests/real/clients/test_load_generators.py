"""Other projects' load generators through the gateway: they see no failure, and its records count as they do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from tests.gateway.conftest import StartGateway
from tests.real.clients.conftest import note
from tests.real.clients.test_clients import needs, run, version_of
from tests.real.conftest import ROUTES, pool_of, until_idle
from tools.clients import install
from tools.engines import places
from tools.engines.launch import MODEL_NAME, RunningEngine, installed, python

pytestmark = pytest.mark.timeout(300)

REQUESTS = 12
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16

VLLM_BENCH = """
import argparse
from vllm.benchmarks.serve import add_cli_args, main
parser = argparse.ArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""What `vllm bench serve` runs; the command itself looks for a distribution that the CPU build is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A load generator: its command, and what its own report says of requests, failures and mean TTFT in ms."""

    name: str
    environment: str
    """Where it is installed: one of the clients', or vLLM's own."""
    ready: Callable[[], None]
    command: Callable[[str, Path], list[str]]
    read: Callable[[Path], tuple[int, int, float]]


def vllm_command(url: str, folder: Path) -> list[str]:
    return [
        *(str(python("vllm")), "-c", VLLM_BENCH, "--backend", "openai-chat", "--base-url", url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL_NAME, "--tokenizer", str(places.model())),
        *("--dataset-name", "random", "--random-input-len", str(PROMPT_TOKENS)),
        *("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(REQUESTS), "--max-concurrency", "2"),
        *("--ignore-eos", "--save-result", "--result-dir", str(folder), "--result-filename", "out.json"),
    ]


def vllm_ready() -> None:
    if not installed("vllm"):
        pytest.skip("not installed: python -m tools.engines vllm")


def vllm_read(folder: Path) -> tuple[int, int, float]:
    out = json.loads((folder / "out.json").read_text())
    return out["completed"], out["failed"], out["mean_ttft_ms"]


def guidellm_command(url: str, folder: Path) -> list[str]:
    return [
        *(str(install.place("guidellm") / "bin" / "guidellm"), "run"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL_NAME},request_format=/v1/chat/completions"),
        *("--profile", "kind=concurrent,streams=2", "--constraint", f"kind=max_requests,count={REQUESTS}"),
        *("--tokenizer", f"kind=huggingface_auto,model={places.model()}"),
        *("--data", f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}"),
        *("--output", f"kind=json,path={folder / 'out.json'}", "--disable-console-interactive"),
    ]


def guidellm_read(folder: Path) -> tuple[int, int, float]:
    (benchmark,) = json.loads((folder / "out.json").read_text())["benchmarks"]
    totals, ttft = benchmark["metrics"]["request_totals"], benchmark["metrics"]["time_to_first_token_ms"]
    return totals["successful"], totals["errored"] + totals["incomplete"], ttft["successful"]["mean"]


def aiperf_command(url: str, folder: Path) -> list[str]:
    return [
        *(str(install.place("aiperf") / "bin" / "aiperf"), "profile", "-m", MODEL_NAME, "--url", url),
        *("--tokenizer", str(places.model()), "--endpoint-type", "chat", "--streaming", "--concurrency", "2"),
        *("--request-count", str(REQUESTS), "--isl", str(PROMPT_TOKENS), "--isl-stddev", "0"),
        *("--osl", str(OUTPUT_TOKENS), "--osl-stddev", "0", "--extra-inputs", "ignore_eos:true"),
        *("--ui-type", "none", "--no-gpu-telemetry", "--no-server-metrics", "--output-artifact-dir", str(folder)),
    ]


def aiperf_read(folder: Path) -> tuple[int, int, float]:
    out: dict[str, Any] = json.loads((folder / "profile_export_aiperf.json").read_text())
    failed = out.get("error_request_count", {"avg": 0})["avg"]
    return round(out["request_count"]["avg"]), round(failed), out["time_to_first_token"]["avg"]


TOOLS = (
    Tool(
        name="vllm bench serve",
        environment="vllm",
        ready=vllm_ready,
        command=vllm_command,
        read=vllm_read,
    ),
    Tool(
        name="GuideLLM",
        environment="guidellm",
        ready=lambda: needs("guidellm"),
        command=guidellm_command,
        read=guidellm_read,
    ),
    Tool(name="AIPerf", environment="aiperf", ready=lambda: needs("aiperf"), command=aiperf_command, read=aiperf_read),
)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_a_load_generator_sees_no_failure(
    engine: RunningEngine, start_gateway: StartGateway, tool: Tool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tool.ready()
    async with start_gateway([engine.url], pool=pool_of(engine), routes=ROUTES) as gateway:
        await run(tool.command(gateway.url, tmp_path), tmp_path)
        await until_idle(engine)
        records = [record for record in await gateway.records() if record.stream]
    completed, failed, ttft_ms = tool.read(tmp_path)
    vllm = tool.environment == "vllm"
    version = places.VERSIONS["vllm"] if vllm else await version_of(tool.environment, tool.environment)
    whole = [record for record in records if record.outcome == "ok"]
    recorded_ms = mean((record.first_token_ns or 0) * 1e-6 for record in whole)
    note(
        request.config,
        engine,
        name=tool.name,
        version=version,
        what=f"{REQUESTS} streams, two at a time; its mean TTFT beside the gateway's own",
        passed=completed,
        failed={"failures": str(failed)} if failed else {},
        more=f"{ttft_ms:.0f} ms, recorded {recorded_ms:.0f} ms",
    )
    assert (completed, failed) == (REQUESTS, 0)
    # Some ask before they count, some leave what they have begun too much.
    assert {record.outcome for record in records} <= {"ok", "client_gone"}
    assert REQUESTS <= len(whole) <= len(records) <= REQUESTS + 4
    assert ttft_ms > recorded_ms - 5
