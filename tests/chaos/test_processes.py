"""Real processes told to stop or killed, with streams open (reports 9, 29, 30): gateway, engine and client."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
import yaml

from protocol.records import GatewayRecord, read_lines
from tests.chaos.clients import CHAT_PATH, post
from tests.integration.conftest import MODEL, weir
from tests.scripted_engine import DONE, LAST_CHUNK
from weir.processes import Child, Processes

FIRST_EVENT = b"\n\n\r\n"
"""How the HTTP chunk of an event ends."""

TROUBLE = (b"never awaited", b"was destroyed", b"never retrieved", b"Traceback", b"Unclosed")
"""What Python says of tasks, coroutines and connections that nobody took care of."""


@dataclass(kw_only=True)
class Cluster:
    """Two vLLM-shaped engines with the same seed behind one gateway, each a process."""

    processes: Processes
    engines: list[Child]
    gateway: Child
    folder: Path

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        at = urlsplit(self.gateway.url)
        return await asyncio.open_connection(at.hostname, at.port, limit=1 << 24)

    def records(self) -> list[GatewayRecord]:
        """Of a gateway that has ended."""
        return list(read_lines(self.folder / "gateway.jsonl", GatewayRecord))

    def log(self) -> bytes:
        return (self.processes.logs / "gateway.log").read_bytes()


StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]


@pytest.fixture
def start_cluster(tmp_path: Path) -> StartCluster:
    """`async with start_cluster(drain={...}) as cluster:`; `kind` and `continuation` as in the configuration."""

    @asynccontextmanager
    async def start(*, kind: str = "vllm", continuation: bool = False, **sections: Any) -> AsyncIterator[Cluster]:
        engine = weir("engine", "--kind", "vllm", "--model", MODEL, "--port", "0")
        async with Processes(logs=tmp_path / "logs") as processes:
            starting = [processes.start(f"engine-{number}", engine) for number in range(2)]
            engines = list(await asyncio.gather(*starting))
            config = {
                "listen": {"port": 0},
                "pools": {
                    "p": {
                        "engine": kind,
                        "endpoints": [{"url": child.url} for child in engines],
                        "health": {"interval_s": 0.2},
                    }
                },
                "routes": [{"model": MODEL, "split": {"p": 1}, "continuation": continuation}],
                "records": {"path": str(tmp_path / "gateway.jsonl")},
                "drain": {"timeout_s": 5.0},
                **sections,
            }
            (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
            gateway = await processes.start("gateway", weir("serve", "--config", str(tmp_path / "gateway.yaml")))
            yield Cluster(processes=processes, engines=engines, gateway=gateway, folder=tmp_path)

    return start


def asking(tokens: int, **more: object) -> bytes:
    """A request for a stream of exactly so many tokens, 7 ms each."""
    return post(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Tell me."}],
            "max_tokens": tokens,
            "ignore_eos": True,
            "stream": True,
            **more,
        }
    )


async def metric(engine: Child, name: str) -> float:
    """The sum of an engine's samples of one metric."""
    async with httpx.AsyncClient(trust_env=False) as client:
        page = (await client.get(engine.url + "/metrics")).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{"))


async def busy_engine(cluster: Cluster) -> Child:
    """The engine that is generating."""
    async with asyncio.timeout(5):
        while True:
            for engine in cluster.engines:
                if await metric(engine, "vllm:num_requests_running"):
                    return engine
            await asyncio.sleep(0.01)


def words(stream: bytes) -> int:
    """Tokens of text in a chat stream; a token is a word here."""
    events = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    choices = [choice for event in events for choice in msgspec.json.decode(event).get("choices", ())]
    return len("".join(choice["delta"].get("content") or "" for choice in choices).split())


async def test_sigterm_lets_open_streams_finish(start_cluster: StartCluster) -> None:
    """litellm#14334, PostHog PR#73863: streams were cut at shutdown. Eight of them end whole after SIGTERM, nothing new
    is let in, the exit status is 0, and every one is on record."""
    async with start_cluster() as cluster:
        connections = [await cluster.connect() for _ in range(8)]
        for _, writer in connections:
            writer.write(asking(150))
        begun = [await reader.readuntil(FIRST_EVENT) for reader, _ in connections]
        cluster.gateway.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            await cluster.connect()
        rest = [await asyncio.wait_for(reader.read(), 10) for reader, _ in connections]
        status = await asyncio.wait_for(cluster.gateway.process.wait(), 5)
        for _, writer in connections:
            writer.close()
    assert status == 0
    assert all(end.endswith(LAST_CHUNK) and DONE in end for end in rest)
    assert len(begun) == 8
    assert [(record.outcome, record.completion_tokens) for record in cluster.records()] == [("ok", 150)] * 8
    assert not any(word in cluster.log() for word in TROUBLE)


async def test_what_outlasts_the_drain_is_told_so(start_cluster: StartCluster) -> None:
    """litellm#14334: when the time is up, the stream ends with an error in it, the engine is freed, and the record has
    what was generated."""
    async with start_cluster(drain={"timeout_s": 0.5}) as cluster:
        reader, writer = await cluster.connect()
        writer.write(asking(3000))
        await reader.readuntil(FIRST_EVENT)
        engine = await busy_engine(cluster)
        cluster.gateway.process.send_signal(signal.SIGTERM)
        rest = await asyncio.wait_for(reader.read(), 5)
        status = await asyncio.wait_for(cluster.gateway.process.wait(), 5)
        writer.close()
        async with asyncio.timeout(2):
            while await metric(engine, "vllm:num_requests_running"):
                await asyncio.sleep(0.01)
    [record] = cluster.records()
    assert status == 0
    assert b"cut_by_shutdown" in rest
    assert rest.endswith(LAST_CHUNK)
    assert (record.outcome, record.error_kind, record.usage_partial) == ("error", "cut_by_shutdown", True)
    assert not any(word in cluster.log() for word in TROUBLE)


@pytest.mark.parametrize("continuation", [False, True], ids=["told", "continued"])
async def test_an_engine_is_killed_in_the_middle_of_a_stream(start_cluster: StartCluster, continuation: bool) -> None:
    """Portkey#1797, production-stack#749: kill -9 of an engine. Its stream ends in an error event, or goes on from the
    other engine where the route wants that; the next requests do not notice."""
    async with start_cluster(kind="openai", continuation=continuation) as cluster:
        reader, writer = await cluster.connect()
        writer.write(asking(200, temperature=0))
        seen = await reader.readuntil(FIRST_EVENT)
        engine = await busy_engine(cluster)
        await asyncio.sleep(0.3)
        engine.process.kill()
        seen += await asyncio.wait_for(reader.readuntil(LAST_CHUNK), 10)
        writer.close()
        async with httpx.AsyncClient(base_url=cluster.gateway.url, trust_env=False) as client:
            body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            after = [(await client.post(CHAT_PATH, json=body)).status_code for _ in range(6)]
        await cluster.processes.stop(cluster.gateway)
    first, *later = cluster.records()
    assert after == [200] * 6
    assert {record.outcome for record in later} == {"ok"}
    if continuation:
        assert (words(seen), first.outcome, first.continuations) == (200, "ok", 1)
        assert DONE in seen
    else:
        assert 0 < words(seen) < 200
        assert first.outcome == "truncated"
        assert b'"type":"truncated"' in seen


CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.sendall(sys.stdin.buffer.read())
while data := connection.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
"""


async def test_a_client_is_killed_in_the_middle_of_a_stream(start_cluster: StartCluster) -> None:
    """dynamo#10923: kill -9 of a client. The engine stops at once, and the record has the tokens so far."""
    async with start_cluster() as cluster:
        at = urlsplit(cluster.gateway.url)
        client = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CLIENT, str(at.hostname), str(at.port)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(asking(3000))
        client.stdin.write_eof()
        await client.stdout.readuntil(FIRST_EVENT)
        engine = await busy_engine(cluster)
        client.kill()
        async with asyncio.timeout(2):
            while await metric(engine, "vllm:num_requests_running"):
                await asyncio.sleep(0.01)
        await client.communicate()
        await cluster.processes.stop(cluster.gateway)
    [record] = cluster.records()
    assert (record.outcome, record.usage_partial) == ("client_gone", True)
    assert record.completion_tokens is not None
    assert 0 < record.completion_tokens < 3000


async def test_no_task_and_no_coroutine_is_left_behind(
    start_cluster: StartCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In asyncio's debug mode: whole streams, clients that leave in every phase, an engine killed, a shutdown; and not
    a word of coroutines never awaited, tasks destroyed or exceptions never retrieved."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    async with start_cluster(drain={"timeout_s": 0.5}) as cluster:
        for number in range(12):
            reader, writer = await cluster.connect()
            writer.write(asking(5 if number % 3 == 0 else 3000))
            if number % 3 == 0:
                assert DONE in await asyncio.wait_for(reader.readuntil(LAST_CHUNK), 5)
            elif number % 3 == 1:
                await reader.readuntil(FIRST_EVENT)
            writer.transport.abort()
        reader, writer = await cluster.connect()
        writer.write(asking(3000))
        await reader.readuntil(FIRST_EVENT)
        (await busy_engine(cluster)).process.kill()
        await asyncio.wait_for(reader.readuntil(LAST_CHUNK), 5)
        writer.write(asking(3000))
        await reader.readuntil(FIRST_EVENT)
        await cluster.processes.stop(cluster.gateway)
        writer.close()
    # A connection that was reset before its request was read is none.
    assert len(cluster.records()) >= 10
    assert cluster.gateway.process.returncode == 0
    assert not [line for line in cluster.log().splitlines() if any(word in line for word in TROUBLE)]
