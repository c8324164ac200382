"""The engines as processes: bytes on the wire, errors, clients that leave, full queues, shutdown."""

from __future__ import annotations

import hashlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello there"}]

_MAIN = (
    "import argparse, sys; from simulator import options, server; parser = argparse.ArgumentParser(); "
    "options.add_arguments(parser); sys.exit(server.serve(options.from_arguments(parser.parse_args())))"
)


@dataclass(frozen=True, slots=True)
class Running:
    """A started engine."""

    kind: str
    process: subprocess.Popen[str]
    greeting: str
    url: str
    http: httpx.Client

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def gauge(self, name: str) -> float:
        """Value of a metric, summed over its series."""
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}[{{ ]", line))

    @property
    def running(self) -> float:
        return self.gauge("vllm:num_requests_running" if self.kind == "vllm" else "sglang:num_running_reqs")

    @property
    def waiting(self) -> float:
        return self.gauge("vllm:num_requests_waiting" if self.kind == "vllm" else "sglang:num_queue_reqs")


@contextmanager
def started(kind: str, *arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-W", "error", "-c", _MAIN, "--kind", kind, "--model", "tiny", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            url = greeting.split()[2]
            with httpx.Client(base_url=url, timeout=30) as http:
                yield Running(kind, process, greeting, url, http)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="session", params=["vllm", "sglang"])
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    """One engine of each kind with its defaults, shared by all tests."""
    with started(request.param, "--seed", "1") as running:
        yield running


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts engines of a test's own: `start(kind, *arguments)`."""
    with ExitStack() as stack:
        yield lambda kind, *arguments: stack.enter_context(started(kind, *arguments))


def chat(**more: object) -> dict[str, object]:
    return {"messages": HELLO, "ignore_eos": True, **more}


def normalised(text: str) -> str:
    """Ids, times, fingerprints and words replaced, as they differ between any two answers."""
    for pattern, replacement in (
        (r'"id":"[^"]+"', '"id":"ID"'),
        (r'"created":\d+', '"created":0'),
        (r"vllm-0\.32\.0-[0-9a-f]{8}", "FINGERPRINT"),
        (r'"(content|text)":"( [a-z]{4})+"', r'"\1":"WORDS"'),
    ):
        text = re.sub(pattern, replacement, text)
    return text


CHUNK = 'data: {"id":"ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":['
STREAMS = {
    "vllm": [
        (
            '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],'
            '"prompt_token_ids":null,"prompt_text":null}'
        ),
        '{"index":0,"delta":{"content":"WORDS"},"logprobs":null,"finish_reason":null,"token_ids":null}]}',
        (
            '{"index":0,"delta":{"content":"WORDS"},"logprobs":null,"finish_reason":"length","stop_reason":null,'
            '"token_ids":null}]}'
        ),
        '],"usage":{"prompt_tokens":12,"total_tokens":14,"completion_tokens":2},"system_fingerprint":"FINGERPRINT"}',
    ],
    "sglang": [
        (
            '{"index":0,"delta":{"reasoning_content":null,"role":"assistant","content":""},"logprobs":null,'
            '"finish_reason":null,"matched_stop":null}]}'
        ),
        (
            '{"index":0,"delta":{"reasoning_content":null,"content":"WORDS"},"logprobs":null,"finish_reason":null,'
            '"matched_stop":null}]}'
        ),
        (
            '{"index":0,"delta":{"reasoning_content":null,"content":"WORDS"},"logprobs":null,"finish_reason":null,'
            '"matched_stop":null}]}'
        ),
        '{"index":0,"delta":{"reasoning_content":null},"logprobs":null,"finish_reason":"length","matched_stop":null}]}',
        (
            '],"usage":{"prompt_tokens":12,"total_tokens":14,"completion_tokens":2,"prompt_tokens_details":null,'
            '"reasoning_tokens":0,"completion_tokens_details":null}}'
        ),
    ],
}


def test_a_chat_stream_has_the_recorded_head_and_body(engine: Running) -> None:
    body = chat(max_tokens=2, stream=True, stream_options={"include_usage": True}, model="tiny")
    answer = engine.http.post(CHAT, json=body)
    headers = [(key, value) for key, value in answer.headers.multi_items() if key != "date"]
    assert headers == [
        ("server", "uvicorn"),
        ("content-type", "text/event-stream; charset=utf-8"),
        ("vary", "Origin"),
        ("transfer-encoding", "chunked"),
    ]
    *chunks, done, rest = normalised(answer.text).split("\n\n")
    assert chunks == [CHUNK + chunk for chunk in STREAMS[engine.kind]]
    assert (done, rest) == ("data: [DONE]", "")


def test_stream_and_whole_answer_say_the_same(engine: Running) -> None:
    whole = engine.http.post(TEXT, json={"prompt": "once", "max_tokens": 9, "ignore_eos": True}).json()
    streamed = engine.http.post(TEXT, json={"prompt": "once", "max_tokens": 9, "ignore_eos": True, "stream": True})
    events = [msgspec.json.decode(line[6:]) for line in streamed.text.split("\n\n")[:-2]]
    assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
    assert whole["usage"]["completion_tokens"] == len(whole["choices"][0]["text"].split()) == 9


def test_the_openai_client_reads_streams_choices_and_usage(engine: Running) -> None:
    client = openai.OpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)
    with client:
        stream = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=7,
            n=2,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        texts = {0: "", 1: ""}
        usage = None
        for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
            usage = chunk.usage or usage
    assert [len(text.split()) for text in texts.values()] == [7, 7]
    assert texts[0] != texts[1]
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (11, 14)


def test_several_prompts_and_token_prompts(engine: Running) -> None:
    body = {"prompt": [[5, 6, 7], [8]], "n": 2, "max_tokens": 3, "ignore_eos": True}
    answer = engine.http.post(TEXT, json=body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (4, 12)
    texts = {"prompt": ["a", ""], "max_tokens": 1}
    assert engine.http.post(TEXT, json=texts).json()["usage"]["prompt_tokens"] == 2


def test_an_answer_ends_by_itself_without_ignore_eos(engine: Running) -> None:
    answer = engine.http.post(CHAT, json={"messages": HELLO, "seed": 42}).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    stopped = engine.http.post(CHAT, json=chat(max_tokens=400, stop=" z")).json()["choices"][0]
    assert stopped["finish_reason"] == "stop"
    assert " z" not in stopped["message"]["content"]
    assert stopped["stop_reason" if engine.kind == "vllm" else "matched_stop"] == " z"


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


def test_a_refused_stream_is_a_plain_error(engine: Running) -> None:
    answer = engine.http.post(CHAT, json=chat(stream=True, max_tokens=99_999))
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert engine.http.post(CHAT, content=b"{", headers={"content-type": "text/plain"}).status_code == 400


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
        assert engine.http.get("/load").json() == {"server_load": 0}
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


def eventually(condition: Callable[[], bool], within_s: float = 5) -> float:
    """Seconds until `condition` holds; polls the engine, whose answers pace it."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < within_s
    return time.monotonic() - began


def ask(engine: Running, body: dict[str, object], path: str = CHAT) -> socket.socket:
    """Send a request and return its socket without reading."""
    connection = socket.create_connection(("127.0.0.1", engine.port))
    raw = msgspec.json.encode(body)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    return connection


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_request(engine: Running, stream: bool) -> None:
    finished = engine.gauge("vllm:request_success_total|sglang:num_aborted_requests_total")
    connection = ask(engine, chat(max_tokens=4000, stream=stream))
    eventually(lambda: engine.running == 1)
    connection.close()
    eventually(lambda: engine.running == 0)
    now = engine.gauge("vllm:request_success_total|sglang:num_aborted_requests_total")
    assert now - finished == (0 if engine.kind == "vllm" else 1)


@pytest.fixture(params=["vllm", "sglang"])
def narrow(request: pytest.FixtureRequest, start: Callable[..., Running]) -> Running:
    """An engine that runs one request and lets one wait."""
    return start(request.param, "--max-num-seqs", "1", "--max-queued", "2" if request.param == "vllm" else "1")


def test_a_queued_client_that_leaves_is_noticed_and_a_full_queue_refuses(narrow: Running) -> None:
    runs = ask(narrow, chat(max_tokens=4000, stream=True))
    eventually(lambda: narrow.running == 1)
    waits = ask(narrow, chat(max_tokens=4, stream=True))
    eventually(lambda: narrow.waiting == 1)

    whole = narrow.http.post(CHAT, json=chat(max_tokens=4))
    assert whole.status_code == 503
    streamed = narrow.http.post(CHAT, json=chat(max_tokens=4, stream=True))
    assert streamed.status_code == 200
    error, done, rest = streamed.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    if narrow.kind == "vllm":
        assert whole.json()["error"]["type"] == "Service Unavailable"
        assert error.startswith('data: {"error": {"message": "The engine is currently busy')
        assert narrow.gauge("vllm:admission_rejections_total") == 2
    else:
        assert whole.json()["type"] == "503"
        assert error.startswith('data: {"error": {"object": "error", "message": "The request queue is full."')

    waits.close()
    eventually(lambda: narrow.waiting == 0)
    assert narrow.running == 1
    runs.close()
    eventually(lambda: narrow.running == 0)
    assert narrow.http.post(CHAT, json=chat(max_tokens=4)).status_code == 200


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


def test_recorded_streams_are_the_bytes_that_were_read(tmp_path: Path, start: Callable[..., Running]) -> None:
    file = tmp_path / "streams.jsonl"
    engine = start("vllm", "--record-streams", str(file), "--enable-request-id-headers")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01", "x-request-id": "mine"}
    read = engine.http.post(CHAT, json=chat(max_tokens=5, stream=True), headers=headers)
    assert read.headers["x-request-id"] == "mine"
    refused = engine.http.post(TEXT, json={"prompt": "a", "max_tokens": 0})
    leaver = ask(engine, chat(max_tokens=4000, stream=True))
    eventually(lambda: engine.running == 1)
    leaver.close()
    eventually(lambda: file.read_bytes().count(b"\n") == 3)
    first, second, third = map(msgspec.json.decode, file.read_bytes().splitlines())
    assert first == {
        "trace_id": trace,
        "request_id": "chatcmpl-mine",
        "path": CHAT,
        "status": 200,
        "bytes": len(read.content),
        "sha256": hashlib.sha256(read.content).hexdigest(),
        "completed": True,
    }
    assert (second["status"], second["sha256"], second["trace_id"], second["completed"]) == (
        400,
        hashlib.sha256(refused.content).hexdigest(),
        None,
        True,
    )
    assert (third["status"], third["completed"]) == (200, False)


def test_cached_tokens_are_reported_when_told_to(engine: Running, start: Callable[..., Running]) -> None:
    body = {"prompt": "word " * 100, "max_tokens": 1}
    assert engine.http.post(TEXT, json=body).json()["usage"]["prompt_tokens_details"] is None
    telling = start(engine.kind, "--enable-cache-report")
    first, second = (telling.http.post(TEXT, json=body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    # 101 tokens: all but the last (SGLang), whole blocks of 16 (vLLM).
    assert second["prompt_tokens_details"]["cached_tokens"] == (96 if engine.kind == "vllm" else 100)


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


def test_bad_options_say_what_to_do(start: Callable[..., Running], capfd: Any) -> None:
    with pytest.raises(IndexError):
        start("vllm", "--kv-tokens", "100", "--max-model-len", "200")
    assert "exceeds the KV capacity of 96 tokens" in capfd.readouterr().err
