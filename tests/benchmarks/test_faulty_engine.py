import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from benchmarks.faulty_engine import BEHAVIOURS, FaultyEngine, Stats
from benchmarks.soak_traffic import FAULTS, ORDINARY

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def engine() -> AsyncIterator[tuple[int, Stats]]:
    stats = Stats()
    server = await asyncio.get_running_loop().create_server(lambda: FaultyEngine(stats), "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], stats
    server.close()
    await server.wait_closed()


async def ask(port: int, fault: str) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    send(writer, fault)
    return reader, writer


def send(writer: asyncio.StreamWriter, fault: str) -> None:
    body = b'{"messages":[{"role":"user","content":"fault=%b"}]}' % fault.encode()
    writer.write(b"POST /v1 HTTP/1.1\r\nx-request-id: soak-7\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


async def gone(stats: Stats) -> None:
    """Until the engine has nothing left to do."""
    while stats.at_work:
        await asyncio.sleep(0.001)


def test_every_fault_and_ordinary_answer_of_the_traffic_is_known() -> None:
    assert set(BEHAVIOURS) == {*FAULTS, *ORDINARY, "endless"}


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("stream", b"data: [DONE]\n\n\r\n0\r\n\r\n"),
        ("small", b'"completion_tokens":2}}'),
        ("slow-head", b'"completion_tokens":2}}'),
        ("close-idle", b'"completion_tokens":2}}'),
        ("503", b'"type":"Service Unavailable","code":503}'),
        ("error-in-stream", b'"code":500}}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n'),
        ("overload-as-200", b'"finish_reason":"abort"}]}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n'),
        ("garbage", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
        ("garbage-in-stream", b"no size\r\n"),
    ],
)
async def test_answers_that_end(engine: tuple[int, Stats], fault: str, end: bytes) -> None:
    port, stats = engine
    reader, writer = await ask(port, fault)
    answer = await reader.readuntil(end)
    assert fault in ("503", "garbage") or b"soak-7" in answer
    await gone(stats)
    assert (stats.served, stats.cut) == ({fault: 1}, 0)
    writer.close()


@pytest.mark.parametrize("fault", ["reset", "reset-in-stream"])
async def test_resets(engine: tuple[int, Stats], fault: str) -> None:
    reader, writer = await ask(engine[0], fault)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_a_cut_chunk_ends_before_its_size(engine: tuple[int, Stats]) -> None:
    reader, writer = await ask(engine[0], "cut-chunk")
    answer = await reader.read()
    last = answer.rpartition(b"200\r\n")[2]
    assert len(last) == 100 < 0x200
    writer.close()


@pytest.mark.parametrize("fault", ["silence", "stall", "endless"])
async def test_what_never_ends_is_at_work_until_its_connection_is_cut(engine: tuple[int, Stats], fault: str) -> None:
    port, stats = engine
    reader, writer = await ask(port, fault)
    if fault != "silence":
        await reader.readuntil(b"soak-7")
    while not stats.at_work:
        await asyncio.sleep(0.001)
    writer.close()
    await gone(stats)
    assert stats.cut == 1


async def test_an_idle_connection_is_closed_only_while_it_is_idle(engine: tuple[int, Stats]) -> None:
    reader, writer = await ask(engine[0], "close-idle")
    await reader.readuntil(b'"completion_tokens":2}}')
    send(writer, "stream")
    await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    send(writer, "close-idle")
    await reader.readuntil(b'"completion_tokens":2}}')
    assert await reader.read() == b""
    writer.close()


async def test_health_and_statistics(engine: tuple[int, Stats]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine[0])
    for path, status in ((b"/health", b"200 OK"), (b"/v1/models", b"404 Not Found")):
        writer.write(b"GET %b HTTP/1.1\r\n\r\n" % path)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
    writer.write(b"GET /stats HTTP/1.1\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    assert msgspec.json.decode(await reader.readuntil(b"}}"), type=Stats) == Stats()
    writer.write(b"nonsense\r\n\r\n")
    assert await reader.read() == b""
    writer.close()
