"""A client that stalls against the real engine, and against contestants that do not see it through."""

import socket
import threading

import pytest

from benchmarks import stalled, windows
from benchmarks.contestants import ContestantError, Running
from benchmarks.results import StalledScenario

SCENARIO = StalledScenario(name="stalled", clients=2, seconds=1.5)


def test_the_engine_itself_holds_back_and_goes_on() -> None:
    with windows.engine() as port, stalled.stalling(Running(port=port, pid=None), port, clients=2) as stall:
        stalled.wait_out([stall], SCENARIO)
        result = stall.end()
    assert result.held_back
    assert result.resumed
    assert result.taken_bytes == sorted(result.taken_bytes)
    assert result.clients == 2
    assert 10_000 < result.taken_bytes[0] <= result.taken_bytes[-1] < 50_000_000
    assert (result.rss_before_bytes, result.rss_after_bytes) == (None, None)


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(1 << 16)
        connection.sendall(answer)


def test_a_stream_that_is_cut_during_the_stall_does_not_resume() -> None:
    with windows.engine() as engine_port, socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=_answer_once, args=(listener, b"HTTP/1.1 200 OK\r\n\r\n" + b"data: {}\n\n" * 9)
        )
        thread.start()
        with stalled.stalling(Running(port=listener.getsockname()[1], pid=None), engine_port, clients=1) as stall:
            thread.join()
            stalled.wait_out([stall], StalledScenario(name="stalled", clients=1, seconds=0.1))
            result = stall.end()
    assert not result.resumed
    assert not result.held_back


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 503 Service Unavailable\r\n\r\n"])
def test_a_stream_that_does_not_start_is_the_contestants_failure(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer_once, args=(listener, answer))
        thread.start()
        with pytest.raises(ContestantError, match="the stream does not start"):
            open_at(listener.getsockname()[1])
        thread.join()


def test_nobody_listening_is_the_contestants_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ContestantError, match="refused"):
        open_at(port)


def open_at(port: int) -> None:
    with stalled.stalling(Running(port=port, pid=None), 0, clients=1):
        pass
