"""Everything beside generation: health, models, load, tokenizer, cache and abort, as each kind has them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pytest

from tests.simulator.conftest import CHAT, HELLO, TEXT, Running, ask, chat, eventually


def test_control_endpoints_of_both_kinds(engine: Running) -> None:
    model = engine.http.get("/v1/models").json()["data"][0]
    assert (model["id"], model["owned_by"], model["max_model_len"]) == ("tiny", engine.kind, 8192)
    tokens = engine.http.post("/tokenize", json={"messages": HELLO}).json()
    assert tokens["count"] == len(tokens["tokens"]) == 12
    assert engine.http.post("/tokenize", json={"prompt": "a b"}).json()["count"] == 2
    assert engine.http.post("/tokenize", content=b"x").status_code == 400
    ping = engine.http.get("/ping")
    assert (ping.status_code, ping.content) == (200, b"")
    began = time.monotonic()
    assert engine.http.get("/health").status_code == 200
    assert (time.monotonic() - began >= 1) == (engine.kind == "sglang")


def test_control_endpoints_of_one_kind(engine: Running) -> None:
    if engine.kind == "vllm":
        assert engine.http.get("/version").json() == {"version": "0.32.0"}
        assert engine.http.post("/reset_prefix_cache").json() == {"success": True}
        assert engine.http.post("/abort_requests", content=b"").status_code == 400
    else:
        assert engine.http.get("/ready").status_code == 200
        load = engine.http.get("/v1/loads").json()["loads"][0]
        assert (load["num_running_reqs"], load["dp_rank"]) == (0, 0)
        assert engine.http.get("/server_info").json()["served_model_name"] == "tiny"
        assert engine.http.get("/model_info").json()["is_generation"]
        assert engine.http.post("/flush_cache").text.startswith("Cache flushed.\n")
        assert engine.http.post("/abort_request", json={"rid": "nobody"}).status_code == 200
        assert engine.http.post("/abort_request", content=b"").status_code == 400


@pytest.mark.parametrize(("flags", "expected"), [((), 0), (("--enable-server-load-tracking",), 1)])
def test_load_counts_requests_when_told_to_track_it(
    start: Callable[..., Running], flags: tuple[str, ...], expected: int
) -> None:
    engine = start("vllm", *flags)
    with ask(engine, chat(max_tokens=4000, stream=True)):
        eventually(lambda: engine.running == 1)
        assert engine.http.get("/load").json() == {"server_load": expected}
    eventually(lambda: engine.http.get("/load").json() == {"server_load": 0})


def test_sglangs_view_of_itself_and_its_cache_while_a_request_runs(start: Callable[..., Running]) -> None:
    engine = start("sglang", "--max-running-requests", "4")
    with ask(engine, chat(max_tokens=4000, stream=True)):
        eventually(lambda: engine.running == 1)
        [load] = engine.http.get("/v1/loads").json()["loads"]
        assert (load["num_running_reqs"], load["max_running_requests"], load["utilization"]) == (1, 4, 0.25)
        assert load["num_used_tokens"] > 0
        refused = engine.http.post("/flush_cache")
        assert (refused.status_code, refused.text) == (400, "Flush cache failed.\n")
        assert engine.http.get("/health").status_code == 200
    eventually(lambda: engine.running == 0)
    assert engine.http.post("/flush_cache").status_code == 200


@pytest.mark.parametrize(("kind", "path"), [("vllm", "/reset_prefix_cache"), ("sglang", "/flush_cache")])
def test_a_reset_cache_has_forgotten_its_prefixes(start: Callable[..., Running], kind: str, path: str) -> None:
    engine = start(kind, "--enable-cache-report")

    def cached_tokens() -> int:
        answer = engine.http.post(TEXT, json={"prompt": "word " * 100, "max_tokens": 1}).json()
        cached: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached

    assert (cached_tokens(), cached_tokens() > 0) == (0, True)
    assert engine.http.post(path).status_code == 200
    assert cached_tokens() == 0


def test_abort_by_id(engine: Running) -> None:
    answers: dict[str, str] = {}

    def run(name: str) -> None:
        headers = {"x-request-id": name}
        body = chat(max_tokens=4000, stream=True, rid=name)
        answers[name] = httpx.post(f"{engine.url}{CHAT}", json=body, headers=headers, timeout=30).text

    threads = [threading.Thread(target=run, args=(name,)) for name in ("job-1", "job-10", "other")]
    for thread in threads:
        thread.start()
    eventually(lambda: engine.running == 3)
    if engine.kind == "vllm":
        # Ids are compared whole.
        engine.http.post("/inference/v1/abort_requests", json={"request_ids": ["chatcmpl-job-1"]})
        eventually(lambda: engine.running == 2)
        engine.http.post("/abort_requests", json={"request_ids": []})
    else:
        duplicate = engine.http.post(CHAT, json=chat(rid="other"))
        assert duplicate.json()["message"] == "Duplicate request ID detected: other"
        # A rid also names those it is a prefix of.
        engine.http.post("/abort_request", json={"rid": "job-1"})
        eventually(lambda: engine.running == 1)
        engine.http.post("/abort_request", json={"rid": "", "abort_all": True})
    for thread in threads:
        thread.join()
    for text in answers.values():
        assert '"finish_reason":"abort"' in text
        assert text.endswith("data: [DONE]\n\n")


def test_one_choice_of_a_completion_is_aborted_by_its_number(start: Callable[..., Running]) -> None:
    engine = start("vllm")
    answers: list[httpx.Response] = []

    def run() -> None:
        body = {"prompt": ["a", "b"], "max_tokens": 250, "ignore_eos": True}
        answers.append(httpx.post(f"{engine.url}{TEXT}", json=body, headers={"x-request-id": "two"}, timeout=30))

    thread = threading.Thread(target=run)
    thread.start()
    eventually(lambda: engine.running == 2)
    engine.http.post("/abort_requests", json={"request_ids": ["cmpl-two-1"]})
    thread.join()
    first, second = answers[0].json()["choices"]
    assert (first["finish_reason"], second["finish_reason"]) == ("length", "abort")
    assert len(first["text"].split()) == 250 > len(second["text"].split())


def test_an_empty_rid_aborts_nothing(start: Callable[..., Running]) -> None:
    engine = start("sglang")
    with ask(engine, chat(max_tokens=4000, stream=True)):
        eventually(lambda: engine.running == 1)
        assert engine.http.post("/abort_request", json={"rid": ""}).status_code == 200
        assert engine.running == 1
