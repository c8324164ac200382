import pytest

from loadgen.preflight.engine import EngineUnknown, ask
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


def test_nobody_there() -> None:
    with pytest.raises(EngineUnknown, match=r"127\.0\.0\.1:1"):
        ask("http://127.0.0.1:1")
