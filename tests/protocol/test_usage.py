"""The request asks for usage in every parser's eyes; the client's stream lacks the usage event and nothing else."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jiter
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.openai import peek_request
from protocol.usage import HOLD_BYTES, UsageStrip, inject_usage

CAPTURES = Path(__file__).parents[3] / "shared/reference/captures"

PARSERS: list[Callable[[bytes], object]] = [
    json.loads,
    msgspec.json.decode,
    jiter.from_json,
    pydantic.TypeAdapter(dict[str, object]).validate_json,
]


def injected(body: bytes) -> bytes | None:
    return inject_usage(body, peek_request(body))


@pytest.mark.parametrize(
    "body",
    [b"{}", b'{"stream":false}', b'{"stream":true,"stream_options":{"include_usage":true}}', b'{"stream_options":{}}'],
)
def test_a_body_that_asks_for_usage_or_for_no_stream_stays(body: bytes) -> None:
    assert injected(body) is None


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "include_usage": st.sampled_from([False, None]),
        "continuous_usage_stats": st.booleans(),
        "x": JSON_VALUES,
    },
)


@given(
    members=st.dictionaries(st.text(max_size=5).map("x-{}".format), JSON_VALUES, max_size=4),
    options=st.none() | OPTIONS,
    sent=st.booleans(),
    indent=st.sampled_from([None, 0, 2]),
    after=st.sampled_from(["", "\n", " \r\n\t"]),
)
def test_every_parser_sees_the_option_and_all_that_the_client_sent(
    members: dict[str, object], options: dict[str, object] | None, sent: bool, indent: int | None, after: str
) -> None:
    request = {**members, "stream": True, "model": "}{", **({"stream_options": options} if sent else {})}
    body = (json.dumps(request, indent=indent, ensure_ascii=False) + after).encode()
    new = injected(body)
    assert new is not None
    want = {**request, "stream_options": {**(options or {} if sent else {}), "include_usage": True}}
    assert [parse(new) for parse in PARSERS] == [want] * len(PARSERS)
    assert injected(new) is None
    end = body.rindex(b"}")
    assert new.startswith(body[:end])
    assert new.endswith(body[end:])


def test_the_option_takes_as_many_bytes_as_it_has() -> None:
    assert injected(b' {"stream":true } \n') == b' {"stream":true ,"stream_options":{"include_usage":true}} \n'
    empty = b'{"stream":true,"stream_options":{ }}'
    assert injected(empty) == empty[:-1] + b',"stream_options":{ "include_usage":true}}'
    other = b'{"stream_options":{"x":[1, 2] },"stream":true}'
    assert injected(other) == other[:-1] + b',"stream_options":{"x":[1, 2] ,"include_usage":true}}'


CHAT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" hi"},"logprobs":null,"finish_reason":null}]}\n\n'
LISTS = rb'data: {"choices":[{"index":0,"delta":{"content":"\"choices\":[],\"usage\":{} []"}}],"usage":null}' + b"\n\n"
TEXT = b'data: {"choices":[{"index":0,"text":"[]","finish_reason":"length","matched_stop":null}],"usage":null}\n\n'
CONTINUOUS = b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":13,"completion_tokens":1}}\n\n'
ERROR = b'data: {"error": {"object": "error", "message": "dead", "param": [], "code": 500}}\n\n'
SGLEXT = b'data: {"id":"c","choices":[],"sglext":{"routed_experts":[]}}\n\n'
NULL_USAGE = b'data: {"id":"c","choices":[],"usage":null}\n\n'
NO_LIST = b'data: {"choices":{},"usage":{"x":[]}}\n\n'
DONE = b"data: [DONE]\n\n"
VLLM = (
    b'data: {"id":"c","object":"chat.completion.chunk","created":1796082118,"model":"tiny","choices":[],'
    b'"usage":{"prompt_tokens":13,"total_tokens":17,"completion_tokens":4},"system_fingerprint":"vllm"}\n\n'
)
SGLANG = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":2,"total_tokens":5,"prompt_tokens_details":null}}\n\n'
LLAMA = b'data:{"choices":[],"created":1,"usage":{"completion_tokens":4},"timings":{"cache_n":1}}\n\n'
SPACED = b'data:  { "usage" : {}, "choices" : [] }\n\n'
USAGES = [VLLM, SGLANG, LLAMA, SPACED]
ORDINARY = [CHAT, LISTS, TEXT, CONTINUOUS, ERROR, SGLEXT, NULL_USAGE, NO_LIST, DONE]
EXOTIC = [
    b": keep-alive\n\n",
    b": keep-alive\n",
    b": data: \n" + SGLANG,
    b"\n",
    b"data",
    b"data:",
    b"data: \n",
    b"data: x\n",
    b"event: sglext_ids\ndata: {}\n\n",
    b"id: 7\n",
    VLLM[:-1],
    VLLM[:90],
    VLLM[90:],
    SGLANG[:-1] + CHAT,
    SGLANG[:-1] + b": c\n\n",
    SGLANG[:-1] + b": c\n",
    b"id: 7\n" + SGLANG,
    CHAT[:60],
    CHAT[60:],
]


def without_usage(stream: bytes) -> bytes:
    """The definition, by lines of the whole stream and the standard library's JSON."""
    lines = stream.splitlines(keepends=True)
    out, fresh, at = [], True, 0
    while at < len(lines):
        line, after = lines[at], lines[at + 1 : at + 2]
        if fresh and line.startswith(b"data:") and after and not after[0].strip(b"\r\n") and is_usage(line[5:]):
            at += 2
            continue
        out.append(line)
        fresh = not line.strip(b"\r\n") or (fresh and line.startswith(b":"))
        at += 1
    return b"".join(out)


