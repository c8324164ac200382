"""What an engine does beside answering: what it counts, when it lets go, how long it keeps a connection."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

import httpx
import msgspec
import pytest

from protocol.prometheus import parse
from tests.contract.conftest import CAPTURES, Subject, note
from tests.contract.known import FROM_THE_FIRST_EVENT

pytestmark = pytest.mark.timeout(240)

RUNNING = {"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}
WAITING = {"vllm": "vllm:num_requests_waiting", "sglang": "sglang:num_queue_reqs"}
RESET = {"vllm": "/reset_prefix_cache", "sglang": "/flush_cache"}
PROMPT_TOKENS = {"vllm": "vllm:prompt_tokens_total", "sglang": "sglang:prompt_tokens_total"}
OUTPUT_TOKENS = {"vllm": "vllm:generation_tokens_total", "sglang": "sglang:generation_tokens_total"}
CACHED_TOKENS = {"vllm": "vllm:prefix_cache_hits_total", "sglang": "sglang:cached_tokens_total"}


def chat(**more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": "Tell me of rivers."}]
    return {"model": "tiny", "messages": messages, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}


def ask(subject: Subject, **more: object) -> httpx.Response:
    return subject.http.post("/v1/chat/completions", json=chat(**more))


def total(subject: Subject, name: str) -> float:
    return sum(one.value for one in parse(subject.http.get("/metrics").text) if one.name == name)


def at_work(subject: Subject) -> float:
    if subject.kind == "sglang":
        loads = subject.http.get("/v1/loads?include=core").json()["loads"]
        return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)
    return total(subject, RUNNING[subject.kind]) + total(subject, WAITING[subject.kind])


def wait_for(reached: Callable[[], bool], within_s: float = 15.0) -> None:
    deadline_s = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < deadline_s, f"not reached within {within_s:g} s"
        time.sleep(0.02)


def test_tokens_are_counted(subject: Subject, request: pytest.FixtureRequest) -> None:
    before = {name: total(subject, name) for name in (PROMPT_TOKENS[subject.kind], OUTPUT_TOKENS[subject.kind])}
    usage = ask(subject).json()["usage"]
    wait_for(lambda: total(subject, OUTPUT_TOKENS[subject.kind]) == before[OUTPUT_TOKENS[subject.kind]] + 8)
    grown = total(subject, PROMPT_TOKENS[subject.kind]) - before[PROMPT_TOKENS[subject.kind]]
    assert grown == usage["prompt_tokens"]
    note(request.config, "counts prompt and output tokens", subject, "same")


def test_a_repeated_prefix_hits_the_cache_until_it_is_reset(subject: Subject, request: pytest.FixtureRequest) -> None:
    wait_for(lambda: at_work(subject) == 0)
    assert subject.http.post(RESET[subject.kind]).status_code == 200
    name, long = CACHED_TOKENS[subject.kind], [{"role": "user", "content": "Rain falls on the hills. " * 60}]
    before = total(subject, name)
    ask(subject, messages=long)
    assert total(subject, name) - before < 64
    tokens = ask(subject, messages=long).json()["usage"]["prompt_tokens"]
    wait_for(lambda: total(subject, name) - before > 0.8 * tokens)
    note(request.config, "prefix cache, its counter and its reset", subject, "same")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_client_that_leaves_ends_its_request(subject: Subject, stream: bool, request: pytest.FixtureRequest) -> None:
    """SGLang looks only now and then when it does not stream; vLLM at once."""
    wait_for(lambda: at_work(subject) == 0)
    body = msgspec.json.encode(chat(max_tokens=8000, stream=stream))
    with socket.create_connection((subject.http.base_url.host, subject.http.base_url.port or 80)) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        client.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: at_work(subject) == 1)
    wait_for(lambda: at_work(subject) == 0)
    note(request.config, f"aborts when the client leaves ({'stream' if stream else 'whole'})", subject, "same")


def test_an_idle_connection_is_closed_after_five_seconds(subject: Subject, request: pytest.FixtureRequest) -> None:
    address = (subject.http.base_url.host, subject.http.base_url.port or 80)
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        since_s = time.monotonic()
        assert client.recv(4096) == b""
        assert 4.9 < time.monotonic() - since_s < 6
    note(request.config, "closes an idle connection after 5 s", subject, "same")


def test_a_stand_in_invents_no_series(subject: Subject, request: pytest.FixtureRequest) -> None:
    """Each of its metrics is one that the real engine's captured page has, with the labels that it has there."""
    ask(subject, stream=True)
    page, captured = subject.http.get("/metrics").text, CAPTURES / subject.kind / "metrics.txt"
    if subject.real and os.environ.get("WEIR_CAPTURE"):
        captured.write_text(f"# {subject.name}: GET /metrics after streamed, cached and aborted requests\n{page}")
    real_series = {one.name: frozenset(one.labels) for one in parse(captured.read_text())}
    found = {one.name: frozenset(one.labels) for one in parse(page)}
    known = {name: labels for name, labels in found.items() if name.startswith(("vllm:", "sglang:"))}
    assert len(known) > 20
    if subject.real:
        return
    invented = {name: labels for name, labels in known.items() if name not in real_series.keys() | FROM_THE_FIRST_EVENT}
    assert invented == {}
    # The labels of an information series are settings, of which a stand-in has fewer.
    assert {
        name
        for name, labels in known.items()
        if labels != real_series.get(name, labels) and not name.endswith("_config_info")
    } == set()
    note(request.config, "metrics: no series that the engine has not", subject, "same")
