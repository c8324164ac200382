"""Bodies of every form that clients send; what is refused is tested with each wire."""

from __future__ import annotations

import msgspec
import pytest

from simulator import tokens, wire_sglang, wire_vllm
from simulator.intake import Generation, Rejected, Rules, TokenizeBody, check, read


def parse(body: object, *, chat: bool = False, rules: Rules = wire_vllm.RULES, limit: int = 100) -> Generation:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return read(raw, "application/json; charset=utf-8", chat=chat, rules=rules, model="tiny", max_model_tokens=limit)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a b", (tuple(tokens.encode("a b")),)),
        ("", ((tokens.BEGIN,),)),
        ([7, 8], ((7, 8),)),
        ([], ((tokens.BEGIN,),)),
        ([[7], [8, 9], []], ((7,), (8, 9), (tokens.BEGIN,))),
        (["a", "b c"], (tuple(tokens.encode("a")), tuple(tokens.encode("b c")))),
    ],
)
def test_every_form_of_prompt(prompt: object, expected: tuple[tuple[int, ...], ...]) -> None:
    assert parse({"prompt": prompt}).prompts == expected


def test_message_content_may_be_text_parts_or_nothing() -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "user", "content": parts}, {"role": "assistant", "content": None}]
    prompt = parse({"messages": messages}, chat=True).prompts[0]
    assert prompt == tuple(tokens.encode_chat([("user", "hello"), ("assistant", "")]))


def test_max_tokens_of_each_form() -> None:
    assert parse({"prompt": "a"}).max_tokens == (16,)
    assert parse({"prompt": "a " * 95}, limit=100).max_tokens == (4,)
    messages = [{"role": "user", "content": "hi"}]
    assert parse({"messages": messages}, chat=True).max_tokens == (100 - 11,)
    assert parse({"messages": messages, "max_tokens": 5, "max_completion_tokens": 6}, chat=True).max_tokens == (6,)


def test_options_are_read_and_unknown_ones_ignored() -> None:
    body = {"prompt": "a", "stop": ["x", "", "y"], "n": None, "seed": 4, "stream": True, "nonsense": 1}
    generation = parse({**body, "stream_options": {"include_usage": False, "continuous_usage_stats": True}})
    assert (generation.stop, generation.n, generation.seed, generation.stream) == (("x", "y"), 1, 4, True)
    assert not generation.include_usage
    assert not generation.continuous_usage
    assert parse({"prompt": "a", "stop": "x"}).stop == ("x",)


@pytest.mark.parametrize("raw", [b"\xff\xfe{", b'{"prompt": "a"} x', b"", b'{"prompt": NaN}'])
def test_what_is_not_json_is_placed(raw: bytes) -> None:
    with pytest.raises(Rejected) as caught:
        parse(raw)
    assert caught.value.why == "not_json"
    assert isinstance(caught.value.facts["position"], int)


def test_token_ids_are_bounded() -> None:
    with pytest.raises(Rejected) as caught:
        parse({"prompt": [-1]}, rules=wire_sglang.RULES)
    assert caught.value.why == "invalid"


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert check(b'{"prompt":"a b"}', "application/json", TokenizeBody).ids() == tokens.encode("a b")
    assert check(b"{}", "application/json", TokenizeBody).ids() == []
    messages = b'{"messages":[{"role":"user","content":"a"}]}'
    assert check(messages, "application/json", TokenizeBody).ids() == tokens.encode_chat([("user", "a")])
