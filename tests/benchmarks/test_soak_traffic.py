import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

import msgspec
import pytest

from benchmarks import soak_traffic
from benchmarks.faulty_engine import BEHAVIOURS
from benchmarks.soak_traffic import FAULTS, Case, Client, Leaving, Sent, pick

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STEADY = Case(model="steady", ask="small")


def test_the_mix_has_everything_in_it_and_asks_nothing_impossible() -> None:
    rng = Random(1)
    cases = [pick(rng) for _ in range(3000)]
    asked = Counter(case.ask for case in cases)
    assert set(asked) == set(BEHAVIOURS)
    assert set(Counter(case.leave for case in cases)) == {None, "receive", "sent", "first_byte", "relay"}
    assert {case.rough for case in cases if case.leave} == {True, False}
    assert 0.2 < sum(case.model == "steady" for case in cases) / len(cases) < 0.5
    for case in cases:
        assert case.model == "shaky" or case.ask not in FAULTS
        # Nothing ends an endless answer but its client.
        assert (case.ask == "endless") == (case.leave == "relay")


async def run(serve: Serve, *cases: Case) -> list[Sent]:
    """What one client saw of these requests, one after the other, against `serve`."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1], Random(1), itertools.count())
    await client.run(cases)
    server.close()
    await server.wait_closed()
    return client.sent


def answering(body: bytes, *, stream: bool = False, cut: int | None = None) -> Serve:
    """Gives every request that answer, with `{id}` for its own id; the last `cut` bytes are missing, and it closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await head_of(reader):
            own = body.replace(b"{id}", head.partition(b"x-request-id: ")[2].partition(b"\r\n")[0])
            kind = b"text/event-stream" if stream else b"application/json"
            answer = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(own), own)
            writer.write(answer[: -cut if cut else None])
            if cut:
                break
        writer.close()

    return serve


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """The head of the next request, whose body is read too; empty when there is none."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(head.rpartition(b"content-length: ")[2]))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return b""
    return head


@pytest.mark.parametrize(
    ("serve", "status", "whole", "crossed"),
    [
        (answering(b"for {id}"), 200, True, False),
        (answering(b"for soak-999"), 200, True, True),
        (answering(b"for {id}", cut=2), 200, False, False),
        (answering(b"data: {id}\n\ndata: [DONE]\n\n", stream=True), 200, True, False),
        (answering(b"data: {id}\n\n", stream=True), 200, False, False),
        (answering(b"", cut=10_000), None, False, False),
    ],
)
async def test_what_a_staying_client_sees(serve: Serve, status: int | None, whole: bool, crossed: bool) -> None:
    for sent in await run(serve, STEADY, STEADY):
        assert (sent.status, sent.whole, sent.crossed, sent.hung) == (status, whole, crossed, False)


async def test_a_server_that_is_not_there_gives_no_status() -> None:
    server = await asyncio.start_server(answering(b""), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    client = Client(port, Random(1), itertools.count())
    await client.run([STEADY])
    assert [(sent.request_id, sent.status) for sent in client.sent] == [("soak-0", None)]


async def test_a_client_that_is_forgotten_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_traffic, "HANG_S", 0.05)

    async def forget(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    (sent,) = await run(forget, STEADY)
    assert sent.hung


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("leave", ["receive", "sent", "first_byte", "relay"])
async def test_leaving(leave: Leaving, rough: bool) -> None:
    """The other side sees how far the request came, and FIN or RST."""
    seen: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, reset = b"", False
        try:
            while data := await reader.read(1 << 16):
                request += data
                if leave == "relay":
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n" + b"x" * 600)
        except ConnectionResetError:
            reset = True
        seen.put_nowait((request, reset))
        writer.close()

    case = Case(model="shaky", ask="endless", leave=leave, rough=rough)
    (sent,) = await run(serve, case)
    request, reset = await seen.get()
    assert reset is rough
    assert (sent.status, sent.whole) == (200 if leave == "relay" else None, False)
    head, _, body = request.partition(b"\r\n\r\n")
    if not rough or leave in ("first_byte", "relay"):
        length = int(head.rpartition(b"content-length: ")[2])
        assert len(body) == length - (20 if leave == "receive" else 0)
    if leave != "receive" and body:
        assert msgspec.json.decode(body)["stream"] is True


async def test_a_crowd_stops_in_time_and_tells_every_request_apart() -> None:
    server = await asyncio.start_server(answering(b"{id}" * 200), "127.0.0.1", 0)
    sent = await soak_traffic.drive(server.sockets[0].getsockname()[1], clients=3, seconds=0.3, seed=1)
    server.close()
    await server.wait_closed()
    assert len(sent) > 3
    assert len({each.request_id for each in sent}) == len(sent)
    assert not any(each.crossed or each.hung for each in sent)


async def test_garbage_is_no_answer() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    assert [(sent.status, sent.whole) for sent in await run(serve, STEADY, STEADY)] == [(None, False)] * 2
