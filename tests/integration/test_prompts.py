"""Prompts of exact length and with nothing in common but what is planned, seen from the engine's side."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen import record
from protocol.records import RequestRecord
from tests.integration.conftest import weir
from tests.simulator.conftest import Running, started

KINDS = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    # Pages of 16 tokens: what a chat template puts before every prompt is shorter and is cached by neither.
    with started(request.param, KINDS[request.param], "--page-size", "16") as running:
        yield running


def sent(engine: Running, directory: Path, *arguments: str) -> list[RequestRecord]:
    """Some twenty requests."""
    traffic = ["--lengths", "20-400:3", "--arrivals", "constant:rate=100", "--duration", "0.2", "--seed", "3"]
    run = weir("run", "--url", engine.url, "--model", "tiny", "--out", str(directory), *traffic, *arguments)
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = list(record.read_requests(directory))
    assert {request.outcome for request in records} == {"ok"}
    return records


def test_a_warm_up_leaves_nothing_in_the_cache_that_the_run_could_use(engine: Running, tmp_path: Path) -> None:
    first = sent(engine, tmp_path / "first", "--warm-up", "12")
    assert record.read_manifest(tmp_path / "first").warm_up == {"ok": 12}
    assert [request.cached_tokens or 0 for request in first] == [0] * len(first)
    again = sent(engine, tmp_path / "again", "--warm-up", "12")
    assert [request.cached_tokens or 0 for request in record.read_warm_up(tmp_path / "again")] == [0] * 12
    # The same schedule's text is known by now.
    assert sum(request.cached_tokens or 0 for request in again) > 0.8 * sum(
        request.prompt_tokens or 0 for request in again
    )
