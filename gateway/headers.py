"""Which header fields cross the gateway, in which direction, and what it adds. Pure functions over bytes.

Hop-by-hop fields (RFC 9110 §7.6.1, and those that `Connection` names) end here, as does everything that
framing, tracing or the identity of the engine decides anew.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gateway.model import EndpointAddress, Headers, RequestHead, ResponseHead

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)

_NOT_UPSTREAM = _HOP_BY_HOP | {
    b"host",
    b"content-length",
    b"expect",
    # Bodies are relayed as they are: asking for none keeps them readable for usage and free of codec buffering.
    b"accept-encoding",
    b"traceparent",
    b"x-request-id",
}

_NOT_DOWNSTREAM = _HOP_BY_HOP | {b"x-request-id", b"x-weir-pool"}

_STREAM_FIELDS: Headers = [
    # nginx and others buffer a response unless told not to; a cached stream is nobody's wish.
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
# The length goes too: a usage event may be taken out of a stream, an error put at its end.
_STREAM_NAMES = {name for name, _ in _STREAM_FIELDS} | {b"content-length"}

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def acceptable_request_id(candidate: bytes | None) -> bool:
    """Whether a client's request id can be kept: 1 to 128 visible ASCII characters."""
    return candidate is not None and _REQUEST_ID.fullmatch(candidate) is not None


def carries_json(fields: Mapping[bytes, bytes]) -> bool:
    """Whether the request body can be read here. One without a proper type may be: let the engine be strict."""
    content_type = fields.get(b"content-type", b"")
    encoding = fields.get(b"content-encoding", b"identity")
    opaque = content_type.lower().startswith((b"multipart/", b"audio/", b"image/"))
    return not opaque and encoding.lower() == b"identity"


def is_event_stream(head: ResponseHead) -> bool:
    content_type = head.header(b"content-type")
    return content_type is not None and content_type.lower().startswith(b"text/event-stream")


def request_bytes(
    head: RequestHead, address: EndpointAddress, body: bytes, *, request_id: bytes, traceparent: bytes
) -> bytes:
    """The whole request as it goes to the engine, head and body in one piece for one write."""
    parts = [b"POST ", address.base_path, head.target, b" HTTP/1.1\r\nhost: ", address.authority, b"\r\n"]
    for name, field in _kept(head.headers, _NOT_UPSTREAM):
        parts += (name, b": ", field, b"\r\n")
    parts += (b"x-request-id: ", request_id, b"\r\ntraceparent: ", traceparent)
    parts += (b"\r\ncontent-length: %d\r\n\r\n" % len(body), body)
    return b"".join(parts)


def response_fields(head: ResponseHead, *, request_id: bytes, pool: bytes, stream: bool) -> Headers:
    """The engine's header fields as the client gets them; Content-Length, if there was one, unless it is a stream."""
    fields = _kept(head.headers, _NOT_DOWNSTREAM)
    if stream:
        fields = [field for field in fields if field[0] not in _STREAM_NAMES] + _STREAM_FIELDS
    fields.append((b"x-request-id", request_id))
    fields.append((b"x-weir-pool", pool))
    return fields


def comment_fields(*, request_id: bytes) -> Headers:
    """Header fields of a stream that begins before its engine has answered."""
    return [(b"content-type", b"text/event-stream; charset=utf-8"), *_STREAM_FIELDS, (b"x-request-id", request_id)]


def _kept(headers: Headers, dropped: Collection[bytes]) -> Headers:
    kept = [field for field in headers if field[0] not in dropped]
    if len(kept) == len(headers):
        return kept
    named = [field for name, field in headers if name == b"connection" and field not in (b"keep-alive", b"close")]
    if named:
        also = {token.strip().lower() for token in b",".join(named).split(b",")}
        kept = [field for field in kept if field[0] not in also]
    return kept
