"""An engine whose every byte and every silence a test decides, over real sockets.

A script is a coroutine that gets the parsed request and the connection. The engine remembers what it was sent
and which connections their client left, so that a test can ask.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Received:
    """One request as it arrived."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int

    @property
    def path(self) -> str:
        return self.line.split(" ")[1]


@dataclass(kw_only=True)
class Conversation:
    """One connection, from the script's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def send(self, data: bytes) -> None:
        if self.writer.is_closing():
            # uvloop would call it a RuntimeError.
            raise ConnectionResetError
        self.writer.write(data)
        await self.writer.drain()

    async def until_left(self) -> None:
        """Waits until the peer closes or resets the connection."""
        try:
            while await self.reader.read(65536):
                pass
        except ConnectionError:
            pass
        self.left.set()

    def reset(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Received, Conversation], Awaitable[None]]


class ScriptedEngine:
    """Runs `script` for every POST; answers GETs (health checks, model lists) by itself."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.requests: list[Received] = []
        self.conversations: list[Conversation] = []
        self.port = 0
        self.health = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(reader=reader, writer=writer)
        number = len(self.conversations)
        self.conversations.append(conversation)
        try:
            while (request := await _read_request(reader, number)) is not None:
                if request.line.startswith("GET"):
                    await conversation.send(self._answer_get(request.path))
                    continue
                self.requests.append(request)
                await self.script(request, conversation)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            conversation.left.set()
            writer.close()

    def _answer_get(self, path: str) -> bytes:
        if path == "/v1/models":
            return json_response(b'{"object":"list","data":[{"id":"m","object":"model","max_model_len":4096}]}')
        return json_response(b"{}", status=self.health)


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Received | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *fields = head.rstrip("\r\n").split("\r\n")
    headers = {name.lower(): value for name, _, value in (entry.partition(": ") for entry in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(line=line, headers=headers, body=body, connection=connection)


@asynccontextmanager
async def running(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[ScriptedEngine]:
    """A scripted engine on a free port, closed with all its connections at the end."""
    engine = ScriptedEngine(script)
    server = await asyncio.start_server(engine._converse, "127.0.0.1", 0, ssl=tls)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for conversation in engine.conversations:
            conversation.writer.transport.abort()


def json_response(body: bytes, *, status: int = 200, extra: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
    return head % (status, len(body), extra) + body


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def token(text: str, finish: str | None = None) -> bytes:
    """One chat chunk as vLLM writes it."""
    reason = f'"{finish}"' if finish else "null"
    return (
        f'data: {{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{{"index":0,'
        f'"delta":{{"content":"{text}"}},"logprobs":null,"finish_reason":{reason}}}]}}\n\n'
    ).encode()


USAGE = (
    b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],'
    b'"usage":{"prompt_tokens":7,"total_tokens":10,"completion_tokens":3}}\n\n'
)
STREAM = [token("a"), token(" b"), token(" c", "length"), USAGE, DONE]
"""A whole small stream, event by event."""


async def whole_stream(request: Received, conversation: Conversation) -> None:
    """A script: the whole of STREAM, one HTTP chunk per event."""
    await conversation.send(SSE_HEAD)
    for event in STREAM:
        await conversation.send(chunk(event))
    await conversation.send(LAST_CHUNK)


ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"x"},'
    b'"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}'
)


async def answer(request: Received, conversation: Conversation) -> None:
    """A script: ANSWER, which is no stream."""
    await conversation.send(json_response(ANSWER, extra=b"x-engine: yes\r\nconnection: keep-alive\r\n"))


async def silence(request: Received, conversation: Conversation) -> None:
    """A script: nothing, until the peer has enough."""
    await conversation.until_left()


async def hang_up(request: Received, conversation: Conversation) -> None:
    """A script: the connection closes without a byte."""
    conversation.writer.close()


async def only_the_head(request: Received, conversation: Conversation) -> None:
    """A script: the head of a stream at once, as engines send it, and no event."""
    await conversation.send(SSE_HEAD)
    await conversation.until_left()


async def stream_for_ever(request: Received, conversation: Conversation) -> None:
    """A script: a token every 2 ms until the peer leaves."""
    await conversation.send(SSE_HEAD)
    watching = asyncio.create_task(conversation.until_left())
    try:
        while not watching.done():
            await conversation.send(chunk(token("a")))
            await asyncio.sleep(0.002)
    except ConnectionError:
        pass
    await watching


def saying(data: bytes) -> Script:
    """A script: these bytes, whatever is asked."""

    async def script(request: Received, conversation: Conversation) -> None:
        await conversation.send(data)

    return script


def refusing(status: int, *, extra: bytes = b"") -> Script:
    """A script: an error response as vLLM writes it."""
    body = b'{"error":{"message":"No.","type":"X","param":null,"code":%d}}' % status
    return saying(json_response(body, status=status, extra=extra))


def in_turn(*scripts: Script) -> Script:
    """The n-th request is answered by the n-th script, and all after the last by the last."""
    left = list(scripts)

    async def script(request: Received, conversation: Conversation) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, conversation)

    return script
