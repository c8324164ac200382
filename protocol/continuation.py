"""A stream that died after its first byte: the request that has another engine carry it on, or why there is none.

Hides the two ways of carrying on: `prefill`, where the engine is given what was said so far and goes on from there,
and `replay`, where it says all of it again and what the client has is swallowed. A refusal is the caller's sign to
end the stream with an error. Sends nothing and chooses no endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from protocol.joining import Joiner, Transcript
from protocol.openai import Family


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """This stream cannot be continued there."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A request whose answer becomes the rest of the stream.

    After `transcript.resume()` the client gets `transcript.feed(joiner.feed(data))` for what the new engine sends.
    """

    body: bytes
    way: Literal["prefill", "replay"]
    joiner: Joiner
    produced_tokens: int | None
    """Tokens of the lost part, from its usage; None when it told none. After a prefill, `max_tokens` is then lowered
    by a lower bound (its text events) and may be exceeded by the whole, whose usage is split by the same estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What the endpoint that is to carry on can do."""

    prefill: bool
    """It honours `continue_final_message` in chat requests, as vLLM and SGLang do."""


_EXCLUDED = (
    # More than one answer, or more than text in it.
    *("audio", "echo", "functions", "logprobs", "prompt_logprobs", "return_hidden_states", "return_token_ids"),
    *("tools", "top_logprobs", "use_beam_search"),
    # A form that the rest of an answer would not keep to on its own.
    *("ebnf", "grammar", "guided_choice", "guided_grammar", "guided_json", "guided_regex", "json_schema", "regex"),
    *("structural_tag", "structured_outputs"),
    # A prompt that cannot be extended, is one to be continued already, or lives elsewhere.
    *("bootstrap_host", "continue_final_message", "input_embeds", "input_ids"),
    *("kv_transfer_params", "prompt_embeds", "session_params", "suffix", "truncate_prompt_tokens"),
)
"""Members of requests to OpenAI, vLLM, SGLang and llama.cpp that must be absent, null, false or empty."""

_ALLOWED: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "best_of": (None, 1),
    "modalities": (None, ["text"]),
    "n": (None, 1),
    "response_format": (None, {"type": "text"}),
    "stream": (True,),
}


def can_continue(family: Family | None, body: bytes) -> bool:
    """Whether a stream of this request could be continued at all, so that a transcript of it is worth keeping."""
    return _request(family, body) is not None


def continuation(family: Family | None, body: bytes, transcript: Transcript, target: Target) -> Continuation | Refusal:
    """The request that carries a stream on, or why there is none.

    `body` is the first request's, also where the stream has been continued before. Prefill is preferred, being the
    cheaper way; a replay needs temperature 0, or a client that has no text yet.
    """
    request = _request(family, body)
    if request is None:
        return Refusal(reason="a request for more than one plain text")
    refused = transcript.doubt or _nothing_to_carry_on(transcript)
    if refused is not None:
        return Refusal(reason=refused)
    text = transcript.text
    produced = transcript.usage.completion_tokens if transcript.usage is not None else None
    prefill = _prefill(family, request, text, target) if text else None
    if prefill is None:
        if text and request.get("temperature") != 0:
            return Refusal(reason="a sampled answer, and an endpoint that takes no prefill")
        joiner = Joiner(transcript, swallow=text, prefilled=False)
        return Continuation(body=body, way="replay", joiner=joiner, produced_tokens=produced)
    members, swallow = prefill
    # One token for white space that comes again, as the joiner counts it.
    bounds = _bounds_left(request, (transcript.text_events if produced is None else produced) - bool(swallow))
    if bounds is None:
        return Refusal(reason="an answer that has used up its max_tokens")
    joiner = Joiner(transcript, swallow=swallow, prefilled=True)
    body = msgspec.json.encode(request | members | bounds)
    return Continuation(body=body, way="prefill", joiner=joiner, produced_tokens=produced)


def _nothing_to_carry_on(transcript: Transcript) -> str | None:
    if transcript.finished:
        return "an answer that is complete"
    # Engines send U+FFFD for bytes of a character whose rest is still to come.
    return "an answer cut inside a character" if transcript.text.endswith("\ufffd") else None


def _prefill(
    family: Family | None, request: dict[str, object], text: str, target: Target
) -> tuple[dict[str, object], str] | None:
    """Members of the new request, and what its answer will repeat."""
    if family == "completions":
        return {"prompt": f"{request['prompt']}{text}"}, ""
    # Chat templates trim messages, so white space at the end is left for the engine to say again.
    said = text.rstrip()
    if not said or not target.prefill:
        return None
    messages = msgspec.convert(request["messages"], list[object])
    members: dict[str, object] = {
        "messages": [*messages, {"role": "assistant", "content": said}],
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    return members, text[len(said) :]


def _bounds_left(request: dict[str, object], produced_tokens: int) -> dict[str, object] | None:
    """Bounds of the rest; None when nothing is left."""
    left: dict[str, object] = {}
    for name in ("max_tokens", "max_completion_tokens"):
        bound = request.get(name)
        # llama.cpp writes "no bound" as -1.
        if isinstance(bound, int) and bound >= 0:
            if bound <= produced_tokens:
                return None
            left[name] = bound - produced_tokens
    least = request.get("min_tokens")
    if isinstance(least, int):
        left["min_tokens"] = max(0, least - produced_tokens)
    return left


def _request(family: Family | None, body: bytes) -> dict[str, object] | None:
    """The request, if what it asks for is one plain text."""
    if family not in ("chat", "completions"):
        return None
    try:
        request = msgspec.json.decode(body, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return None
    if any(_is_set(request.get(name)) for name in _EXCLUDED):
        return None
    if any(request.get(name) not in values for name, values in _ALLOWED.items()):
        return None
    if family == "chat":
        return request if _is_text_chat(request.get("messages")) else None
    # Without max_tokens the engines' defaults differ, and count for the rest alone.
    bounded = isinstance(request.get("max_tokens"), int)
    return request if bounded and isinstance(request.get("prompt"), str) else None


def _is_set(value: object) -> bool:
    # 0 is a value: completions' `logprobs: 0` asks for those of the tokens themselves.
    return not (value is None or value is False or value in ("", [], {}))


class _TextPart(msgspec.Struct, tag_field="type", tag="text"):
    pass


class _Message(msgspec.Struct):
    role: str
    content: str | list[_TextPart] | None = None


def _is_text_chat(messages: object) -> bool:
    try:
        chat = msgspec.convert(messages, list[_Message])
    except msgspec.ValidationError:
        return False
    return bool(chat) and chat[-1].role not in ("assistant", "tool")
