"""The bytes that engine and load agree on: requests, the small answer, and the stream of stamped chunks.

The pace of a stream travels in the prompt, since a proxy may drop or rewrite any other field. Every chunk
carries the engine's monotonic clock as its token text, so the load side knows the one-way delay of each, and
a received body with its stamps blanked must equal `blank_stream` to the byte. Opens no sockets, reads no clock.
"""

from __future__ import annotations

import re
from functools import cache

MODEL = "bench"

STAMP = re.compile(rb"@(\d{19})@")
"""One chunk's send time, CLOCK_MONOTONIC in ns: one clock for all processes of a Linux host."""

_BLANK_STAMP = b"@" + b"0" * 19 + b"@"
_PACE = re.compile(rb"ttft_ms=(\d+) gap_ms=(\d+) chunks=(\d+)")
_ID = b"chatcmpl-5f0f2bd0c1b84a3d9c4e7a6b8d2e1f30"

SMALL_ANSWER = (
    b'{"id":"' + _ID + b'","object":"chat.completion","created":1796082118,"model":"bench","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"A weir regulates and measures a river.","tool_calls":[]},'
    b'"logprobs":null,"finish_reason":"stop","stop_reason":null}],'
    b'"usage":{"prompt_tokens":23,"total_tokens":33,"completion_tokens":10}}'
)
DONE = b"data: [DONE]\n\n"


def request_body(ttft_ms: int, gap_ms: int, chunks: int) -> bytes:
    """Chat request for a stream of that pace; with `chunks` 0, for the small answer."""
    if chunks == 0:
        return (
            b'{"model":"bench","messages":[{"role":"user","content":"What does a weir do?"}],'
            b'"max_tokens":10,"temperature":0.0}'
        )
    return (
        b'{"model":"bench","messages":[{"role":"user","content":"ttft_ms=%d gap_ms=%d chunks=%d"}],'
        b'"max_tokens":%d,"temperature":0.0,"stream":true}'
    ) % (ttft_ms, gap_ms, chunks, chunks)


def pace_of(body: bytes) -> tuple[int, int, int] | None:
    """(ttft_ms, gap_ms, chunks) of a stream request, None for a request for the small answer."""
    pace = _PACE.search(body)
    return (int(pace[1]), int(pace[2]), int(pace[3])) if pace else None


@cache
def chunk_around_stamp(first: bool, last: bool) -> tuple[bytes, bytes]:
    """The bytes of one SSE event before and after its stamp, in the shape of vLLM's chat chunks."""
    role = b'"role":"assistant",' if first else b""
    finish = b'"length","stop_reason":null' if last else b"null"
    return (
        b'data: {"id":"' + _ID + b'","object":"chat.completion.chunk","created":1796082118,"model":"bench",'
        b'"choices":[{"index":0,"delta":{' + role + b'"content":"@',
        b'@"},"logprobs":null,"finish_reason":' + finish + b',"token_ids":null}]}\n\n',
    )


def chunk(index: int, count: int, sent_ns: int) -> bytes:
    """SSE event `index` of `count`, stamped."""
    before, after = chunk_around_stamp(index == 0, index == count - 1)
    return b"%b%019d%b" % (before, sent_ns, after)


@cache
def blank_stream(count: int) -> bytes:
    """The whole body of a stream of `count` chunks with every stamp zero."""
    return b"".join(chunk(index, count, 0) for index in range(count)) + DONE


def blanked(body: bytes) -> bytes:
    """`body` with every stamp zero."""
    return STAMP.sub(_BLANK_STAMP, body)
