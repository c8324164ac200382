"""What the client has of a stream, and every way in which the second part may turn out not to be its rest."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.joining import MAX_EVENT_BYTES, Joiner, Transcript
from tests.protocol.continued import DONE, Engine, event, seen_by_client

BODY = msgspec.json.encode({"messages": []})
WHOLE = Engine(text="Hello big world").events(BODY)
HEAD = {"id": "x", "created": 2, "model": "other"}


def said(content: str, **choice: object) -> bytes:
    return event(HEAD | {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": None} | choice]})


def transcript_of(*events: bytes) -> Transcript:
    transcript = Transcript()
    for each in events:
        transcript.feed(each)
    return transcript


@given(cuts=st.lists(st.integers(0, 5000), max_size=8), crlf=st.booleans())
def test_the_client_gets_every_event_once_it_is_whole(cuts: list[int], crlf: bool) -> None:
    events = [b": wait\n\n", *WHOLE]
    if crlf:
        events = [each.replace(b"\n", b"\r\n") for each in events]
    stream = b"".join(events)
    ends = [len(b"".join(events[:count])) for count in range(len(events) + 1)]
    transcript, client, at = Transcript(), b"", 0
    for cut in [*sorted(cut % len(stream) for cut in cuts), len(stream)]:
        client += transcript.feed(stream[at:cut])
        at = cut
        assert client == stream[: max(end for end in ends if end <= cut)]
        assert seen_by_client(client).text == transcript.text
    assert client == stream
    assert transcript.finished


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_by_byte_each_event_comes_with_its_last_byte(end: bytes) -> None:
    events = [each.replace(b"\n", end) for each in WHOLE]
    stream, transcript = b"".join(events), Transcript()
    out = [transcript.feed(stream[at : at + 1]) for at in range(len(stream))]
    assert [each for each in out if each] == events


@pytest.mark.parametrize(
    "strange",
    [
        event({"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]}),
        event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}}]}),
        event({"choices": [{"index": 0, "delta": {"content": ["a"]}}]}),
        event({"choices": [{"index": 1, "delta": {"content": "a"}}]}),
        event({"choices": [{"index": 0, "text": "a"}, {"index": 1, "text": "b"}]}),
        said("", finish_reason="abort"),
        b"event: ping\n" + said("a"),
        b"data: {broken\n\n",
        event({"error": {"message": "too long", "code": 400}}),
    ],
)
def test_whatever_is_not_plain_text_lets_the_stream_flow_on_and_casts_doubt(strange: bytes) -> None:
    transcript = Transcript()
    assert transcript.feed(WHOLE[0] + strange + WHOLE[1] + b"data: {") == WHOLE[0] + strange + WHOLE[1] + b"data: {"
    assert transcript.doubt is not None
    assert transcript.feed(b'"cut') == b'"cut'

    joiner = Joiner(transcript_of(*WHOLE[:2]), swallow="", prefilled=True)
    sound = joiner.feed(said("e"))
    assert joiner.failure is None
    assert joiner.feed(said("l") + strange + said("o")).count(b"data:") == sound.count(b"data:") == 1
    assert joiner.failure is not None
    assert joiner.feed(DONE) == b""


@pytest.mark.parametrize("code", [{"code": 500}, {"code": 503}, {}, {"code": "internal"}])
def test_an_error_of_the_engine_is_kept_from_the_client(code: dict[str, object]) -> None:
    error = {"message": "EngineCore died"} | code
    transcript = Transcript()
    assert transcript.feed(WHOLE[0] + WHOLE[1] + event({"error": error}) + DONE) == WHOLE[0] + WHOLE[1]
    assert (transcript.lost, transcript.doubt, transcript.finished) == (error, None, False)
    assert transcript.feed(DONE) == b""
    assert not transcript.finished
    transcript.resume()
    assert transcript.feed(WHOLE[2]) == WHOLE[2]


def test_a_part_of_an_event_is_forgotten_when_the_rest_comes_from_elsewhere() -> None:
    transcript = transcript_of(WHOLE[0], WHOLE[1], WHOLE[2][:30])
    transcript.resume()
    assert transcript.feed(WHOLE[2]) == WHOLE[2]
    assert transcript.text == "He"


def test_an_event_too_long_to_be_held_flows_on() -> None:
    transcript = Transcript()
    start = b'data: {"x":"' + b"a" * MAX_EVENT_BYTES
    assert transcript.feed(start[:MAX_EVENT_BYTES]) == b""
    assert transcript.feed(start[MAX_EVENT_BYTES:]) == start
    assert transcript.doubt is not None
    assert transcript.feed(b"b") == b"b"


@given(known=st.integers(0, 15), stride=st.integers(1, 5), wrong=st.integers(0, 14))
def test_a_replay_is_swallowed_while_it_is_the_same_and_fails_where_it_is_not(
    known: int, stride: int, wrong: int
) -> None:
    text = "Hello-big-world"
    before = transcript_of(WHOLE[0], *(said(letter) for letter in text[:known]))
    other = text[:wrong] + "#" + text[wrong + 1 :]
    joiner = Joiner(before, swallow=text[:known], prefilled=False)
    out = seen_by_client(joiner.feed(b"".join(Engine(text=other, name="second", stride=stride).events(BODY))))
    if wrong < known:
        assert joiner.failure == "a different answer"
        assert out.text == ""
    else:
        assert joiner.failure is None
        assert out.text == other[known:]
        assert out.usage == seen_by_client(b"".join(Engine(text=other, name="second").events(BODY))).usage


@pytest.mark.parametrize("end", [DONE, said("", finish_reason="stop"), said("Hel", finish_reason="stop")])
def test_a_replay_that_ends_too_early_fails(end: bytes) -> None:
    joiner = Joiner(transcript_of(*WHOLE[:6]), swallow="Hello", prefilled=False)
    assert joiner.feed(end) == b""
    assert joiner.failure == "an answer that ends before what the client has"


def test_a_chunk_is_rewritten_where_it_must_be_and_else_as_it_came() -> None:
    joiner = Joiner(transcript_of(*WHOLE[:3]), swallow=" ", prefilled=True)
    out = joiner.feed(
        event(
            HEAD | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": " big"}}], "service_tier": "a"}
        )
        + said(" world", stop_reason=None, finish_reason="stop")
        + event(HEAD | {"choices": [], "sglext": {"x": 1}})
        + b": comment\n\n"
    )
    head = {"id": "id-first", "created": 5, "model": "model-first"}
    assert out == (
        event(head | {"choices": [{"index": 0, "delta": {"content": "big"}}], "service_tier": "a"})
        + event(
            head
            | {"choices": [{"index": 0, "delta": {"content": " world"}, "finish_reason": "stop", "stop_reason": None}]}
        )
        + event(head | {"choices": [], "sglext": {"x": 1}})
    )


def test_the_first_role_comes_through_once_and_so_does_the_identity_of_whoever_sent_it() -> None:
    joiner = Joiner(Transcript(), swallow="", prefilled=False)
    role = event(HEAD | {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    assert joiner.feed(role + role + said("a")) == role + said("a")


def test_usage_without_details_gets_none() -> None:
    joiner = Joiner(transcript_of(*WHOLE[:3]), swallow="", prefilled=True)
    [usage] = seen_by_client(
        joiner.feed(event(HEAD | {"choices": [], "usage": {"prompt_tokens": 13, "completion_tokens": 4, "x": 1}}))
    ).usage
    assert usage == {"prompt_tokens": 11, "completion_tokens": 6, "total_tokens": 17, "x": 1}
