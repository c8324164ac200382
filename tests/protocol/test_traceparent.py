"""W3C Trace Context: what is accepted, what restarts a trace, what is sent on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.traceparent import TraceParent, child, header, new, parse

TRACE, SPAN = b"0af7651916cd43dd8448eb211c80319c", b"b7ad6b7169203331"
PARENT = TraceParent(TRACE.decode(), SPAN.decode(), True)


def wire(version: bytes = b"00", trace: bytes = TRACE, span: bytes = SPAN, flags: bytes = b"01") -> bytes:
    return b"-".join((version, trace, span, flags))


@pytest.mark.parametrize(
    ("value", "sampled"),
    [
        (wire(), True),
        (wire(flags=b"00"), False),
        (wire(flags=b"03"), True),
        (wire(flags=b"fe"), False),
        (wire(version=b"01"), True),
        (wire(version=b"cc") + b"-what-the-future-will-be-like", True),
        (wire(version=b"fe") + b"-", True),
    ],
)
def test_valid_headers(value: bytes, sampled: bool) -> None:
    assert parse(value) == TraceParent(TRACE.decode(), SPAN.decode(), sampled)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        wire(version=b"ff"),
        wire(trace=b"0" * 32),
        wire(span=b"0" * 16),
        wire(trace=TRACE.upper()),
        wire(trace=TRACE[1:]),
        wire(span=SPAN + b"0"),
        wire(flags=b"1"),
        wire(flags=b"0g"),
        wire(flags=b"0A"),
        wire(version=b"0"),
        wire() + b"-more",
        wire() + b"-",
        wire() + b"\n",
        wire() + b" ",
        wire(version=b"cc") + b".more",
        wire(version=b"cc") + b"0",
        wire(span=SPAN[:-2] + b"\xd9\xa1"),
    ],
)
def test_invalid_headers_restart_the_trace(value: bytes) -> None:
    assert parse(value) is None


@given(st.binary(min_size=24, max_size=24), st.binary(min_size=8, max_size=8), st.booleans())
def test_a_new_trace_and_its_child_survive_the_wire(root: bytes, span: bytes, sampled: bool) -> None:
    if not (any(root[:16]) and any(root[16:]) and any(span)):
        return
    parent = new(root, sampled=sampled)
    below = child(parent, span)
    assert parse(header(parent)) == parent
    assert parse(header(below)) == below == TraceParent(parent.trace_id, span.hex(), sampled)
    assert len(header(below)) == 55


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_or_refused(value: bytes) -> None:
    parsed = parse(value)
    assert parsed is None or value.startswith((b"00-" + parsed.trace_id.encode(), value[:3]))


def test_a_new_trace_is_sampled_unless_said_otherwise() -> None:
    assert new(bytes(range(24))) == TraceParent("000102030405060708090a0b0c0d0e0f", "1011121314151617", True)


def test_reserved_flags_are_not_sent_on() -> None:
    parsed = parse(wire(flags=b"ff"))
    assert parsed is not None
    assert header(parsed) == wire(flags=b"01")


@pytest.mark.parametrize("raw", [b"x" * 23, b"x" * 25, bytes(16) + b"x" * 8, b"x" * 16 + bytes(8)])
def test_no_trace_is_made_of_bad_randomness(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"all zero|random bytes"):
        new(raw)


@pytest.mark.parametrize("raw", [b"x" * 7, b"x" * 9, bytes(8)])
def test_no_child_is_made_of_bad_randomness(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r"all zero|random bytes"):
        child(PARENT, raw)