def is_usage(data: bytes) -> bool:
    try:
        value = json.loads(data)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("choices") == [] and isinstance(value.get("usage"), dict)


def strip_in(stream: bytes, cuts: list[int]) -> bytes:
    strip = UsageStrip()
    out, at = b"", 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        out += strip.feed(stream[at:cut])
        at = cut
    return out + strip.close()


@given(
    pieces=st.lists(st.sampled_from(ORDINARY + USAGES), max_size=20)
    | st.lists(st.sampled_from(ORDINARY + USAGES + EXOTIC), max_size=20),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
    ends=st.lists(st.sampled_from([b"\n", b"\r\n", b"\r"]), min_size=1, max_size=3),
    by_piece=st.booleans(),
)
def test_any_split_of_any_stream_lacks_exactly_the_usage_events(
    pieces: list[bytes], cuts: list[int], ends: list[bytes], by_piece: bool
) -> None:
    pieces = [piece.replace(b"\n", ends[number % len(ends)]) for number, piece in enumerate(pieces)]
    stream = b"".join(pieces)
    if by_piece:
        cuts = cuts[:2] + [sum(map(len, pieces[:count])) for count in range(len(pieces))]
    want = without_usage(stream)
    assert strip_in(stream, cuts) == want
    assert strip_in(stream, list(range(len(stream)))) == want
    assert strip_in(stream, []) == want


@given(pieces=st.lists(st.sampled_from(ORDINARY + EXOTIC[:1]), max_size=8))
def test_whole_ordinary_events_are_never_held_back(pieces: list[bytes]) -> None:
    strip = UsageStrip()
    assert [strip.feed(piece) for piece in pieces] == pieces
    assert strip.close() == b""


def test_an_ordinary_read_comes_out_as_the_same_object() -> None:
    strip = UsageStrip()
    assert strip.feed(CHAT) is CHAT
    assert strip.feed(b"") == b""
    assert strip.feed(VLLM) == b""
    assert strip.feed(CHAT) is CHAT


@pytest.mark.parametrize("usage", USAGES)
def test_the_usage_event_may_come_in_one_read_with_its_neighbours(usage: bytes) -> None:
    assert UsageStrip().feed(CHAT + usage + DONE) == CHAT + DONE


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_event_ends_for_the_client_when_it_ends_on_the_wire(end: bytes) -> None:
    """Also where only a later read could tell whether a CR ends the line or begins a CRLF."""
    strip = UsageStrip()
    chat, usage = CHAT.replace(b"\n", end), SGLANG.replace(b"\n", end)
    assert strip.feed(chat[:-1]) + strip.feed(chat[-1:]) == chat
    assert strip.feed(usage[:-1]) == strip.feed(usage[-1:]) == b""
    assert strip.feed(chat) == chat


def test_a_cut_event_waits_only_until_it_cannot_be_the_usage_event() -> None:
    strip = UsageStrip()
    cut = CHAT.index(b'"choices":[{') + 11
    assert strip.feed(CHAT[:cut]) == b""
    assert strip.feed(CHAT[cut : cut + 1]) == CHAT[: cut + 1]
    assert strip.feed(CHAT[cut + 1 : -1]) == CHAT[cut + 1 : -1]
    assert strip.feed(b"\n") == b"\n"
    assert strip.feed(b"data: [") == b"data: ["
    assert strip.feed(b"DONE]\n\n: wai") == b"DONE]\n\n: wai"
    assert strip.feed(b"t\nevent") == b"t\nevent"


