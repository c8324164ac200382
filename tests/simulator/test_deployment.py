"""What an engine is built from: limits a kind chooses by itself, its fingerprint, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.deployment import Deployment, build
from simulator.options import ServerOptions
from simulator.profile import ProfileError


def deploy(kind: Any, *, profile: str = "h100_llama-3-8b", **more: Any) -> Deployment:
    return build(ServerOptions(kind=kind, profile=profile, **more))


@pytest.mark.parametrize(
    ("kind", "profile", "running", "step_tokens"),
    [
        ("vllm", "h100_llama-3-8b", 1024, 8192),
        ("vllm", "a100-80gb-x2_llama-3-8b", 256, 2048),
        ("sglang", "h100_llama-3-8b", 4096, 8192),
    ],
)
async def test_limits_follow_the_kind_and_the_gpu(kind: str, profile: str, running: int, step_tokens: int) -> None:
    limits = deploy(kind, profile=profile).limits
    assert (limits.max_running, limits.max_step_tokens) == (running, step_tokens)
    assert limits.prefill_first == limits.reserves_output == (kind == "sglang")


async def test_the_fingerprint_tells_apart_what_behaves_differently() -> None:
    plain, again = (deploy("vllm") for _ in range(2))
    narrow = deploy("vllm", max_num_seqs=2)
    pair = deploy("vllm", profile="a100-80gb-x2_llama-3-8b")
    assert plain.fingerprint == again.fingerprint != narrow.fingerprint
    assert pair.fingerprint.startswith("vllm-0.32.0-tp2-")


async def test_what_cannot_run_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="neither a built-in"):
        deploy("vllm", profile="none")
    with pytest.raises(ValueError, match="exceeds the KV capacity of 96"):
        deploy("vllm", kv_tokens=100, max_model_len=200)
    with pytest.raises(OSError, match="No such file"):
        deploy("vllm", record_streams=tmp_path / "missing" / "file")


async def test_generations_are_counted_and_quiet_is_when_there_is_none() -> None:
    engine = deploy("sglang", kv_tokens=8192)
    assert engine.quiet.is_set()
    with engine.generation(), engine.generation():
        assert (engine.generating, engine.quiet.is_set()) == (2, False)
    assert (engine.generating, engine.quiet.is_set()) == (0, True)
