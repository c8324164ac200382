"""Generation over the wire: bytes of streams, what they say, clients that leave, full queues, evidence."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import openai
import pytest

from protocol.records import StreamRecord, read_lines
from tests.simulator.conftest import CHAT, HELLO, TEXT, Running, ask, chat, eventually


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


def test_usage_so_far_is_in_every_chunk_with_text_when_asked_for(engine: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    answer = engine.http.post(CHAT, json=chat(max_tokens=4, stream=True, stream_options=options))
    events = [msgspec.json.decode(line[6:]) for line in answer.text.split("\n\n")[:-2]]
    told = [event["usage"] for event in events if event["choices"] and event["choices"][0]["delta"].get("content")]
    text = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
    counts = [usage["completion_tokens"] for usage in told]
    assert counts == sorted(set(counts))
    assert counts[-1] == len(text.split()) == 4
    assert {usage["prompt_tokens"] for usage in told} == {12}


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


def test_a_refused_stream_is_a_plain_error(engine: Running) -> None:
    answer = engine.http.post(CHAT, json=chat(stream=True, max_tokens=99_999))
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/json")
    assert engine.http.post(CHAT, content=b"{", headers={"content-type": "text/plain"}).status_code == 400


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
    first, second, third = read_lines(file, StreamRecord)
    assert first == StreamRecord(
        trace_id=trace,
        request_id="chatcmpl-mine",
        path=CHAT,
        status=200,
        bytes=len(read.content),
        sha256=hashlib.sha256(read.content).hexdigest(),
        completed=True,
    )
    assert second == StreamRecord(
        trace_id=None,
        request_id=None,
        path=TEXT,
        status=400,
        bytes=len(refused.content),
        sha256=hashlib.sha256(refused.content).hexdigest(),
        completed=True,
    )
    assert (third.status, third.completed) == (200, False)


def test_cached_tokens_are_reported_when_told_to(engine: Running, start: Callable[..., Running]) -> None:
    body = {"prompt": "word " * 100, "max_tokens": 1}
    assert engine.http.post(TEXT, json=body).json()["usage"]["prompt_tokens_details"] is None
    telling = start(engine.kind, "--enable-cache-report")
    first, second = (telling.http.post(TEXT, json=body).json()["usage"] for _ in range(2))
    assert first["prompt_tokens_details"]["cached_tokens"] == 0
    # 101 tokens: all but the last (SGLang), whole blocks of 16 (vLLM).
    assert second["prompt_tokens_details"]["cached_tokens"] == (96 if engine.kind == "vllm" else 100)
