"""The contract with uvicorn and with HTTP: framing, connection reuse, limits, and the drain. Raw bytes on sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import httptools
import msgspec
import pytest

from gateway.app import Gateway
from gateway.server import LINGER_S
from tests.gateway.conftest import CHAT, RunningGateway, StartGateway, make_config
from tests.scripted_engine import (
    DONE,
    LAST_CHUNK,
    SSE_HEAD,
    STREAM,
    Conversation,
    Received,
    chunk,
    json_response,
    running,
    token,
    whole_stream,
)

BODY = b'{"model":"m"}'
OK = b'{"ok":true}'


async def answer(request: Received, conversation: Conversation) -> None:
    await conversation.send(json_response(OK))


def post(body: bytes = BODY, *, version: bytes = b"1.1", fields: bytes = b"") -> bytes:
    head = b"POST /v1/completions HTTP/%b\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (version, fields, len(body)) + body


class Answer:
    """One HTTP response read from a stream."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = False
        self._parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> Answer:
        """Reads one response to its end, or to the end of the connection."""
        found = cls()
        async with asyncio.timeout(5):
            while not found.complete and (data := await reader.read(65536)):
                found._parser.feed_data(data)
        return found


async def closed(reader: asyncio.StreamReader) -> bool:
    """Whether the gateway closes the connection, with nothing more to say."""
    async with asyncio.timeout(LINGER_S + 2):
        try:
            return await reader.read(1) == b""
        except ConnectionResetError:
            return True


async def test_one_connection_serves_both_halves_in_turn(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        for _ in range(2):
            writer.write(post())
            assert (await Answer.read(reader)).body == OK
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await Answer.read(reader)).body == b'{"status":"ok"}'
        writer.close()
    assert len({request.connection for request in engine.requests}) == 1


