"""Holding streams against real sockets whose other side does not always play along."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import idle, wire
from benchmarks.contestants import Running
from benchmarks.results import IdleScenario

FIRST_CHUNK = b"HTTP/1.1 200 OK\r\n\r\n" + wire.chunk(0, 2, 1_000_000_000_000_000_000)


@contextmanager
def serving(answers: list[bytes]) -> Iterator[int]:
    """A port that gives each connection the next answer, the last one for ever, and keeps those that got a chunk."""
    open_: list[socket.socket] = []

    def serve() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(1 << 16)
            answer = answers[min(number, len(answers) - 1)]
            number += 1
            connection.sendall(answer)
            if answer == FIRST_CHUNK:
                open_.append(connection)
            else:
                connection.close()

    with socket.create_server(("127.0.0.1", 0), backlog=200) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    for connection in open_:
        connection.close()


SCENARIO = IdleScenario(name="idle", streams=150, limit_s=10, settle_s=0)


def test_every_stream_is_opened_and_held() -> None:
    with serving([FIRST_CHUNK]) as port:
        result = idle.hold(Running(port=port, pid=None), SCENARIO)
    assert (result.streams, result.failed) == (150, {})
    assert (result.rss_before_bytes, result.rss_after_bytes) == (None, None)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "closed before the first chunk"),
        (FIRST_CHUNK[:-3], "closed before the first chunk"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.1 503 Service Unavailable"),
    ],
)
def test_streams_that_do_not_open_are_counted_with_their_reason(answer: bytes, reason: str) -> None:
    """200 of the warm-up play along, and half of those that count."""
    with serving([*[FIRST_CHUNK] * 275, answer]) as port:
        result = idle.hold(Running(port=port, pid=None), SCENARIO)
    assert (result.streams, result.failed) == (75, {reason: 75})


def test_a_contestant_that_is_not_there_fails_every_stream() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = idle.hold(Running(port=port, pid=None), SCENARIO)
    assert result.streams == 0
    assert sum(result.failed.values()) == 150


def test_opening_stops_at_its_limit() -> None:
    with serving([FIRST_CHUNK]) as port:
        scenario = IdleScenario(name="idle", streams=150, limit_s=0, settle_s=0)
        assert idle.hold(Running(port=port, pid=None), scenario).streams == 0
