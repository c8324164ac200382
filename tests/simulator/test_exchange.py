"""ASGI messages in and out, and the evidence of what was written."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from protocol.records import StreamRecord, read_lines
from simulator.exchange import SSE, ClientGone, Exchange, Recorder


class Peer:
    """The server's side of one ASGI request."""

    def __init__(self, *messages: dict[str, Any], headers: dict[bytes, bytes] | None = None) -> None:
        self.sent: list[Any] = []
        self._messages = list(messages)
        scope = {"method": "POST", "path": "/p", "headers": list((headers or {}).items())}
        self.exchange = Exchange(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        return self._messages.pop(0) if self._messages else {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


def part(body: bytes, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_in_parts_and_a_client_that_leaves_after_it() -> None:
    peer = Peer(part(b"a", True), part(b"b", False), {"type": "http.request"})
    assert await peer.exchange.body() == b"ab"
    await peer.exchange.client_leaves()


async def test_a_client_that_leaves_within_its_body() -> None:
    with pytest.raises(ClientGone):
        await Peer(part(b"a", True)).exchange.body()


async def test_a_stream_and_its_record() -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    peer = Peer(headers={b"traceparent": f"00-{trace}-00f067aa0ba902b7-01".encode()})
    assert peer.exchange.record(None) is None
    await peer.exchange.start(200, SSE, (b"x-more", b"1"))
    await peer.exchange.write(b"one")
    await peer.exchange.write(b"two")
    unfinished = peer.exchange.record("r")
    assert unfinished is not None
    assert not unfinished.completed
    await peer.exchange.end()
    assert peer.sent[0]["headers"] == [(b"content-type", SSE), (b"vary", b"Origin"), (b"x-more", b"1")]
    assert [message.get("body") for message in peer.sent[1:]] == [b"one", b"two", b""]
    assert [message["more_body"] for message in peer.sent[1:]] == [True, True, False]
    assert peer.exchange.record("r") == StreamRecord(
        trace_id=trace,
        request_id="r",
        path="/p",
        status=200,
        bytes=6,
        sha256=hashlib.sha256(b"onetwo").hexdigest(),
        completed=True,
    )


async def test_a_whole_reply_with_and_without_a_body() -> None:
    peer = Peer(headers={b"traceparent": b"garbage"})
    await peer.exchange.reply(200, b"{}")
    assert peer.sent[0]["headers"] == [
        (b"content-length", b"2"),
        (b"content-type", b"application/json"),
        (b"vary", b"Origin"),
    ]
    record = peer.exchange.record(None)
    assert record is not None
    assert (record.trace_id, record.bytes, record.completed) == (None, 2, True)
    empty = Peer()
    await empty.exchange.reply(204)
    assert empty.sent[0]["headers"] == [(b"content-length", b"0"), (b"vary", b"Origin")]
    assert empty.exchange.header(b"missing") is None


def test_records_are_appended_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    record = StreamRecord(trace_id=None, request_id=None, path="/p", status=400, bytes=0, sha256="", completed=True)
    for _ in range(2):
        recorder = Recorder(file)
        recorder.add(record)
        recorder.close()
    assert list(read_lines(file, StreamRecord)) == [record] * 2
