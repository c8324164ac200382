import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from benchmarks import wire
from benchmarks.engine import EngineProtocol


@pytest.fixture
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: EngineProtocol(loop, set()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    yield reader, writer
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


async def _ask(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], line: bytes, body: bytes = b"") -> bytes:
    reader, writer = connection
    writer.write(b"%b HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (line, len(body), body))
    head = await reader.readuntil(b"\r\n\r\n")
    if b"transfer-encoding: chunked" in head:
        return head + await reader.readuntil(b"\r\n0\r\n\r\n")
    length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def test_one_connection_serves_every_kind_of_request(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter],
) -> None:
    assert (await _ask(connection, b"GET /health")).startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"id":"bench"' in await _ask(connection, b"GET /v1/models")
    assert (await _ask(connection, b"GET /nothing")).startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert (await _ask(connection, b"POST /tokenize", b"{}")).startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert (await _ask(connection, b"GET /taken")).endswith(b"\r\n\r\n0")
    small = await _ask(connection, b"POST /v1/chat/completions", wire.request_body(wire.SMALL, prompt_bytes=1 << 20))
    assert small.endswith(b"\r\n\r\n" + wire.SMALL_ANSWER)


@pytest.mark.parametrize(("ttft_ms", "gap_ms"), [(0, 0), (4, 2)])
async def test_a_stream_is_whole_and_never_earlier_than_its_pace(
    connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], ttft_ms: int, gap_ms: int
) -> None:
    asked_ns = time.monotonic_ns()
    answer = await _ask(
        connection,
        b"POST /v1/chat/completions",
        wire.request_body(wire.Shape(ttft_ms=ttft_ms, gap_ms=gap_ms, chunks=20, pad_bytes=30)),
    )
    pieces = answer.partition(b"\r\n\r\n")[2].split(b"\r\n")
    assert [int(size, 16) for size in pieces[:-3:2]] == [len(event) for event in pieces[1:-3:2]]
    body = b"".join(pieces[1:-3:2])
    assert wire.blanked(body) == wire.blank_stream(20, pad_bytes=30)
    stamps_ns = [int(stamp) for stamp in wire.STAMP.findall(body)]
    # From the question on, since a first chunk may be late. libuv counts whole milliseconds.
    paces_ms = [(at_ns - asked_ns) / 1e6 - ttft_ms - index * gap_ms for index, at_ns in enumerate(stamps_ns)]
    assert min(paces_ms) >= -1


async def test_a_stream_waits_for_its_reader() -> None:
    """A reader that does not read stops the engine; the stream goes on when it does, and is whole."""
    loop = asyncio.get_running_loop()
    engines: asyncio.Queue[PausedEngine] = asyncio.Queue()
    streaming: set[EngineProtocol] = set()

    def build() -> PausedEngine:
        engine = PausedEngine(loop, streaming)
        engines.put_nowait(engine)
        return engine

    server = await loop.create_server(build, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2], limit=1024)
    body = wire.request_body(wire.Shape(chunks=40_000))
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    engine = await engines.get()
    await engine.paused.wait()
    assert streaming == {engine}
    taken_bytes, received = engine.taken_bytes, 0
    while data := await reader.read(1 << 16):
        received += len(data)
        if data.endswith(b"\r\n0\r\n\r\n"):
            break
    assert received > 40_000 * len(wire.chunk(1, 3, 0))
    assert 0 < taken_bytes < received == engine.taken_bytes
    assert streaming == set()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()


class PausedEngine(EngineProtocol):
    """Tells when flow control stopped it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, streaming: set[EngineProtocol]) -> None:
        super().__init__(loop, streaming)
        self.paused = asyncio.Event()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.paused.set()
