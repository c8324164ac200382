import pytest

from loadgen.preflight.engine import EngineUnknown, _flat, ask
from tests.simulator.conftest import started


def test_vllm_shows_little_and_says_how_to_see_more() -> None:
    with started("vllm", "--profile", "h100_llama-3-8b") as stand_in:
        engine = ask(stand_in.url)
    assert (engine.kind, engine.version) == ("vllm", "0.32.0")
    assert engine.effective["served_model_name"] == "tiny"
    assert "VLLM_SERVER_DEV_MODE" in engine.hint


def test_sglang_shows_everything() -> None:
    with started("sglang", "--profile", "h100_llama-3-8b") as stand_in:
        engine = ask(stand_in.url)
    assert (engine.kind, engine.hint) == ("sglang", "")
    assert engine.effective["schedule_policy"] == "fcfs"


def test_a_name_that_two_groups_have_is_told_with_its_group() -> None:
    """vLLM's scheduling policy is one of two policies."""
    config = {"seed": 0, "scheduler_config": {"policy": "fcfs", "n": 1}, "parallel_config": {"eplb": {"policy": "x"}}}
    assert _flat(config) == {"seed": 0, "scheduler_config.policy": "fcfs", "n": 1, "eplb.policy": "x"}


def test_nobody_there() -> None:
    with pytest.raises(EngineUnknown, match=r"127\.0\.0\.1:1"):
        ask("http://127.0.0.1:1")
