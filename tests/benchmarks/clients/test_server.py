"""The server as a process of its own: what it sends when, and what it notes."""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from benchmarks.children import child, line
from benchmarks.clients.server import GAP_MS, TTFT_MS, Log


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self.port = int(line(process))
        self._log = log
        self._connections: list[http.client.HTTPConnection] = []

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        self._connections.append(connection)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    def leave(self) -> None:
        """Closes every connection."""
        for connection in self._connections:
            connection.close()

    def log(self) -> Log:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        while line(self.process) != "logged":
            pass
        return msgspec.json.decode(self._log.read_bytes(), type=Log)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with child("benchmarks.clients.server", str(tmp_path / "log")) as process:
        served = Served(process, tmp_path / "log")
        yield served
        served.leave()


def chat(tokens: int, **more: object) -> dict[str, object]:
    return {"model": "bench", "messages": [{"role": "user", "content": "one two three"}], "max_tokens": tokens, **more}


def events(body: bytes) -> list[str]:
    return [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event]


def test_a_stream_has_the_shape_of_vllms_and_keeps_to_its_times(served: Served) -> None:
    before_ns = time.monotonic_ns()
    body = chat(5, stream=True, stream_options={"include_usage": True})
    answer = served.ask("POST", "/v1/chat/completions", body, **{"x-request-id": "mine"})
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    *parts, done = events(answer.read())
    after_ns = time.monotonic_ns()
    assert done == "[DONE]"
    chunks = [json.loads(part) for part in parts]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, *[{"content": " river"}] * 5]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [*[None] * 5, "length"]
    assert chunks[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5}

    (stream,) = served.log().streams
    assert (stream.request_id, stream.chunks) == ("mine", 5)
    assert before_ns < stream.arrived_ns < stream.written_ns[0] < stream.written_ns[-1] < after_ns
    assert stream.due_ns - stream.arrived_ns == TTFT_MS * 1_000_000
    assert len(stream.written_ns) == 5
    # A timer of a millisecond may be early by one.
    for number, written_ns in enumerate(stream.written_ns):
        assert written_ns - stream.due_ns - number * GAP_MS * 1_000_000 > -1_100_000


def test_text_completions_stream_too_and_usage_comes_only_when_asked_for(served: Served) -> None:
    body = {"model": "bench", "prompt": "one two", "max_tokens": 1, "stream": True}
    answer = served.ask("POST", "/v1/completions", body)
    token, done = events(answer.read())
    assert json.loads(token)["choices"] == [{"index": 0, "text": " river", "logprobs": None, "finish_reason": "length"}]
    assert done == "[DONE]"
    (stream,) = served.log().streams
    assert stream.request_id is None


def test_what_is_not_a_stream_is_answered_at_once_and_not_logged(served: Served) -> None:
    whole = json.loads(served.ask("POST", "/v1/chat/completions", chat(1)).read())
    assert whole["usage"] == {"prompt_tokens": 3, "total_tokens": 4, "completion_tokens": 1}
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "river"}
    assert json.loads(served.ask("GET", "/v1/models").read())["data"][0]["id"] == "bench"
    assert served.ask("GET", "/health").status == 200
    assert served.ask("GET", "/get_server_info").status == 404
    assert served.log().streams == []


def test_a_request_arrives_when_all_of_it_is_there(served: Served) -> None:
    body = json.dumps(chat(1, stream=True)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(head + body[:-1])
        time.sleep(0.05)
        before_ns = time.monotonic_ns()
        connection.sendall(body[-1:])
        while not connection.recv(65536).endswith(b"0\r\n\r\n"):
            pass
    (stream,) = served.log().streams
    assert stream.arrived_ns > before_ns


def test_it_says_when_the_first_stream_came_and_when_none_is_open_and_a_client_that_leaves_is_noted(
    served: Served,
) -> None:
    served.ask("POST", "/v1/chat/completions", chat(2, stream=True)).read()
    assert [line(served.process), line(served.process)] == ["first", "idle"]
    answer = served.ask("POST", "/v1/chat/completions", chat(1000, stream=True))
    answer.read(200)
    answer.close()
    served.leave()
    assert line(served.process) == "idle"
    whole, cut = served.log().streams
    assert len(whole.written_ns) == 2
    assert 0 < len(cut.written_ns) < cut.chunks == 1000
