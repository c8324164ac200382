"""A real nginx in front, in its default configuration: streams pass as they come (report 21)."""

from __future__ import annotations

import asyncio
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.chaos.clients import CHAT_PATH, until
from tests.gateway.conftest import STREAMED, StartGateway
from tests.scripted_engine import DONE, LAST_CHUNK, SSE_HEAD, Conversation, Received, chunk, running, token

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

CONFIG = """
daemon off;
worker_processes 1;
pid {folder}/pid;
error_log {folder}/errors;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/t1;
    proxy_temp_path {folder}/t2;
    fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4;
    scgi_temp_path {folder}/t5;
    gzip on;
    server {{
        listen unix:{folder}/socket;
        location / {{ proxy_pass {url}; }}
    }}
}}
"""
"""What an operator writes first. Debian's package turns gzip on; the paths only keep this instance to its folder."""

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx: apt-get install nginx-light")


def prepare(folder: Path, url: str) -> None:
    folder.mkdir()
    (folder / "conf").write_text(CONFIG.format(folder=folder, url=url))


@asynccontextmanager
async def nginx(folder: Path, url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that talks to `url` through an nginx of its own."""
    prepare(folder, url)
    assert NGINX is not None
    process = await asyncio.create_subprocess_exec(
        *(NGINX, "-p", str(folder), "-e", str(folder / "errors"), "-c", str(folder / "conf")),
        stdout=DEVNULL,
        stderr=DEVNULL,
    )
    try:
        await until((folder / "socket").exists)
        transport = httpx.AsyncHTTPTransport(uds=str(folder / "socket"))
        async with httpx.AsyncClient(transport=transport, base_url="http://nginx") as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def first_event(client: httpx.AsyncClient, release: asyncio.Event) -> tuple[bytes, bytes]:
    """What arrives while the engine waits for `release`, up to a third of a second, and what arrives after it."""
    async with client.stream("POST", CHAT_PATH, json=STREAMED, headers={"accept-encoding": "gzip"}) as response:
        assert response.status_code == 200
        reads = response.aiter_bytes()
        waiting = asyncio.ensure_future(anext(reads))
        await asyncio.wait([waiting], timeout=0.3)
        early = waiting.result() if waiting.done() else b""
        release.set()
        late = b"" if early else await waiting
        return early, late + b"".join([data async for data in reads])


async def test_events_pass_nginx_one_by_one(start_gateway: StartGateway, tmp_path: Path) -> None:
    """llama-swap#236, #292, litellm#28384: nginx collected a stream until its end. Through the gateway, the first event
    is there while the engine still waits; without it, the same nginx holds it back."""
    release = asyncio.Event()

    async def waits(_: Received, conversation: Conversation) -> None:
        await conversation.send(SSE_HEAD + chunk(token("a")))
        await release.wait()
        await conversation.send(chunk(token(" b", "stop")) + chunk(DONE) + LAST_CHUNK)

    async with running(waits) as engine, start_gateway([engine.url]) as gateway:
        async with nginx(tmp_path / "g", gateway.url) as client:
            through = await first_event(client, release)
        release.clear()
        async with nginx(tmp_path / "e", engine.url) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(CHAT_PATH, json=STREAMED, timeout=0.3)
    assert through == (token("a"), token(" b", "stop") + DONE)
