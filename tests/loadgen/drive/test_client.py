import asyncio
import resource
import socket
import ssl

import pytest
import trustme

from loadgen.drive import client as client_module
from loadgen.drive.client import Client, Exchange, Target, parse_target, raise_open_files_limit
from tests.scripted_engine import LAST_CHUNK, SSE_HEAD, chunk, json_response, running

POST = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture
async def talk():
    """Opens clients that are closed at the end."""
    clients = []

    async def opened(url):
        clients.append(await Client.open(parse_target(url)))
        return clients[-1]

    yield opened
    for client in clients:
        client.close()


async def ask(client, wire=POST):
    exchange = Exchange(wire)
    await client.send(exchange)
    return exchange


@pytest.mark.parametrize(
    ("url", "target", "authority"),
    [
        ("http://h", Target(tls=False, host="h", port=80, path=""), "h"),
        ("http://h:8000/", Target(tls=False, host="h", port=8000, path=""), "h:8000"),
        ("https://h:443/a/v1/", Target(tls=True, host="h", port=443, path="/a"), "h"),
        ("https://h:80/v1", Target(tls=True, host="h", port=80, path=""), "h:80"),
        ("http://[::1]:9", Target(tls=False, host="::1", port=9, path=""), "[::1]:9"),
    ],
)
def test_a_url_says_where_requests_go(url, target, authority):
    assert parse_target(url) == target
    assert target.authority == authority


@pytest.mark.parametrize("url", ["", "h:80", "ftp://h", "http://", "http://h?x=1", "http://u@h", "http://h:x"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ValueError, match=r"expected http|[Pp]ort"):
        parse_target(url)


async def test_a_whole_response_is_kept_with_its_stamps(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b'{"a":1}', status=201, extra=b"X-Weir-Pool: p\r\n"))

    async with running(script) as engine:
        exchange = await ask(await talk(engine.url))
    assert (exchange.outcome, exchange.error, exchange.status, exchange.body()) == ("ok", None, 201, b'{"a":1}')
    assert exchange.header(b"x-weir-pool") == b"p"
    assert exchange.header(b"x-none") is None
    assert exchange.sent_ns < exchange.headers_ns <= exchange.read_ns[0] <= exchange.end_ns
    assert exchange.new_connection
    assert engine.requests[0].body == b"{}"


@pytest.mark.parametrize("framing", [b"content-length: 6\r\n\r\nabcdef", b"\r\nabcdef"])
async def test_a_response_that_dribbles_in_byte_by_byte(talk, framing):
    """One write per byte, each given its own turn, with an interim response before the head."""
    wire = b"HTTP/1.1 100 Continue\r\nx-early: 1\r\n\r\nHTTP/1.1 200 OK\r\nx-late: 1\r\n" + framing

    async def script(request, conversation):
        for position in range(len(wire)):
            await conversation.send(wire[position : position + 1])
            await asyncio.sleep(0)
        conversation.writer.close()

    async with running(script) as engine:
        exchange = await ask(await talk(engine.url))
    assert (exchange.outcome, exchange.status, exchange.body()) == ("ok", 200, b"abcdef")
    assert exchange.header(b"x-late") == b"1"
    assert exchange.header(b"x-early") is None
    assert exchange.read_ns == sorted(exchange.read_ns)


async def test_chunks_that_arrive_in_one_read_are_one_read_without_their_framing(talk):
    async def script(request, conversation):
        await conversation.send(SSE_HEAD + chunk(b"one") + chunk(b"two"))
        await conversation.send(LAST_CHUNK)

    async with running(script) as engine:
        exchange = await ask(await talk(engine.url))
    assert exchange.outcome == "ok"
    assert exchange.reads == [b"onetwo"]


