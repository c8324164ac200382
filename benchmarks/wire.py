"""The bytes that engine and load agree on: requests, the small answer, and the stream of stamped chunks.

The shape of a stream travels at the start of the prompt, since a proxy may drop or rewrite any other field. Every
chunk carries the engine's monotonic clock as its token text, so the load side knows the one-way delay of each, and
a received body with its stamps blanked must equal `blank_stream` to the byte. Opens no sockets, reads no clock.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

MODEL = "bench"

STAMP = re.compile(rb"@(\d{19})@")
"""One chunk's send time, CLOCK_MONOTONIC in ns: one clock for all processes of a Linux host."""

_BLANK_STAMP = b"@" + b"0" * 19 + b"@"
_SHAPE = re.compile(rb"ttft_ms=(\d+) gap_ms=(\d+) chunks=(\d+) pad_bytes=(\d+)")

SHAPE_WITHIN_BYTES = 16_384
"""The shape is in the first so many bytes of a body, whatever fields a proxy puts before it: the rest is prompt."""

KEY = b"sk-bench-0c7d1e92b84f4a53a6f0d9e1c2b38475"
"""API key of every request, for the contestants that insist on one."""

_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nuser-agent: weir-benchmark\r\naccept: */*\r\n"
    b"authorization: Bearer %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
_ID = b"chatcmpl-5f0f2bd0c1b84a3d9c4e7a6b8d2e1f30"

SMALL_ANSWER = (
    b'{"id":"' + _ID + b'","object":"chat.completion","created":1796082118,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"A weir regulates and measures a river.","tool_calls":[]},'
    b'"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
    b'"usage":{"prompt_tokens":23,"total_tokens":33,"completion_tokens":10}}'
)
DONE = b"data: [DONE]\n\n"


class Shape(NamedTuple):
    """A stream: time to its first chunk, between chunks, how many, and how much longer than usual each is."""

    ttft_ms: int = 0
    gap_ms: int = 0
    chunks: int = 0
    """0 asks for the small answer instead of a stream."""
    pad_bytes: int = 0


SMALL = Shape()


def request_body(shape: Shape, prompt_bytes: int = 0) -> bytes:
    """Chat request for a stream of that shape or for the small answer, its prompt at least so long."""
    if not shape.chunks:
        return (
            b'{"model":"bench","messages":[{"role":"user","content":"What does a weir do?%b"}],'
            b'"max_tokens":10,"temperature":0.0}'
        ) % _prose(prompt_bytes)
    return (
        b'{"model":"bench","messages":[{"role":"user","content":"ttft_ms=%d gap_ms=%d chunks=%d pad_bytes=%d%b"}],'
        b'"max_tokens":%d,"temperature":0.0,"stream":true}'
    ) % (*shape, _prose(prompt_bytes), shape.chunks)


def request(port: int, body: bytes) -> bytes:
    """The whole HTTP request, as every client of the benchmarks sends it."""
    return _HEAD % (port, KEY, len(body)) + body


def _prose(size_bytes: int) -> bytes:
    words = b" It regulates a river, and it measures what the river carries."
    return (words * -(-size_bytes // len(words)))[:size_bytes]


def shape_of(body: bytes) -> Shape:
    """What a request asks for; its first SHAPE_WITHIN_BYTES are enough."""
    found = _SHAPE.search(body)
    return Shape(*map(int, found.groups())) if found else SMALL


@cache
def chunk_around_stamp(first: bool, last: bool, pad_bytes: int) -> tuple[bytes, bytes]:
    """The bytes of one SSE event before and after its stamp, in the form of vLLM's chat chunks."""
    role = b'"role":"assistant",' if first else b""
    finish = b'"length","stop_reason":null' if last else b"null"
    return (
        b'data: {"id":"' + _ID + b'","object":"chat.completion.chunk","created":1796082118,"model":"bench",'
        b'"choices":[{"index":0,"delta":{' + role + b'"content":"@',
        b"@" + b"~" * pad_bytes + b'"},"logprobs":null,"finish_reason":' + finish + b',"token_ids":null}]}\n\n',
    )


def chunk(index: int, count: int, sent_ns: int, pad_bytes: int = 0) -> bytes:
    """SSE event `index` of `count`, stamped."""
    before, after = chunk_around_stamp(index == 0, index == count - 1, pad_bytes)
    return b"%b%019d%b" % (before, sent_ns, after)


@cache
def blank_stream(count: int, pad_bytes: int = 0) -> bytes:
    """The whole body of a stream of `count` chunks with every stamp zero."""
    return b"".join(chunk(index, count, 0, pad_bytes) for index in range(count)) + DONE


def blanked(body: bytes) -> bytes:
    """`body` with every stamp zero."""
    return STAMP.sub(_BLANK_STAMP, body)
