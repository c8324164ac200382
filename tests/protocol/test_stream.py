"""The stream observer against the exact parser on any split, and against streams of real engines."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.openai import Usage
from protocol.sse import SseEvent, SseParser
from protocol.stream import EVENT_KEEP_BYTES, EVENTS_KEPT, StreamWatch

CAPTURES = Path(__file__).parents[3] / "shared/reference/captures"

ROLE = b'data: {"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
TOKEN = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":" hi"},"logprobs":null,"finish_reason":null}]}\n\n'
FINISH = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"."},"finish_reason":"length"}]}\n\n'
USAGE = b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":13,"total_tokens":17,"completion_tokens":4}}\n\n'
CONTINUOUS = (
    b'data: {"choices":[{"delta":{"content":"a"},"finish_reason":null}],'
    b'"usage":{"prompt_tokens":13,"total_tokens":14,"completion_tokens":1}}\n\n'
)
ERROR = b'data: {"error": {"message": "dead", "type": "InternalServerError", "param": null, "code": 500}}\n\n'
DONE = b"data: [DONE]\n\n"
STOP = (
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"max_tokens"},'
    b'"usage":{"output_tokens":3}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
)
ORDINARY = [ROLE, TOKEN, TOKEN, CONTINUOUS, FINISH, USAGE, ERROR, DONE]
EXOTIC = [
    b": keep-alive\n\n",
    b"\n",
    b"\r",
    b"data:",
    b"data: x\n",
    b"data: a\ndata: b\n\n",
    b"data:\n\n",
    b"event: response.failed\n",
    b"\xef\xbb\xbf",
    TOKEN.replace(b"\n", b"\r\n"),
    DONE.replace(b"\n", b"\r"),
    TOKEN[:20],
    TOKEN[20:],
    STOP,
]
BROKEN_JSON_TOKENS = [b'"content":" hi"', b'"content":"a"', b'"content":"."']
"""Glued pieces need not be JSON any more; what they carry of a token still counts as one."""


def watch_in(stream: bytes, cuts: list[int]) -> StreamWatch:
    """Feeds the stream cut at these places; the read that ends at byte k arrives at time k."""
    watch = StreamWatch()
    at = 0
    for cut in [*sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]:
        watch.feed(stream[at:cut], cut)
        at = cut
    return watch


def has_token(value: object) -> bool:
    """By JSON, not by bytes: a choice or delta with non-empty text, reasoning or tool-call arguments."""
    if isinstance(value, list):
        return any(map(has_token, value))
    if not isinstance(value, dict):
        return False
    keys = ("content", "reasoning", "reasoning_content", "text", "arguments")
    return any(isinstance(value.get(key), str) and value[key] for key in keys) or any(map(has_token, value.values()))


def token_time(stream: bytes) -> int | None:
    """The byte after the first event that carries a token, by feeding single bytes and reading the JSON."""
    parser = SseParser()
    for at in range(len(stream)):
        for event in parser.feed(stream[at : at + 1]):
            try:
                token = has_token(msgspec.json.decode(event.data))
            except msgspec.DecodeError:
                token = any(text in event.data for text in BROKEN_JSON_TOKENS)
            if token and not event.event.startswith(b"response."):
                return at + 1
    return None


def is_error(event: SseEvent) -> bool:
    try:
        value = msgspec.json.decode(event.data)
    except msgspec.DecodeError:
        return False
    return isinstance(value, dict) and "error" in value


@given(
    pieces=st.lists(st.sampled_from(ORDINARY), max_size=30) | st.lists(st.sampled_from(ORDINARY + EXOTIC), max_size=30),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
    every=st.integers(0, 5),
)
def test_any_split_of_any_stream_is_seen_as_the_exact_parser_sees_it(
    pieces: list[bytes], cuts: list[int], every: int
) -> None:
    stream = b"".join(pieces)
    if every:
        # Also reads of whole pieces, one or a few: what engines send.
        cuts = cuts[:2] + list(accumulate(map(len, pieces)))[::every]
    watch = watch_in(stream, cuts)
    bytewise = watch_in(stream, list(range(len(stream))))
    parser = SseParser()
    events = parser.feed(stream)
    result = watch.result()

    assert watch.events == result.events == len(events)
    assert watch.bytes == len(stream)
    assert result.cut is parser.close()
    assert result == bytewise.result()
    assert bytewise.first_token_ns == token_time(stream)
    ends = [end for end in {cut % (len(stream) + 1) for cut in cuts} | {len(stream)} if end]
    seen_ns = token_time(stream)
    assert watch.first_token_ns == (None if seen_ns is None else min(end for end in ends if end >= seen_ns))

    kept = events[:1] + events[-EVENTS_KEPT:]
    ends_seen = {b"message_stop", b"response.failed"}
    assert result.done is any(event.data == b"[DONE]" or event.event in ends_seen for event in kept)
    assert (result.error is not None) is any(map(is_error, kept))


@pytest.mark.parametrize(
    ("read", "events"),
    [
        (TOKEN, 1),
        (TOKEN * 3, 3),
        (TOKEN * 3 + b": keep-alive\n\n", 3),
        (TOKEN + b"\n" + TOKEN, 2),
        (b"data: a\ndata: b\n\n", 1),
        (b"data: a\nevent: x\n\n" + TOKEN, 2),
        (b"data: a\n\nid: 5\n\n", 1),
        (TOKEN + STOP + TOKEN, 4),
        (TOKEN + b": c\n" + TOKEN, 2),
        (b"data: a\r\ndata: b\n\n", 1),
        (b"data: a\r\rdata: b\n\n", 2),
        (b"data:\n\n" * 2, 2),
    ],
)
def test_reads_of_whole_events_after_the_first_token_are_counted_exactly(read: bytes, events: int) -> None:
    watch = watch_in(TOKEN, [])
    for now_ns in range(3):
        watch.feed(read, now_ns)
    watch.feed(FINISH, 9)
    assert watch.events == 1 + 3 * events + 1
    assert watch.result().complete


@pytest.mark.parametrize(
    "start", [b"event: response.failed\n", b"data: x\n", b"id: 5\n", b"dat", b"data: 1\r\n\r", b":"]
)
def test_a_read_that_looks_whole_but_ends_an_event_is_not_counted_by_its_bytes(start: bytes) -> None:
    watch = watch_in(TOKEN + start + USAGE, [len(TOKEN), len(TOKEN + start)])
    [*_, last] = events = SseParser().feed(TOKEN + start + USAGE)
    result = watch.result()
    assert (result.events, result.cut) == (len(events), False)
    assert result.done is (last.event == b"response.failed")
    assert (result.usage is not None) is (last.data == USAGE[6:-2])


def test_times_and_counts_of_reads() -> None:
    watch = StreamWatch()
    assert (watch.first_byte_ns, watch.last_byte_ns, watch.gap_max_ns) == (None, None, None)
    watch.feed(b"", 5)
    watch.feed(ROLE, 10)
    assert (watch.reads, watch.gap_max_ns, watch.first_token_ns) == (1, None, None)
    for now_ns in (10, 40, 50):
        watch.feed(TOKEN, now_ns)
    assert (watch.reads, watch.bytes, watch.events) == (4, len(ROLE) + 3 * len(TOKEN), 4)
    assert (watch.first_byte_ns, watch.first_token_ns, watch.last_byte_ns, watch.gap_max_ns) == (10, 10, 50, 30)


@pytest.mark.parametrize(
    ("data", "is_token"),
    [
        (b'{"choices":[{"delta":{"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"reasoning_content":null,"role":"assistant","content":""}}]}', False),
        (b'{"choices":[{"delta":{"role":"assistant","content":null}}]}', False),
        (b'{"choices":[{"delta":{"content":"\\"quoted\\""}}]}', True),
        (b'{"choices": [{"delta": {"content": " spaced"}}]}', True),
        (b'{"choices":[{"delta":{"reasoning":"hm"}}]}', True),
        (b'{"choices":[{"delta":{"reasoning_content":"hm"}}]}', True),
        (b'{"choices":[{"text":"x","logprobs":null}]}', True),
        (b'{"choices":[{"text":"","logprobs":{"content":[{"token":"x"}]}}]}', False),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":""}}]}}]}', False),
        (b'{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"a\\""}}]}}]}', True),
        (b'{"error":{"message":"no \\"content\\":\\"x\\" here"}}', False),
        (b'{"type":"content_block_start","content_block":{"type":"text","text":""}}', False),
        (b'{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}', True),
        (b'{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{"}}', True),
        (b"[DONE]", False),
    ],
)
def test_what_counts_as_the_first_token(data: bytes, is_token: bool) -> None:
    watch = StreamWatch()
    watch.feed(b"data: " + data + b"\n\n", 7)
    assert watch.first_token_ns == (7 if is_token else None)


def test_responses_events_that_repeat_the_input_are_not_tokens() -> None:
    watch = StreamWatch()
    watch.feed(b'event: response.created\ndata: {"response":{"input":[{"content":"hi"}]}}\n\n', 1)
    assert watch.first_token_ns is None
    watch.feed(b'event: response.output_text.delta\ndata: {"delta":"=%"}\n\n', 2)
    assert watch.first_token_ns == 2


@pytest.mark.parametrize(
    ("stream", "done", "finish_reason", "complete"),
    [
        (ROLE + TOKEN + FINISH + DONE, True, "length", True),
        (ROLE + TOKEN + FINISH, False, "length", True),
        (ROLE + TOKEN, False, None, False),
        (ROLE + TOKEN + DONE, True, None, True),
        (ROLE + TOKEN + DONE + b"data: {", True, None, False),
        (ROLE + TOKEN + FINISH + USAGE[:30], False, "length", False),
        (ROLE + TOKEN + FINISH[:-1], False, None, False),
        (b"", False, None, False),
        (STOP, True, "max_tokens", True),
        (b'event: response.completed\ndata: {"response":{"status":"completed"}}\n\n', True, None, True),
    ],
)
def test_a_truncated_stream_is_told_from_a_complete_one(
    stream: bytes, done: bool, finish_reason: str | None, complete: bool
) -> None:
    result = watch_in(stream, []).result()
    assert (result.done, result.finish_reason, result.complete) == (done, finish_reason, complete)


def test_the_last_usage_is_reported_with_what_only_the_first_event_knew() -> None:
    assert watch_in(ROLE + CONTINUOUS * 20, []).result().usage == Usage(
        prompt_tokens=13, completion_tokens=1, cached_tokens=None
    )
    start = (
        b'event: message_start\ndata: {"type":"message_start","message":{"usage":'
        b'{"input_tokens":5,"cache_read_input_tokens":7,"output_tokens":0}}}\n\n'
    )
    delta = b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"text":"x"}}\n\n'
    assert watch_in(start + delta * 30 + STOP, []).result().usage == Usage(
        prompt_tokens=12, completion_tokens=3, cached_tokens=7
    )


def test_an_error_in_the_stream_is_found_with_and_without_done_behind_it() -> None:
    for end in (b"", DONE):
        error = watch_in(ROLE + TOKEN * 20 + ERROR + end, []).result().error
        assert error == {"message": "dead", "type": "InternalServerError", "param": None, "code": 500}
    failed = (
        b'event: response.failed\ndata: {"type":"response.failed","response":{"status":"failed",'
        b'"error":{"code":"server_error","message":"dead"},"usage":null}}\n\n'
    )
    result = watch_in(failed, []).result()
    assert (result.done, result.error) == (True, {"code": "server_error", "message": "dead"})
    overloaded = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    assert watch_in(overloaded, []).result().error == {"type": "overloaded_error", "message": "busy"}


def test_an_oversized_event_is_counted_but_not_read() -> None:
    huge = b'data: {"pad":"' + b"x" * EVENT_KEEP_BYTES + b'","usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n'
    for cuts in ([], [10], list(range(0, len(huge), 4096))):
        watch = watch_in(ROLE + TOKEN + huge + FINISH + DONE, cuts)
        result = watch.result()
        assert (result.events, result.usage, result.finish_reason, result.done) == (5, None, "length", True)
    name = b"event: response.completed\n"
    assert watch_in(name + huge, []).result().done


def test_large_reads_do_not_stay_in_memory() -> None:
    watch = watch_in(ROLE + TOKEN, [])
    big = TOKEN * 400 + CONTINUOUS
    for now_ns in range(20):
        watch.feed(big, now_ns + 1000)
    watch.feed(FINISH + USAGE + DONE, 3000)
    kept_bytes = sum(len(entry) for entry in watch._tail)
    assert kept_bytes < EVENTS_KEPT * EVENTS_KEPT * len(CONTINUOUS)
    assert watch.result().usage == Usage(prompt_tokens=13, completion_tokens=4, cached_tokens=None)
    assert watch.events == 2 + 20 * 401 + 3


def captured_streams(engine: str) -> dict[str, bytes]:
    """Body of each event stream in a capture file, by its title."""
    path = CAPTURES / f"{engine}_sse.txt"
    if not path.exists():
        pytest.skip(f"no captures of real engines at {CAPTURES}")
    streams = {}
    for section in path.read_bytes().replace(b"\r\n", b"\n").split(b"\n##### ")[1:]:
        title, _, rest = section.partition(b"\n")
        head, _, body = rest.partition(b"\n\n")
        if b"text/event-stream" in head:
            events = [line for line in body.split(b"\n\n") if line.strip().startswith((b"data:", b"event:"))]
            streams[title.decode()] = b"".join(event.strip() + b"\n\n" for event in events)
    return streams


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_streams_of_real_engines_are_complete_and_every_split_agrees(engine: str) -> None:
    streams = captured_streams(engine)
    assert streams
    for title, stream in streams.items():
        watch = watch_in(stream, [])
        result = watch.result()
        assert result.complete, title
        assert result.error is None, title
        assert watch.first_token_ns is not None, title
        for size in (1, 7, 100, 1400):
            assert watch_in(stream, list(range(0, len(stream), size))).result() == result, title


def test_facts_of_captured_streams() -> None:
    vllm, sglang = captured_streams("vllm"), captured_streams("sglang")

    def facts(stream: bytes) -> tuple[int, str | None, Usage | None]:
        result = watch_in(stream, []).result()
        return result.events, result.finish_reason, result.usage

    def usage(prompt: int, completion: int, cached: int | None = None) -> Usage:
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)

    assert facts(vllm["chat stream, continuous_usage_stats"]) == (6, "length", usage(13, 3))
    assert facts(vllm["chat stream, no stream_options"]) == (5, "length", None)
    assert facts(vllm["/v1/messages stream (anthropic)"]) == (8, "max_tokens", usage(12, 3))
    assert facts(vllm["responses stream"])[2] == usage(11, 3, 0)
    assert facts(sglang["completions stream include_usage"]) == (5, "length", usage(2, 3))
    assert facts(sglang["completions stream n=2"]) == (5, "length", None)
    assert facts(sglang["same again (cache hit)"]) == (6, "length", usage(22, 2, 21))
    assert facts(sglang["/v1/responses stream"])[2] == usage(11, 1, 3)
