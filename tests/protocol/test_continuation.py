"""A stream cut anywhere and carried on by another engine is, to its client, the stream that was never cut."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.continuation import Continuation, Refusal, Target, can_continue, continuation
from protocol.joining import Transcript
from protocol.openai import Family
from tests.protocol.continued import Engine, Seen, event, seen_by_client, tokens_of

TEXTS = st.text(alphabet=st.sampled_from('ab \n"\\é語😀'), min_size=1, max_size=30)
PREFILL, NO_PREFILL = Target(prefill=True), Target(prefill=False)


def request_body(family: str, **members: object) -> bytes:
    prompt: dict[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
    if family == "completions":
        prompt = {"prompt": "Once", "max_tokens": 1000}
    return msgspec.json.encode({"model": "m", "stream": True, **prompt, **members})


def transcript_of(data: bytes) -> Transcript:
    transcript = Transcript()
    transcript.feed(data)
    return transcript


def carried_on(
    family: Family, body: bytes, engines: list[Engine], cuts: list[int], target: Target
) -> tuple[bytes, list[Continuation]]:
    """What the client gets when each engine but the last dies after so many bytes, unless the answer is complete."""
    transcript, carried = Transcript(), []
    first, *others = engines
    stream = b"".join(first.events(body))
    cut = cuts[0] % len(stream)
    client = transcript.feed(stream[: cut // 2]) + transcript.feed(stream[cut // 2 : cut])
    for number, engine in enumerate(others, start=1):
        if transcript.finished:
            break
        next_one = continuation(family, body, transcript, target)
        if isinstance(next_one, Refusal):
            assert next_one.reason == "an answer that has used up its max_tokens"
            break
        carried.append(next_one)
        transcript.resume()
        stream = b"".join(engine.events(next_one.body))
        cut = cuts[number] % len(stream) if engine is not others[-1] else len(stream)
        for part in (stream[: cut // 3], stream[cut // 3 : cut]):
            client += transcript.feed(next_one.joiner.feed(part))
        assert next_one.joiner.failure is None
    return client, carried


@given(
    text=TEXTS,
    family=st.sampled_from(["chat", "completions"]),
    kinds=st.lists(st.sampled_from(["vllm", "sglang"]), min_size=3, max_size=3),
    strides=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    cuts=st.lists(st.integers(0, 10_000), min_size=3, max_size=3),
    replay=st.booleans(),
    bound=st.none() | st.integers(1, 40),
)
def test_the_joined_stream_is_that_of_an_engine_that_never_died(
    text: str, family: Family, kinds: list[str], strides: list[int], cuts: list[int], replay: bool, bound: int | None
) -> None:
    bounds: dict[str, object] = {} if bound is None else {"max_tokens": bound}
    body = request_body(family, temperature=0, **bounds)
    target = NO_PREFILL if replay else PREFILL
    engines = [
        Engine(text=text, family=family, kind=kind, name=name, stride=stride)
        for kind, stride, name in zip(kinds, strides, ["first", "second", "third one"], strict=True)
    ]
    client, carried = carried_on(family, body, engines, cuts, target)
    want, got = seen_by_client(b"".join(engines[0].events(body))), seen_by_client(client)
    assert got.text == want.text
    # All of the text may have come before the event that says so.
    assert got.finish == want.finish or (not got.finish and bound == len(tokens_of(got.text)))
    assert got.roles == want.roles
    if client.startswith(engines[0].events(body)[0]):
        assert got.heads == want.heads
    if carried and got.done:
        assert counts(got) == counts(want)


def counts(seen: Seen) -> list[tuple[int, int, int]]:
    return [(usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) for usage in seen.usage]


@pytest.mark.parametrize("family", ["chat", "completions"])
@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("bound", [1000, 6])
@pytest.mark.parametrize("text", ["abc def\n\n  ghi", "語 😀 é", " ab "])
def test_usage_and_bounds_hold_for_the_whole_answer(family: Family, kind: str, bound: int, text: str) -> None:
    body = request_body(family, max_tokens=bound)
    first = Engine(text=text, family=family, kind=kind)
    second = Engine(text=text, family=family, kind=kind, name="second", stride=2)
    want = seen_by_client(b"".join(first.events(body)))
    joined = 0
    for count in range(1, len(first.events(body))):
        begun = first.events(body)[:count]
        transcript = Transcript()
        client = b"".join(map(transcript.feed, begun))
        carry = continuation(family, body, transcript, PREFILL)
        if transcript.text.strip() and isinstance(carry, Continuation):
            assert carry.way == "prefill"
            assert carry.produced_tokens == len(tokens_of(transcript.text))
            transcript.resume()
            client += transcript.feed(carry.joiner.feed(b"".join(second.events(carry.body))))
            assert seen_by_client(client) == want
            joined += 1
    assert joined >= 2


def test_usage_that_no_event_told_is_an_estimate_of_its_parts_and_exact_in_total() -> None:
    text = "abcd efgh ijkl"
    body = request_body("chat", max_tokens=1000)
    first = Engine(text=text, continuous=False, stride=2)
    second = Engine(text=text, continuous=False, name="second")
    for count in range(2, 8):
        transcript = transcript_of(b"".join(first.events(body)[:count]))
        carry = continuation("chat", body, transcript, PREFILL)
        assert isinstance(carry, Continuation)
        assert carry.produced_tokens is None
        assert msgspec.json.decode(carry.body)["max_tokens"] <= 1000 - (count - 1) + transcript.text.endswith(" ")
        transcript.resume()
        out = transcript.feed(carry.joiner.feed(b"".join(second.events(carry.body))))
        [usage] = seen_by_client(out).usage
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] == 11 + len(tokens_of(text))


def begun(text: str, family: str = "chat", **members: object) -> Transcript:
    events = Engine(text=text + "!", family=family).events(request_body(family, **members))
    return transcript_of(b"".join(events[: len(tokens_of(text)) + (family == "chat")]))


def test_the_request_of_a_prefill() -> None:
    body = request_body("chat", max_tokens=9, max_completion_tokens=8, min_tokens=4, temperature=0.7, seed=3)
    carry = continuation("chat", body, begun("abc  "), PREFILL)
    assert isinstance(carry, Continuation)
    assert msgspec.json.decode(carry.body) == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "abc"}],
        "max_tokens": 6,
        "max_completion_tokens": 5,
        "min_tokens": 1,
        "temperature": 0.7,
        "seed": 3,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }


def test_the_request_of_extended_completions() -> None:
    carry = continuation(
        "completions",
        request_body("completions", max_tokens=-1, min_tokens=2),
        begun("abc ", "completions"),
        NO_PREFILL,
    )
    assert isinstance(carry, Continuation)
    want = {"model": "m", "stream": True, "prompt": "Onceabc ", "max_tokens": -1, "min_tokens": 0}
    assert msgspec.json.decode(carry.body) == want


def test_a_client_without_text_gets_the_request_sent_again_as_it_is() -> None:
    body = b' {"messages": [{"role":"user","content":"hi"}], "stream":true, "temperature":1.0}'
    for data in (b"", b": wait\n\n", Engine(text="x").events(body)[0]):
        carry = continuation("chat", body, transcript_of(data), PREFILL)
        assert isinstance(carry, Continuation)
        assert (carry.body, carry.way) == (body, "replay")


@pytest.mark.parametrize(
    ("transcript", "target", "members", "reason"),
    [
        (begun("abc"), NO_PREFILL, {}, "takes no prefill"),
        (begun("abc"), NO_PREFILL, {"temperature": 0.1}, "takes no prefill"),
        (begun("  "), PREFILL, {}, "takes no prefill"),
        (begun("abc"), PREFILL, {"max_tokens": 3}, "used up its max_tokens"),
        (begun("abc"), PREFILL, {"max_tokens": 9, "max_completion_tokens": 2}, "used up its max_tokens"),
        (begun("ab\ufffd"), PREFILL, {}, "inside a character"),
        (transcript_of(b"".join(Engine(text="a").events(request_body("chat")))), PREFILL, {}, "is complete"),
        (transcript_of(event({"choices": [{"delta": {"reasoning": "hm"}}]})), PREFILL, {}, "more than text"),
        (begun("abc"), PREFILL, {"n": 2}, "more than one plain text"),
    ],
)
def test_what_cannot_be_carried_on_says_why(
    transcript: Transcript, target: Target, members: dict[str, object], reason: str
) -> None:
    refused = continuation("chat", request_body("chat", **members), transcript, target)
    assert isinstance(refused, Refusal)
    assert reason in refused.reason


USER = {"role": "user", "content": "hi"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2},
        {"best_of": 2},
        {"logprobs": True},
        {"top_logprobs": 0},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"choice": ["a"]}},
        {"echo": True},
        {"continue_final_message": True},
        {"add_generation_prompt": False},
        {"stream": False},
        {"messages": [IMAGE]},
        {"messages": [IMAGE, USER]},
        {"messages": [USER, {"role": "assistant", "content": "Sure"}]},
        {"messages": [USER, {"role": "tool", "content": "7"}]},
        {"messages": []},
        {"messages": "hi"},
    ],
)
def test_chat_requests_that_are_not_continued(members: dict[str, object]) -> None:
    assert not can_continue("chat", request_body("chat", **members))


@pytest.mark.parametrize(
    "members",
    [
        {"prompt": ["a", "b"]},
        {"prompt": [1, 2]},
        {"prompt": None},
        {"max_tokens": None},
        {"logprobs": 0},
        {"best_of": 3},
        {"suffix": "end"},
        {"echo": True},
    ],
)
def test_completions_requests_that_are_not_continued(members: dict[str, object]) -> None:
    assert not can_continue("completions", request_body("completions", **members))


@pytest.mark.parametrize(
    "members",
    [
        {},
        {"n": 1, "best_of": None, "logprobs": False, "tools": [], "response_format": {"type": "text"}, "stop": ["x"]},
        {
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "t"}]},
            ]
        },
        {"messages": [USER, {"role": "assistant", "content": None}, USER], "stream_options": {"include_usage": True}},
    ],
)
def test_plain_chat_is_continued(members: dict[str, object]) -> None:
    assert can_continue("chat", request_body("chat", **members))


def test_other_families_and_bodies_that_are_no_request_are_not_continued() -> None:
    body = request_body("chat")
    assert not can_continue("messages", request_body("completions"))
    assert not can_continue("responses", body)
    assert not can_continue(None, body)
    assert not can_continue("chat", body[:-1])
    assert not can_continue("chat", b'{"x":' + b"[" * 100_000)
    assert can_continue("completions", request_body("completions"))
