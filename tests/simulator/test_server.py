"""The life of an engine's process: where it listens, what it does not know, how it drains and stops."""

from __future__ import annotations

import signal
from collections.abc import Callable

import httpx
import pytest

from tests.simulator.conftest import CHAT, Running, chat, eventually


def test_unknown_paths_methods_and_models(engine: Running) -> None:
    missing = engine.http.get("/get_load")
    assert (missing.status_code, missing.text) == (404, '{"detail":"Not Found"}')
    wrong = engine.http.get(CHAT)
    assert (wrong.status_code, wrong.text) == (405, '{"detail":"Method Not Allowed"}')
    assert wrong.headers["allow"] == "POST"
    unknown = engine.http.post(CHAT, json=chat(model="nope", max_tokens=1))
    if engine.kind == "vllm":
        assert unknown.status_code == 404
        assert unknown.json()["error"]["message"] == "The model `nope` does not exist. Valid aliases: tiny."
    else:
        assert (unknown.status_code, unknown.json()["model"]) == (200, "nope")


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_sigterm_lets_streams_finish_and_then_stops(kind: str, start: Callable[..., Running]) -> None:
    engine = start(kind)
    assert engine.greeting == f"listening on {engine.url} ({kind}, h100_llama-3-8b, tiny)\n"
    with engine.http.stream("POST", CHAT, json=chat(max_tokens=150, stream=True)) as answer:
        chunks = answer.iter_text()
        text = next(chunks)
        engine.process.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=engine.url) as other:
            if kind == "vllm":
                eventually(lambda: other.post(CHAT, json=chat(max_tokens=1)).status_code == 500)
                refused = other.post(CHAT, json=chat(max_tokens=1)).json()["error"]
                assert refused["message"] == "cannot schedule new futures after shutdown"
                assert other.get("/health").status_code == 200
            else:
                eventually(lambda: other.get("/ready").status_code == 503)
                assert other.get("/health").status_code == 503
                assert other.post(CHAT, json=chat(max_tokens=1)).status_code == 200
        text += "".join(chunks)
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason":"length"' in text
    assert engine.process.wait(timeout=5) == 0


def test_sigterm_cuts_what_takes_too_long(start: Callable[..., Running]) -> None:
    engine = start("vllm", "--shutdown-timeout", "0.1")
    with engine.http.stream("POST", CHAT, json=chat(max_tokens=4000, stream=True)) as answer:
        engine.process.send_signal(signal.SIGTERM)
        text = answer.read().decode()
    assert '"finish_reason":"abort"' in text
    assert engine.process.wait(timeout=5) == 0


def test_bad_options_say_what_to_do(start: Callable[..., Running], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(IndexError):
        start("vllm", "--kv-tokens", "100", "--max-model-len", "200")
    assert "exceeds the KV capacity of 96 tokens" in capfd.readouterr().err
