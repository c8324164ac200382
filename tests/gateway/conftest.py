"""A real gateway on uvicorn and uvloop, in the test's own loop, in front of scripted engines."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.app import Gateway
from gateway.config import Config
from protocol.records import GatewayRecord, read_lines


@dataclass(kw_only=True)
class RunningGateway:
    gateway: Gateway
    port: int
    client: httpx.AsyncClient
    records_path: Path
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    """Of raw connections; those that a test leaves open are cut at its end."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection, for tests that care about bytes or about leaving."""
        return await self._opened(socket.socket())

    async def connect_narrowly(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A raw connection that nothing is read from yet, with little room to buffer what arrives."""
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader, writer = await self._opened(connection)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        return reader, writer

    async def _opened(self, connection: socket.socket) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 26)
        self.writers.append(writer)
        return reader, writer

    async def ask(self, body: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A request on a raw connection, sent but not waited for."""
        reader, writer = await self.connect()
        writer.write(wire(body))
        return reader, writer

    async def metric(self, name: str, **labels: str) -> float:
        """One series as a scrape shows it; 0 where it is not there."""
        text = (await self.client.get("/metrics")).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(sample.value for sample in samples if (sample.name, sample.labels) == (name, labels))

    def breakers(self) -> dict[str, str]:
        """State of every endpoint's breaker."""
        return {endpoint.name: endpoint.breaker for endpoint in self.gateway.fleet.snapshot()}

    def in_flight(self) -> list[int]:
        """Requests in flight at each endpoint, as their ledgers say."""
        return [endpoint.in_flight for endpoint in self.gateway.fleet.snapshot()]

    async def settled(self) -> None:
        """Waits until nothing is in flight."""
        async with asyncio.timeout(5):
            while self.gateway.proxy.live:
                await asyncio.sleep(0.002)

    async def records(self) -> list[GatewayRecord]:
        await self.settled()
        self.gateway.records.flush()
        return list(read_lines(self.records_path, GatewayRecord))


def make_config(engine_urls: list[str], records: Path, **sections: Any) -> Config:
    pool = {
        "engine": "vllm",
        "policy": "round_robin",
        "endpoints": [{"url": url} for url in engine_urls],
        "health": {"interval_s": 0.05, "timeout_s": 1.0},
        **sections.pop("pool", {}),
    }
    return Config.model_validate(
        {
            "listen": {"port": 0},
            "pools": {"p": pool},
            "routes": [{"model": "m", "split": {"p": 1}}],
            "records": {"path": str(records)},
            "drain": {"timeout_s": 1.0},
            **sections,
        }
    )


StartGateway = Callable[..., AbstractAsyncContextManager[RunningGateway]]


@pytest.fixture
def start_gateway(tmp_path: Path) -> StartGateway:
    """`async with start_gateway([engine.url], limits={...}) as running:` serves until the block ends.

    A second one in the same test needs a `name` for its records.
    """

    @asynccontextmanager
    async def start(engine_urls: list[str], *, name: str = "records", **sections: Any) -> AsyncIterator[RunningGateway]:
        records = tmp_path / f"{name}.jsonl"
        gateway = Gateway(make_config(engine_urls, records, **sections))
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server = gateway.server()
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.001)
        url, limits = f"http://127.0.0.1:{port}", httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, limits=limits, trust_env=False, verify=False) as client:
            running = RunningGateway(gateway=gateway, port=port, client=client, records_path=records)
            try:
                yield running
            finally:
                # uvloop cannot close while a paused transport is open.
                for writer in running.writers:
                    writer.transport.abort()
                server.should_exit = True
                await serving

    return start


def wire(body: dict[str, Any]) -> bytes:
    """A chat request as it goes over a connection."""
    data = msgspec.json.encode(body)
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


def error_of(body: bytes) -> dict[str, Any]:
    """The error object of a body or of one event's data."""
    return msgspec.json.decode(body)["error"]  # type: ignore[no-any-return]


async def until(condition: Callable[[], object]) -> None:
    """Waits for a state that nothing announces."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAMED = {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
"""A stream whose client asks for usage itself: every byte reaches it as the engine sent it."""
