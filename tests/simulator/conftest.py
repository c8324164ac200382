"""Engines as processes of their own, as `weir engine` starts them, and what tests ask of them."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import msgspec
import pytest

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
HELLO = [{"role": "user", "content": "hello there"}]


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
    engine = ["-m", "weir", "engine", "--kind", kind, "--model", "tiny", *arguments]
    with subprocess.Popen([sys.executable, "-W", "error", *engine], stdout=subprocess.PIPE, text=True) as process:
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
