"""The `traceparent` header of W3C Trace Context, level 1: who asked, and whether it is traced.

Hides the header's layout and versions. It never makes randomness (the caller passes bytes) and never touches
`tracestate`, which travels unread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEADER = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE = "0" * 32
_NO_SPAN = "0" * 16


@dataclass(frozen=True, slots=True)
class TraceParent:
    """A position in a trace. Both ids are lowercase hex and never all zero."""

    trace_id: str
    span_id: str
    sampled: bool


def parse(value: bytes) -> TraceParent | None:
    """The header's value, or None when it is invalid and a new trace must be started.

    A version above 00 is read as far as version 00 goes, whatever follows after another dash ("Versioning of
    traceparent"); ff is forbidden.
    """
    match = _HEADER.fullmatch(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None):
        return None
    parent = TraceParent(trace_id.decode(), span_id.decode(), bool(int(flags, 16) & 1))
    return None if parent.trace_id == _NO_TRACE or parent.span_id == _NO_SPAN else parent


def new(rng_bytes: bytes, *, sampled: bool = True) -> TraceParent:
    """Root of a new trace from 24 random bytes. Raises ValueError for another length or an all-zero id."""
    if len(rng_bytes) != 24:
        raise ValueError(f"a trace takes 24 random bytes, not {len(rng_bytes)}")
    if not any(rng_bytes[:16]):
        raise ValueError("a trace id must not be all zero")
    return TraceParent(rng_bytes[:16].hex(), _span_id(rng_bytes[16:]), sampled)


def child(parent: TraceParent, span_id_bytes: bytes) -> TraceParent:
    """A span below `parent`, from 8 random bytes. Raises ValueError for another length or all zero."""
    return TraceParent(parent.trace_id, _span_id(span_id_bytes), parent.sampled)


def header(tp: TraceParent) -> bytes:
    """The header's value, always as version 00.

    Flags other than `sampled` are sent as zero, as level 1 demands of the ones it reserves ("Other Flags").
    """
    return f"00-{tp.trace_id}-{tp.span_id}-{tp.sampled:02x}".encode()


def _span_id(raw: bytes) -> str:
    if len(raw) != 8:
        raise ValueError(f"a span id takes 8 random bytes, not {len(raw)}")
    if not any(raw):
        raise ValueError("a span id must not be all zero")
    return raw.hex()
