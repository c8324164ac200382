"""The event-stream parser against the standard's own examples and against a whole-text reading of its rules."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.sse import SseEvent, SseParser

PIECES = [
    b"data: x\n",
    b"data:y\r\n",
    b"data\r",
    b"data:  z\n",
    b"data: \xff\xfe\n",
    b"event: ping\n",
    b"event\n",
    b"id: 7\n",
    b"id: a\0b\n",
    b"id\n",
    b"retry: 10\n",
    b": comment\n",
    b":\r\n",
    b"unknown: 1\n",
    b"\n",
    b"\r",
    b"\r\n",
    b"\xef\xbb\xbf",
    b"data: cut",
]
streams = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=4)), max_size=24).map(b"".join)


def parse_in(stream: bytes, cuts: list[int], keep_bytes: int | None = None) -> tuple[list[SseEvent], bool]:
    parser = SseParser() if keep_bytes is None else SseParser(keep_bytes)
    events: list[SseEvent] = []
    at = 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        events += parser.feed(stream[at:cut])
        at = cut
    return events, parser.close()


def events_by_the_rules(stream: bytes) -> list[SseEvent]:
    """The standard's algorithm on the whole text at once; a last line without an end is dropped."""
    lines = re.split(rb"\r\n|\r|\n", stream.removeprefix(b"\xef\xbb\xbf"))[:-1]
    events, data, kind, last_id = [], b"", b"", None
    for line in lines:
        if not line:
            if data:
                events.append(SseEvent(kind or b"message", data[:-1], last_id))
            data = kind = b""
            continue
        field, colon, value = line.partition(b":")
        value = value[1:] if colon and value[:1] == b" " else value
        if field == b"data":
            data += value + b"\n"
        elif field == b"event":
            kind = value
        elif field == b"id" and b"\0" not in value:
            last_id = value
    return events


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [SseEvent(data=b"YHOO\n+2\n10")]),
        (
            b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
            [SseEvent(data=b"first event", id=b"1"), SseEvent(data=b"second event", id=b""),
             SseEvent(data=b" third event", id=b"")],
        ),
        (b"data\n\ndata\ndata\n\ndata:", [SseEvent(data=b""), SseEvent(data=b"\n")]),
        (b"data:test\n\ndata: test\n\n", [SseEvent(data=b"test"), SseEvent(data=b"test")]),
        (b"event: add\ndata: 1\n\ndata: 2\n\n", [SseEvent(b"add", b"1"), SseEvent(b"message", b"2")]),
        (b"event: lost\n\ndata: 2\n\n", [SseEvent(data=b"2")]),
        (b"id: 1\0\ndata: 2\n\n", [SseEvent(data=b"2")]),
        (b"id: 1\n\ndata: 2\n\n", [SseEvent(data=b"2", id=b"1")]),
        (b"\xef\xbb\xbfdata: 1\n\n", [SseEvent(data=b"1")]),
        (b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n", []),
        (b"data: 1\n\n\xef\xbb\xbfdata: 2\n\n", [SseEvent(data=b"1")]),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\r\n", [SseEvent(data=b"a"), SseEvent(data=b"b"), SseEvent(data=b"c")]),
        (b" data: 1\n\nData: 2\n\n", []),
    ],
)  # fmt: skip
def test_events_of_the_standard_and_its_corners(stream: bytes, events: list[SseEvent]) -> None:
    assert parse_in(stream, [])[0] == events
    assert parse_in(stream, list(range(len(stream))))[0] == events


@given(stream=streams, cuts=st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_of_any_stream_gives_the_events_of_the_rules(stream: bytes, cuts: list[int]) -> None:
    events, unfinished = parse_in(stream, cuts)
    assert events == events_by_the_rules(stream)
    assert (events, unfinished) == parse_in(stream, list(range(len(stream))))


@given(stream=streams, cuts=st.lists(st.integers(0, 400), max_size=12), keep=st.integers(8, 40))
@example(stream=b"\xef\xbb\xbfdata: 0123456789\n\n", cuts=[5], keep=12)
def test_keeping_less_dispatches_the_same_events(stream: bytes, cuts: list[int], keep: int) -> None:
    whole, unfinished = parse_in(stream, [])
    kept, kept_unfinished = parse_in(stream, cuts, keep)
    assert (kept, kept_unfinished) == parse_in(stream, [], keep)
    assert (len(kept), kept_unfinished) == (len(whole), unfinished)
    for some, full in zip(kept, whole, strict=True):
        assert len(some.data) <= 2 * keep
        # A line counts with its field name and, if it is the first, the byte order mark.
        if all(len(line) + 9 <= keep for line in full.data.split(b"\n")) and len(full.data) < keep:
            assert some.data == full.data


@pytest.mark.parametrize(
    ("stream", "unfinished"),
    [
        (b"", False),
        (b"data: 1\n\n", False),
        (b"data: 1\r\n\r", False),
        (b"data: 1\n", True),
        (b"data: 1", True),
        (b"event: message_stop\n", True),
        (b"retry: 10\n\n", False),
        (b"d", True),
        (b": keep-alive", False),
        (b": keep-alive\n", False),
        (b"data: 1\n\n: keep-al", False),
        (b"\xef\xbb\xbf", False),
        (b"\xef\xbb\xbf: c", False),
        (b"\xef\xbb\xbfda", True),
    ],
)
def test_close_tells_a_stream_that_ended_inside_an_event(stream: bytes, unfinished: bool) -> None:
    assert parse_in(stream, [])[1] is unfinished
    assert parse_in(stream, list(range(len(stream))))[1] is unfinished


@pytest.mark.parametrize(
    ("stream", "between"),
    [(b"data: 1\n\n", True), (b": c\n", True), (b"data: 1\n", False), (b"dat", False), (b"data: 1\r\n\r", False)],
)
def test_between_events_only_when_nothing_is_pending(stream: bytes, between: bool) -> None:
    parser = SseParser()
    parser.feed(stream)
    assert parser.between_events is between


def test_an_event_that_never_ends_holds_bounded_data() -> None:
    parser = SseParser(keep_bytes=100)
    for _ in range(1000):
        parser.feed(b"data: 0123456789\n")
    [event] = parser.feed(b"\n")
    assert 100 <= len(event.data) <= 200


def test_a_long_line_in_small_reads_costs_linear_time() -> None:
    """Scanning or copying the line again at each read would take several seconds here, not 0.05."""
    text = b"x" * (2 << 20)
    reads = [text[at : at + 64] for at in range(0, len(text), 64)]
    parser = SseParser()
    start_s = time.process_time()
    parser.feed(b"data: ")
    for read in reads:
        parser.feed(read)
    [event] = parser.feed(b"\n\n")
    assert time.process_time() - start_s < 1
    assert event.data == text
