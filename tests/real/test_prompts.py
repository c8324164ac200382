"""The load generator's prompts at real engines: what they count is what was planned, of text as of token ids."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from loadgen import record
from tools.engines.launch import MODEL_NAME, RunningEngine

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("made_of", ["text", "ids"])
async def test_prompts_have_exactly_the_tokens_that_were_planned(
    engine: RunningEngine, tmp_path: Path, made_of: str
) -> None:
    run = [
        *("run", "--url", engine.url, "--model", MODEL_NAME, "--tokenize", engine.url, "--out", str(tmp_path / "run")),
        *("--lengths", "20-300:4", "--concurrency", "2", "--requests", "10", "--warm-up", "2", "--seed", "5"),
        *(["--token-ids"] if made_of == "ids" else []),
    ]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "weir", *run)
    assert await process.wait() == 0
    records = list(record.read_requests(tmp_path / "run"))
    assert [request.outcome for request in records] == ["ok"] * 10
    assert [request.prompt_tokens for request in records] == [request.prompt_tokens_planned for request in records]
    assert [request.output_tokens for request in records] == [4] * 10
    manifest = record.read_manifest(tmp_path / "run")
    assert manifest.warm_up == {"ok": 2}
    # vLLM keeps blocks, longer than how a template begins; SGLang single tokens, of which some agree by chance.
    most = manifest.template_tokens + 2 if engine.kind == "sglang" else 0
    assert max(request.cached_tokens or 0 for request in records) <= most
