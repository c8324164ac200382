"""The server behind every client of the comparison: it streams on an absolute schedule and notes what really happened.

`python -m benchmarks.clients.server FILE` prints its port, then `first` at the first stream and `idle` whenever the
last open one has ended; when its standard input closes it writes the `Log` to FILE, prints `logged` and ends. A request
has arrived when it is there as a whole; chunk k is due 50 ms + k·10 ms later. Streams have vLLM's shape: the role chunk
in the same write as the first token, then a write per token, the usage and `[DONE]` with the last. Loopback only.
"""

from __future__ import annotations

import asyncio
import gc
import os
import re
import sys
import time
from pathlib import Path
from typing import cast

import httptools
import msgspec
import uvloop

TTFT_MS = 50
GAP_MS = 10
MODEL = "bench"

_PRIORITY = 10
_LENGTH = re.compile(rb'"max(?:_completion)?_tokens"\s*:\s*(\d+)')
_STREAMED = re.compile(rb'"stream"\s*:\s*true')
_USAGE_WANTED = re.compile(rb'"include_usage"\s*:\s*true')
_DEFAULT_CHUNKS = 100

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n"
_STREAM_HEAD = _HEAD % b"text/event-stream; charset=utf-8" + b"transfer-encoding: chunked\r\n\r\n"
_NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"bench","object":"model","created":1796082118,"owned_by":"vllm"}]}'
_CHAT = "/v1/chat/completions"
_TEXT = "/v1/completions"


class Stream(msgspec.Struct, frozen=True, kw_only=True):
    """One streamed answer, on CLOCK_MONOTONIC."""

    request_id: str | None
    """`x-request-id` of the request."""
    arrived_ns: int
    due_ns: int
    """When its first chunk was due; the others GAP_MS apart."""
    written_ns: list[int]
    """When each chunk was handed to the socket: fewer than `chunks` where the client left."""
    chunks: int


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """Every stream in order of arrival."""

    real_time: bool
    """Whether the server ran before everything else on its machine."""
    streams: list[Stream]


class Server:
    """What all connections share: the streams so far, and how many are open."""

    def __init__(self) -> None:
        self.streams: list[Answer] = []
        self._open = 0

    def opened(self, stream: Answer) -> None:
        if not self.streams:
            print("first", flush=True)
        self.streams.append(stream)
        self._open += 1

    def closed(self) -> None:
        self._open -= 1
        if not self._open:
            print("idle", flush=True)


class Answer:
    """One stream under way."""

    def __init__(self, *, arrived_ns: int, request_id: str | None, chunks: int, chat: bool, usage: bytes) -> None:
        """`usage` is the event with it, nothing where it was not asked for."""
        self.arrived_ns = arrived_ns
        self.due_ns = arrived_ns + TTFT_MS * 1_000_000
        self.request_id = request_id
        self.chunks = chunks
        self.written_ns: list[int] = []
        self._frames = _CHAT_FRAMES if chat else _TEXT_FRAMES
        self._end = usage + _DONE

    def frame(self, index: int) -> bytes:
        role, token, last_token = self._frames
        if 0 < index < self.chunks - 1:
            return token
        return (b"" if index else role) + (token if index < self.chunks - 1 else last_token + self._end)

    def record(self) -> Stream:
        return Stream(
            request_id=self.request_id,
            arrived_ns=self.arrived_ns,
            due_ns=self.due_ns,
            written_ns=self.written_ns,
            chunks=self.chunks,
        )


def _framed(event: bytes) -> bytes:
    """One SSE event as one chunk of the transfer coding, as uvicorn sends it."""
    data = b"data: " + event + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(chat: bool, choices: bytes) -> bytes:
    kind = b"chat.completion.chunk" if chat else b"text_completion"
    around = b'{"id":"chatcmpl-0","object":"%b","created":1796082118,"model":"bench","choices":%b}'
    return _framed(around % (kind, choices))


def _token(chat: bool, text: bytes, finish: bytes, role: bytes = b"") -> bytes:
    said = b'"delta":{%b"content":"%b"}' % (role, text) if chat else b'"text":"%b"' % text
    return _event(chat, b'[{"index":0,%b,"logprobs":null,"finish_reason":%b}]' % (said, finish))


def _frames(chat: bool) -> tuple[bytes, bytes, bytes]:
    """The role chunk, a token, the last token."""
    role = _token(chat, b"", b"null", b'"role":"assistant",') if chat else b""
    return role, _token(chat, b" river", b"null"), _token(chat, b" river", b'"length"')


_CHAT_FRAMES = _frames(True)
_TEXT_FRAMES = _frames(False)
_DONE = _framed(b"[DONE]") + b"0\r\n\r\n"


