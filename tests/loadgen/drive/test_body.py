"""The quick way through a body and the exact one give the same figures, wherever reads and slices are cut."""

import hashlib
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadgen.drive.body import BodyReads
from protocol.sse import SseParser
from protocol.stream import StreamWatch, carries_answer, carries_token
from tests.scripted_engine import DONE, USAGE, token

EVENTS = [
    token("word"),
    token("a"),
    token(""),
    token('with \\"quotes\\" and \\n'),
    token("z", "length"),
    b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"hm"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":null,"reasoning":"hm"}}]}\n\n',
    b'data:{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}\n\n',
    b": keep-alive\n\n",
    b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n',
    b'data: {"a":1,\ndata: "content":"two lines"}\n\n',
    token("crlf").replace(b"\n", b"\r\n"),
    b"\n\n",
    USAGE,
    DONE,
]


def exactly(stamps, reads):
    """Read by read through the parser."""
    parser = SseParser()
    tokens, first, answer, last = [], None, None, None
    for stamp, data in zip(stamps, reads, strict=True):
        events = parser.feed(data)
        tokens.append(sum(map(carries_token, events)))
        if tokens[-1]:
            first = stamp if first is None else first
            last = stamp
        if answer is None and any(map(carries_answer, events)):
            answer = stamp
    return tokens, first, answer, last


@given(
    events=st.lists(st.sampled_from(EVENTS), max_size=30),
    cuts=st.sets(st.integers(1, 4000), max_size=20),
    borders=st.sets(st.integers(1, 40), max_size=5),
    whole=st.booleans(),
)
def test_both_ways_agree(events, cuts, borders, whole):
    body = b"".join(events)
    if whole:
        reads = list(events)
    else:
        places = [0, *sorted(cut for cut in cuts if cut < len(body)), len(body)]
        reads = [body[begin:end] for begin, end in pairwise(places) if end > begin]
    stamps = [100 + 7 * number for number in range(len(reads))]
    found = BodyReads()
    for begin, end in pairwise([0, *sorted(border for border in borders if border < len(reads)), len(reads)]):
        found.feed(stamps[begin:end], reads[begin:end])
    tokens, first, answer, last = exactly(stamps, reads)
    assert found.content_events == tokens
    assert (found.first_token_ns, found.first_answer_ns, found.last_token_ns) == (first, answer, last)
    assert found.sha256() == (hashlib.sha256(body).hexdigest() if reads else None)
    watch = StreamWatch()
    for stamp, data in zip(stamps, reads, strict=True):
        watch.feed(data, stamp)
    assert found.result() == watch.result()


def test_several_events_in_a_read_and_a_read_within_an_event_are_counted_where_they_end():
    a, b = token("a"), token("b")
    found = BodyReads()
    found.feed([1, 2, 3], [a + b + a[:9], a[9:20], a[20:]])
    assert found.content_events == [2, 0, 1]
    assert (found.first_token_ns, found.last_token_ns) == (1, 3)


def test_the_same_shape_with_an_empty_text_is_no_token():
    found = BodyReads()
    found.feed([1, 2, 3], [token("a"), token(""), token("b")])
    assert found.content_events == [1, 0, 1]
