"""Clients of the load against real sockets whose other side misbehaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from benchmarks import answers, load, wire

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(wire.SMALL_ANSWER), wire.SMALL_ANSWER)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def failures(serve: Serve, *, requests: int) -> tuple[int, dict[str, int]]:
    """(completed, failed) of a round of two clients against `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    clients = [load.Client(server.sockets[0].getsockname()[1]) for _ in range(2)]
    for client in clients:
        await client.connect()
    round_ = load.Round(REQUEST, requests=requests, limit_s=10)
    await load.run_round(clients, round_, ramp_s=0)
    server.close()
    for client in clients:
        client.close()
    await server.wait_closed()
    result = answers.tally(round_.exchanges, wire.SMALL, duration_s=1)
    return result.completed, result.failed


async def _answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1 << 16):
        writer.write(ANSWER)
    writer.close()


async def _answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(ANSWER.replace(b"\r\n", b"\r\nconnection: close\r\n", 1))
    writer.close()


async def _break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(ANSWER[:-10])
    writer.close()


async def _talk_nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1 << 16)
    writer.write(b"SSH-2.0-OpenSSH\r\n")
    writer.close()


@pytest.mark.parametrize(
    ("serve", "expected"),
    [
        (_answer_each, (9, {})),
        (_answer_and_close, (9, {})),
        (_break_off, (0, {"connection lost": 9})),
        (_talk_nonsense, (0, {"malformed response": 9})),
    ],
)
async def test_every_request_is_accounted_for(serve: Serve, expected: tuple[int, dict[str, int]]) -> None:
    assert await failures(serve, requests=9) == expected


async def test_a_server_that_went_away_fails_the_requests_not_the_load() -> None:
    closed: list[asyncio.Server] = []

    async def answer_then_vanish(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        closed[0].close()
        writer.close()

    server = await asyncio.start_server(answer_then_vanish, "127.0.0.1", 0)
    closed.append(server)
    client = load.Client(server.sockets[0].getsockname()[1])
    await client.connect()
    round_ = load.Round(REQUEST, requests=100, limit_s=10)
    await load.run_round([client], round_, ramp_s=0)
    await server.wait_closed()
    assert answers.tally(round_.exchanges, wire.SMALL, duration_s=1).failed == {
        "connection lost": 1,
        "connection refused": 1,
    }


async def test_a_round_ends_at_its_limit() -> None:
    round_ = load.Round(REQUEST, requests=5, limit_s=0)
    assert round_.take() is None
    assert round_.exchanges == []


async def test_a_round_ends_when_every_request_is_out() -> None:
    round_ = load.Round(REQUEST, requests=2, limit_s=10)
    assert [round_.take() is None for _ in range(3)] == [False, False, True]