@pytest.mark.parametrize(
    ("wire", "reset", "outcome", "error"),
    [
        (SSE_HEAD + b"5\r\nab", False, "truncated", "connection closed inside the body"),
        (SSE_HEAD + chunk(b"ab"), False, "truncated", "connection closed inside the body"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab", False, "truncated", "connection closed inside the body"),
        (b"", False, "error", "connection closed before the response head"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False, "error", "connection closed before the response head"),
        (b"SSH-2.0-x\r\n\r\n", False, "error", "not an HTTP/1.1 response"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", False, "error", "not an HTTP/1.1"),
        (SSE_HEAD + b"zz\r\n", False, "error", "not an HTTP/1.1 response"),
        (b"", True, "error", "before the response head"),
    ],
)
async def test_a_response_that_is_cut_or_wrong_says_so(talk, wire, reset, outcome, error):
    async def script(request, conversation):
        await conversation.send(wire)
        if reset:
            linger = b"\x01\0\0\0\0\0\0\0"
            conversation.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        conversation.writer.close()

    async with running(script) as engine:
        exchange = await ask(await talk(engine.url))
    assert exchange.outcome == outcome
    assert error in exchange.error
    assert exchange.end_ns is not None


async def test_a_reset_inside_an_unframed_body_is_no_end(talk):
    async def script(request, conversation):
        await conversation.send(b"HTTP/1.1 200 OK\r\n\r\nab")
        linger = b"\x01\0\0\0\0\0\0\0"
        conversation.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        await conversation.reader.read(1)
        conversation.writer.close()

    async with running(script) as engine:
        client = await talk(engine.url)
        exchange = Exchange(POST)
        sending = asyncio.create_task(client.send(exchange))
        while not exchange.reads:
            await asyncio.sleep(0)
        client._open.copy().pop()._transport.write(b"x")
        await sending
    assert (exchange.outcome, exchange.error) == ("truncated", "connection reset inside the body")


async def test_connections_are_reused_last_in_first_out(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        await asyncio.gather(*(ask(client) for _ in range(3)))
        later = [await ask(client) for _ in range(4)]
        assert len(engine.conversations) == 3
        assert len({request.connection for request in engine.requests[3:]}) == 1
    assert not any(exchange.new_connection for exchange in later)


@pytest.mark.parametrize("answer", [json_response(b"{}", extra=b"connection: close\r\n"), b"HTTP/1.0 204 X\r\n\r\n"])
async def test_a_connection_that_is_to_close_is_not_reused(talk, answer):
    async def script(request, conversation):
        await conversation.send(answer)

    async with running(script) as engine:
        client = await talk(engine.url)
        assert [(await ask(client)).new_connection for _ in range(2)] == [True, True]
        assert len(engine.conversations) == 2


async def test_a_connection_idle_too_long_is_not_reused(talk, monkeypatch):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        await asyncio.gather(*(ask(client) for _ in range(2)))
        monkeypatch.setattr(client_module, "IDLE_LIMIT_S", -1.0)
        assert (await ask(client)).new_connection
        assert len(engine.conversations) == 3


async def test_any_number_of_requests_is_in_flight_at_once(talk):
    everyone = asyncio.Event()

    async def script(request, conversation):
        if len(engine.requests) == 300:
            everyone.set()
        await everyone.wait()
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        exchanges = await asyncio.gather(*(ask(client) for _ in range(300)))
    assert all(exchange.outcome == "ok" for exchange in exchanges)


async def test_a_kept_connection_that_dies_unanswered_is_replayed_once_and_shows_it(talk):
    async def script(request, conversation):
        if len(engine.requests) == 2:
            conversation.reset()
        else:
            await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        first, second = await ask(client), await ask(client)
    assert first.attempts == 1
    assert (second.outcome, second.attempts, second.new_connection) == ("ok", 2, True)
    assert [request.connection for request in engine.requests] == [0, 0, 1]
    assert second.sent_ns < second.headers_ns


async def test_a_replay_that_dies_too_is_an_error(talk):
    async def script(request, conversation):
        if len(engine.requests) == 1:
            await conversation.send(json_response(b"{}"))
        else:
            conversation.reset()

    async with running(script) as engine:
        client = await talk(engine.url)
        await ask(client)
        second = await ask(client)
    assert (second.outcome, second.error_kind, second.attempts) == ("error", "connection", 2)
    assert len(engine.requests) == 3


async def test_a_kept_connection_that_dies_within_its_answer_is_not_replayed(talk):
    async def script(request, conversation):
        if len(engine.requests) == 1:
            await conversation.send(json_response(b"{}"))
        else:
            await conversation.send(b"HTTP/1.1 2")
            conversation.writer.close()

    async with running(script) as engine:
        client = await talk(engine.url)
        await ask(client)
        assert (await ask(client)).outcome == "error"
        assert len(engine.requests) == 2


async def test_a_connection_closed_while_idle_is_forgotten(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))
        conversation.writer.close()

    async with running(script) as engine:
        client = await talk(engine.url)
        await ask(client)
        while client._open:
            await asyncio.sleep(0)
        second = await ask(client)
    assert (second.new_connection, second.attempts) == (True, 1)


STRAY = b"HTTP/1.1 408 X\r\nx-stray: 1\r\ncontent-length: 2\r\n\r\nno"


async def test_bytes_after_the_answer_are_nobodys_and_end_the_connection(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}") + STRAY)

    async with running(script) as engine:
        client = await talk(engine.url)
        exchanges = [await ask(client) for _ in range(2)]
        assert len(engine.conversations) == 2
    for exchange in exchanges:
        assert (exchange.outcome, exchange.status, exchange.body()) == ("ok", 200, b"{}")
        assert exchange.header(b"x-stray") is None


async def test_bytes_while_idle_end_the_connection(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        await ask(client)
        await engine.conversations[0].send(STRAY)
        while client._open:
            await asyncio.sleep(0)
        assert ((await ask(client)).status, len(engine.conversations)) == (200, 2)


async def test_a_cancelled_request_closes_its_connection_and_has_no_outcome(talk):
    async def script(request, conversation):
        await conversation.until_left()

    async with running(script) as engine:
        client = await talk(engine.url)
        exchange = Exchange(POST)
        sending = asyncio.create_task(client.send(exchange))
        while not engine.requests:
            await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await engine.conversations[0].left.wait()
    assert exchange.outcome is None
    exchange.end("cancelled", "first")
    exchange.end("error", "second")
    assert (exchange.outcome, exchange.error) == ("cancelled", "first")


async def test_a_port_that_nobody_listens_on_is_an_error(talk, unused_tcp_port):
    exchange = await ask(await talk(f"http://127.0.0.1:{unused_tcp_port}"))
    assert exchange.outcome == "error"
    assert exchange.error.startswith("connect: ")
    assert exchange.error_kind == "connect"
    assert exchange.sent_ns is None


async def test_a_name_is_resolved_and_its_addresses_tried_in_order(unused_tcp_port):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        target = parse_target(engine.url)
        client = Client(target, ["127.0.0.2", "127.0.0.1"])
        assert (await ask(client)).outcome == "ok"
        client.close()
        named = await Client.open(parse_target(f"http://localhost:{engine.port}"))
        assert (await ask(named)).outcome == "ok"
        named.close()


async def test_a_name_without_an_address_is_refused():
    with pytest.raises(OSError, match=r"."):
        await Client.open(parse_target("http://no-such-host.invalid"))
    exchange = Exchange(POST)
    await Client(parse_target("http://h"), []).send(exchange)
    assert exchange.error == "connect: h has no address"


async def test_a_peer_that_left_before_the_request_is_an_error(talk):
    async with running(lambda request, conversation: None) as engine:
        client = await talk(engine.url)
        exchange = Exchange(POST)
        connection = await client._connect(exchange)
        connection.drop()
        exchange.new_connection = True
        await connection.send(exchange)
    assert (exchange.outcome, exchange.error) == ("error", "connection closed before the request")


async def test_peers_that_leave_as_soon_as_they_came_hold_nothing_up(talk):
    async with await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0) as server:
        client = await talk(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        exchanges = await asyncio.gather(*(ask(client) for _ in range(50)))
    assert {exchange.outcome for exchange in exchanges} == {"error"}


async def test_connecting_and_the_tls_handshake_have_marks_of_their_own(talk, tmp_path, monkeypatch):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)

    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script, context) as engine:
        client = await talk(f"https://localhost:{engine.port}")
        first, second = await ask(client), await ask(client)
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert first.dequeued_ns < first.connected_ns < first.secured_ns <= first.sent_ns < first.first_byte_ns
    assert (second.connected_ns, second.secured_ns) == (None, None)


async def test_a_certificate_that_nobody_vouches_for_is_an_error(talk):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    async with running(lambda request, conversation: None, context) as engine:
        exchange = await ask(await talk(f"https://localhost:{engine.port}"))
    assert (exchange.outcome, exchange.error_kind, exchange.sent_ns) == ("error", "connect", None)
    assert "CERTIFICATE_VERIFY_FAILED" in exchange.error


async def test_tls_to_a_port_that_speaks_none_is_an_error(talk):
    def refuse(reader, writer):
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        client = await talk(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        assert isinstance(client._tls, ssl.SSLContext)
        exchange = await ask(client)
    assert exchange.outcome == "error"
    assert exchange.error.startswith("connect: ")


async def test_a_request_cancelled_while_connecting_leaves_no_connection(talk):
    async def script(request, conversation):
        await conversation.send(json_response(b"{}"))

    async with running(script) as engine:
        client = await talk(engine.url)
        sending = asyncio.create_task(client.send(Exchange(POST)))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert not client._open
        assert not engine.requests


async def test_an_answer_that_overtakes_its_cancellation_still_counts(talk):
    async def script(request, conversation):
        await conversation.until_left()

    async with running(script) as engine:
        client = await talk(engine.url)
        exchange = Exchange(POST)
        sending = asyncio.create_task(client.send(exchange))
        while not engine.requests:
            await asyncio.sleep(0)
        sending.cancel()
        client._open.copy().pop().data_received(json_response(b"{}"))
        with pytest.raises(asyncio.CancelledError):
            await sending
    assert (exchange.outcome, exchange.status) == ("ok", 200)


def test_the_open_files_limit_is_raised_to_the_hard_one():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[1]), before[1]))
    try:
        assert raise_open_files_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
