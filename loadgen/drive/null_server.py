"""A server that costs next to nothing: it answers every request with the same stream, a chunk a millisecond.

What a load generator does against it is what the load generator can do. A process of its own:
`python -m loadgen.drive.null_server CHUNKS` prints its port and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys

_EVERY_S = 0.001

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"null",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_END = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"null",'
    b'"choices":[],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}\n\ndata: [DONE]\n\n'
)


def _framed(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class _Connection(asyncio.Protocol):
    """Takes a request that arrives in one read, as the calibration's do."""

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._answer(1, _HEAD + _framed(_EVENT))

    def _answer(self, number: int, data: bytes) -> None:
        if number >= self._chunks:
            self._transport.write(data + _framed(_END) + b"0\r\n\r\n")  # type: ignore[attr-defined]  # of a stream
            return
        self._transport.write(data)  # type: ignore[attr-defined]
        asyncio.get_running_loop().call_later(_EVERY_S, self._answer, number + 1, _framed(_EVENT))


async def _serve(chunks: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(chunks), "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    gone = asyncio.Event()
    loop.add_reader(0, gone.set)
    await gone.wait()


def main() -> None:
    """The process."""
    import uvloop

    uvloop.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