def _usage(prompt_tokens: int, completion_tokens: int) -> bytes:
    total = prompt_tokens + completion_tokens
    return b'{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (prompt_tokens, total, completion_tokens)


def _usage_event(chat: bool, prompt_tokens: int, chunks: int) -> bytes:
    return _event(chat, b'[],"usage":' + _usage(prompt_tokens, chunks))


class ServerProtocol(asyncio.Protocol):
    """One connection; requests one after the other."""

    _transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, server: Server) -> None:
        self._loop = loop
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._timer: asyncio.TimerHandle | None = None
        self._answer: Answer | None = None
        self._url = b""
        self._body = bytearray()
        self._request_id: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer:
            self._timer.cancel()
        if self._answer:
            self._answer = None
            self._server.closed()

    def on_message_begin(self) -> None:
        self._url = b""
        self._body = bytearray()
        self._request_id = None

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        lower = name.lower()
        if lower == b"x-request-id":
            self._request_id = value.decode("latin-1")
        elif lower == b"expect":
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        arrived_ns = time.monotonic_ns()
        path = self._url.decode("latin-1").partition("?")[0]
        if path in {_CHAT, _TEXT}:
            self._generate(arrived_ns, chat=path == _CHAT)
        elif path == "/v1/models":
            self._reply(_MODELS)
        elif path in {"/health", "/flush_cache", "/ping"}:
            self._reply(b"{}")
        else:
            self._transport.write(_NOT_FOUND)

    def _generate(self, arrived_ns: int, *, chat: bool) -> None:
        found = _LENGTH.search(self._body)
        chunks = max(1, int(found[1])) if found else _DEFAULT_CHUNKS
        words = _words(self._body)
        if not _STREAMED.search(self._body):
            self._reply(_whole(chat, words, chunks))
            return
        wanted = _USAGE_WANTED.search(self._body)
        self._answer = Answer(
            arrived_ns=arrived_ns,
            request_id=self._request_id,
            chunks=chunks,
            chat=chat,
            usage=_usage_event(chat, words, chunks) if wanted else b"",
        )
        self._server.opened(self._answer)
        self._transport.write(_STREAM_HEAD)
        self._schedule(self._answer)

    def _reply(self, body: bytes) -> None:
        self._transport.write(_HEAD % b"application/json" + b"content-length: %d\r\n\r\n%b" % (len(body), body))

    def _send_chunk(self) -> None:
        answer = self._answer
        assert answer is not None
        index = len(answer.written_ns)
        frame = answer.frame(index)
        answer.written_ns.append(time.monotonic_ns())
        self._transport.write(frame)
        if index + 1 == answer.chunks:
            self._answer = self._timer = None
            self._server.closed()
            return
        self._schedule(answer)

    def _schedule(self, answer: Answer) -> None:
        """Chunks are due at absolute times, so a late one does not delay those after it."""
        due_ns = answer.due_ns + len(answer.written_ns) * GAP_MS * 1_000_000
        delay_s = max(0, due_ns - time.monotonic_ns()) / 1e9
        self._timer = self._loop.call_later(delay_s, self._send_chunk)


class _Message(msgspec.Struct):
    content: object = ""


class _Body(msgspec.Struct):
    messages: list[_Message] = []
    prompt: object = ""


def _words(body: bytes | bytearray) -> int:
    """Prompt tokens of a tokenizer for which every word is one."""
    try:
        request = msgspec.json.decode(body, type=_Body)
    except msgspec.MsgspecError:
        return 0
    contents = [*(message.content for message in request.messages), request.prompt]
    return sum(len(str(content).split()) for content in contents)


def _whole(chat: bool, words: int, chunks: int) -> bytes:
    said = b'"message":{"role":"assistant","content":"river"}' if chat else b'"text":"river"'
    around = b'{"id":"0","object":"completion","created":1796082118,"model":"bench","choices":[{"index":0,%b,'
    return around % said + b'"finish_reason":"length"}],"usage":' + _usage(words, chunks) + b"}"


def _before_all_else() -> bool:
    """Asks for a real-time priority; whether it was given."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except PermissionError:
        return False
    return True


async def _serve() -> Log:
    real_time = _before_all_else()
    loop = asyncio.get_running_loop()
    server = Server()
    listening = await loop.create_server(lambda: ServerProtocol(loop, server), "127.0.0.1", 0, backlog=4096)
    gc.freeze()
    gc.disable()
    print(listening.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    listening.close()
    return Log(real_time=real_time, streams=[answer.record() for answer in server.streams])


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(msgspec.json.encode(uvloop.run(_serve())))
    print("logged", flush=True)