async def test_a_request_may_arrive_byte_by_byte(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        for position in range(len(wire := post())):
            writer.write(wire[position : position + 1])
            await asyncio.sleep(0)
        found = await Answer.read(reader)
        writer.close()
    assert (found.status, found.body, engine.requests[0].body) == (200, OK, BODY)


async def test_a_chunked_request_reaches_the_engine_whole(start_gateway: StartGateway) -> None:
    wire = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(wire + chunk(BODY[:5]) + chunk(BODY[5:]) + LAST_CHUNK)
        found = await Answer.read(reader)
        writer.close()
    assert (found.status, engine.requests[0].body) == (200, BODY)
    assert engine.requests[0].headers["content-length"] == str(len(BODY))


async def test_expect_100_continue_is_answered_before_the_body(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        wire = post(fields=b"expect: 100-continue\r\n")
        writer.write(wire[: -len(BODY)])
        assert await reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(BODY)
        found = await Answer.read(reader)
        writer.close()
    assert found.status == 200
    assert "expect" not in engine.requests[0].headers


@pytest.mark.parametrize("keep", [b"", b"connection: keep-alive\r\n"])
async def test_http_1_0_clients_get_no_chunks(start_gateway: StartGateway, keep: bytes) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(version=b"1.0", fields=keep))
        raw = await reader.read()
        writer.close()
    head, _, body = raw.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert body == b"".join(STREAM)


async def test_http_1_0_keep_alive_holds_for_a_body_of_known_length(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        for _ in range(2):
            writer.write(post(version=b"1.0", fields=b"connection: keep-alive\r\n"))
            found = await Answer.read(reader)
            assert (found.body, found.headers["connection"]) == (OK, "keep-alive")
        writer.close()


async def test_connection_close_is_honoured(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post(fields=b"connection: close\r\n"))
        found = await Answer.read(reader)
        assert found.headers["connection"] == "close"
        assert await closed(reader)
        writer.close()


@pytest.mark.parametrize("second", [post(), b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"])
async def test_a_pipelined_request_is_left_for_the_client_to_repeat(start_gateway: StartGateway, second: bytes) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post() + second)
        raw = await reader.read()
        writer.close()
    assert raw.count(b"HTTP/1.1 200") == 1
    assert b"connection: close" in raw
    assert len(engine.requests) == 1


async def test_a_post_pipelined_behind_a_get_is_left_too(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + post())
        raw = await reader.read()
        writer.close()
    assert raw.count(b"HTTP/1.1 200") == 1
    assert engine.requests == []


async def test_garbage_behind_a_request_does_not_disturb_its_answer(start_gateway: StartGateway) -> None:
    async with running(whole_stream) as engine, start_gateway([engine.url]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post() + b"\x00\x01garbage\r\n\r\n")
        found = await Answer.read(reader)
        assert await closed(reader)
        writer.close()
    assert found.body == b"".join(STREAM)


async def test_nonsense_is_a_400(start_gateway: StartGateway) -> None:
    async with start_gateway(["http://127.0.0.1:1"]) as gateway:
        reader, writer = await gateway.connect()
        writer.write(b"HELLO\r\n\r\n")
        found = await Answer.read(reader)
        writer.close()
    assert found.status == 400


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_413_even_while_it_is_still_arriving(
    start_gateway: StartGateway, announced: bool
) -> None:
    async with running(answer) as engine, start_gateway([engine.url], limits={"body_bytes": 1000}) as gateway:
        reader, writer = await gateway.connect()
        if announced:
            writer.write(post(b"x" * 500_000)[:100_000])
        else:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(50):
                writer.write(chunk(b"x" * 10_000))
        found = await Answer.read(reader)
        assert await closed(reader)
        writer.close()
        [record] = await gateway.records()
    error = msgspec.json.decode(found.body)["error"]
    assert (found.status, error["type"], found.headers["connection"]) == (413, "body_too_large", "close")
    assert "1000 bytes" in error["message"]
    assert (record.status, engine.requests) == (413, [])


async def test_a_body_at_the_limit_passes(start_gateway: StartGateway) -> None:
    body = BODY + b" " * (1000 - len(BODY))
    async with running(answer) as engine, start_gateway([engine.url], limits={"body_bytes": 1000}) as gateway:
        assert (await gateway.client.post("/v1/completions", content=body)).status_code == 200


async def test_a_body_that_never_ends_is_408(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url], limits={"receive_s": 0.1}) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post()[:-3])
        found = await Answer.read(reader)
        writer.close()
    assert (found.status, engine.requests) == (408, [])


async def test_a_client_that_leaves_while_sending_is_recorded(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        _, writer = await gateway.connect()
        writer.write(post()[:-3])
        await writer.drain()
        async with asyncio.timeout(2):
            while not gateway.gateway.proxy.live:
                await asyncio.sleep(0.001)
        writer.close()
        [record] = await gateway.records()
    assert (record.outcome, record.status, list(record.marks_ns)) == ("client_gone", None, ["receive", "finish", "end"])


async def test_an_idle_connection_is_closed_after_its_time(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url], listen={"keep_alive_s": 1.0}) as gateway:
        reader, writer = await gateway.connect()
        writer.write(post())
        await Answer.read(reader)
        assert await closed(reader)
        writer.close()


async def test_nagle_is_off(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        await gateway.client.post("/v1/completions", content=BODY)
        [connection] = await client_connections(gateway)
        raw = connection.transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def client_connections(gateway: RunningGateway) -> list[asyncio.Protocol]:
    import gc

    from gateway.server import WeirProtocol

    return [found for found in gc.get_objects() if isinstance(found, WeirProtocol) and not found.transport.is_closing()]


class Draining:
    """A gateway in this loop whose shutdown the test starts by signal."""

    def __init__(self, engine_url: str, records: Path, **drain: float) -> None:
        config = make_config([engine_url], records, drain=drain)
        self.gateway = Gateway(config)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.server = self.gateway.server()
        self.serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Draining:
        self.serving = asyncio.create_task(self.server.serve(sockets=[self._listener]))
        while not self.server.started:
            await asyncio.sleep(0.001)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.serving is not None
        self.server.should_exit = True
        await self.serving


async def stream_until(event: asyncio.Event, conversation: Conversation) -> None:
    await conversation.send(SSE_HEAD + chunk(token("a")))
    await event.wait()
    await conversation.send(chunk(token("b", "stop")) + chunk(DONE) + LAST_CHUNK)


async def test_sigterm_lets_streams_finish_and_takes_nothing_new(tmp_path: Path) -> None:
    finish = asyncio.Event()

    async def script(request: Received, conversation: Conversation) -> None:
        await stream_until(finish, conversation)

    async with running(script) as engine, Draining(engine.url, tmp_path / "r", timeout_s=5.0, settle_s=0.3) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
        writer.write(post())
        head = await reader.readuntil(b"\r\n\r\n")
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", run.port)
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(2):
            while run.gateway.proxy.ready:
                await asyncio.sleep(0.005)
        # Settling: not ready, yet still serving.
        other_writer.write(b"GET /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await Answer.read(other_reader)).status == 503
        assert await closed(other_reader)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", run.port)
        finish.set()
        rest = await reader.read()
        assert run.serving is not None
        await asyncio.wait_for(run.serving, 5)
        writer.close()
        other_writer.close()
    assert head.startswith(b"HTTP/1.1 200")
    assert DONE in rest
    assert rest.endswith(LAST_CHUNK)


@pytest.mark.parametrize("again", [False, True], ids=["time is up", "second signal"])
async def test_what_outlasts_the_drain_ends_in_an_in_band_error(tmp_path: Path, again: bool) -> None:
    never = asyncio.Event()

    async def script(request: Received, conversation: Conversation) -> None:
        await stream_until(never, conversation)

    timeout_s = 30.0 if again else 0.2
    async with running(script) as engine, Draining(engine.url, tmp_path / "r", timeout_s=timeout_s) as run:
        reader, writer = await asyncio.open_connection("127.0.0.1", run.port)
        writer.write(post())
        await reader.readuntil(b"\n\n")
        os.kill(os.getpid(), signal.SIGTERM)
        if again:
            async with asyncio.timeout(2):
                while run.gateway.proxy.ready:
                    await asyncio.sleep(0.005)
            os.kill(os.getpid(), signal.SIGTERM)
        rest = await asyncio.wait_for(reader.read(), 5)
        assert run.serving is not None
        await asyncio.wait_for(run.serving, 5)
        writer.close()
        never.set()
    assert b"cut_by_shutdown" in rest
    assert rest.endswith(LAST_CHUNK)


async def test_the_control_plane_speaks_the_same_errors(start_gateway: StartGateway) -> None:
    async with running(answer) as engine, start_gateway([engine.url]) as gateway:
        for method, path, status in (("GET", "/nope", 404), ("DELETE", "/v1/models", 405), ("POST", "/metrics", 405)):
            response = await gateway.client.request(method, path, headers={"x-request-id": "r"})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["request_id"]) == (status, status, "r")
        assert CHAT["model"] == (await gateway.client.get("/v1/models")).json()["data"][0]["id"]