@pytest.mark.parametrize(
    "reads",
    [
        [b": wai", b"t\n\n", SGLANG],
        [b"id: 7\n", b"data: x\n\n", SGLANG],
        [SGLANG.replace(b"\n", b"\r"), b"\n" + CHAT, SGLANG],
        [CHAT.replace(b"\n", b"\r"), b"\n" + CHAT, SGLANG],
        [b"id: 7\r", b"\n" + SGLANG],
        [SGLANG[:-1], b": c\n" + SGLANG],
        [rb'data: {"choic\u0065s":[ ],"usage":{}}' + b"\n\n"],
        [rb'data: {"choic\u0065s":[],"usage":{}}' + b"\n\n"],
    ],
)
def test_reads_that_leave_something_to_remember(reads: list[bytes]) -> None:
    stream = b"".join(reads)
    strip = UsageStrip()
    want = stream if b"[ ]" in stream else without_usage(stream)
    assert b"".join(map(strip.feed, reads)) + strip.close() == strip_in(stream, list(range(len(stream)))) == want


def test_no_more_than_the_bound_is_ever_held() -> None:
    strip = UsageStrip()
    line = b'data: {"id":"' + b"x" * 2 * HOLD_BYTES
    sizes = [len(strip.feed(line[at : at + 1])) for at in range(len(line))]
    assert sizes == [0] * HOLD_BYTES + [HOLD_BYTES + 1] + [1] * (len(line) - HOLD_BYTES - 1)


def test_a_usage_event_beyond_the_bound_is_an_ordinary_event() -> None:
    padding = HOLD_BYTES - len(SGLANG) + 1
    longest = SGLANG.replace(b'"c"', b'"' + b"c" * (padding + 1) + b'"')
    longer = SGLANG.replace(b'"c"', b'"' + b"c" * (padding + 2) + b'"')
    assert len(longest) == HOLD_BYTES + 1
    for cuts in ([], [9], list(range(HOLD_BYTES))):
        assert strip_in(CHAT + longest + DONE, cuts) == CHAT + DONE
        assert strip_in(CHAT + longer + DONE, cuts) == CHAT + longer + DONE


def test_lines_of_a_mebibyte_flow_through_read_by_read() -> None:
    strip = UsageStrip()
    reads = [CHAT[:-9].replace(b" hi", b" [] " * 4096)] + [b" [] " * 16384] * 16
    assert [strip.feed(read) for read in reads] == reads
    assert strip.feed(b'"}}]}\n\n' + SGLANG + DONE) == b'"}}]}\n\n' + DONE


def test_a_deeply_nested_event_is_not_the_usage_event() -> None:
    depth = min(sys.getrecursionlimit() * 2, HOLD_BYTES // 2 - 100)
    event = b'data: {"choices":[],"usage":{"x":' + b"[" * depth + b"]" * depth + b"}}\n\n"
    assert strip_in(event, []) == event


def captured(name: str) -> dict[str, bytes]:
    """Event streams of real engines, by their headings."""
    text = (CAPTURES / f"{name}_sse.txt").read_bytes()
    streams = {}
    for section in text.split(b"##### ")[1:]:
        heading, _, rest = section.partition(b"\n")
        head, _, body = rest.partition(b"\n\n")
        if b"text/event-stream" in head:
            streams[heading.decode().strip()] = body[: body.rindex(b"\n\n") + 2]
    return streams


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_streams_of_real_engines_lose_their_usage_event_and_nothing_else(engine: str) -> None:
    stripped = 0
    for heading, stream in captured(engine).items():
        want = re.sub(rb'data: \{[^\n]*"choices":\[\],[^\n]*\n\n', b"", stream)
        stripped += want != stream
        for cuts in ([], [len(stream) // 2], list(range(len(stream)))):
            assert strip_in(stream, cuts) == want, heading
    assert stripped >= 1


def members(stream: bytes) -> list[set[str]]:
    events = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return [set(json.loads(event)) for event in events]


def test_a_stripped_stream_of_vllm_lacks_the_fingerprint_of_one_that_never_asked() -> None:
    streams = captured("vllm")
    plain = members(streams["chat stream, no stream_options"])
    stripped = members(strip_in(streams["chat stream, include_usage, logprobs, X-Request-Id: my-req-1 (curl -iN)"], []))
    assert plain[-1] - stripped[-1] == {"system_fingerprint"}
    assert plain[:2] == stripped[:2]


def test_a_stripped_stream_of_sglang_has_the_members_of_one_that_never_asked() -> None:
    streams = captured("sglang")
    chat = members(streams["chat stream rid in body"])
    assert members(strip_in(streams["chat stream include_usage logprobs X-Request-Id"], [])) == chat
    completions = members(strip_in(streams["completions stream include_usage"], []))
    assert set(map(frozenset, completions)) == set(map(frozenset, members(streams["completions stream n=2"])))
