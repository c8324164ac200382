"""Reads the body of a generation request into what the engine needs, or says what is wrong with it.

It hides the OpenAI body formats and their validation. It never words an error for the client: each engine
kind renders a `Rejected` in its own shape, and differs in what it rejects by its `Rules`. Bodies are
checked with pydantic because both real engines do, so messages and types of errors come out the same.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec
import pydantic

from simulator import tokens

Why = Literal[
    "media_type",
    "not_json",
    "invalid",
    "stream_options",
    "unknown_model",
    "temperature",
    "top_p",
    "max_tokens_least",
    "max_tokens_most",
    "min_tokens",
    "no_messages",
    "prompt_too_long",
    "total_too_long",
    "duplicate_id",
    "queue_full",
    "shut_down",
]


class Rejected(Exception):
    """A request that is refused: a reason and the facts that its message mentions."""

    def __init__(self, why: Why, **facts: object) -> None:
        super().__init__(why, facts)
        self.why = why
        self.facts = facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one engine kind refuses and assumes."""

    only_known_models: bool
    stream_options_need_stream: bool
    least_max_tokens: int
    sum_must_fit: bool
    """Refuse a prompt and max_tokens that together exceed the context; otherwise max_tokens is cut."""
    id_field: Literal["request_id", "rid"]
    """Where a body may name the answer."""
    completion_max_tokens: int = 16
    """Of /v1/completions when the body has none; chat may fill the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A valid request. Prompts are token ids; every one gets `n` answers of up to `max_tokens` each."""

    chat: bool
    model: str
    request_id: str | None
    prompts: tuple[tuple[int, ...], ...]
    n: int
    max_tokens: tuple[int, ...]
    """For each prompt, what the context leaves."""
    min_tokens: int
    ignore_eos: bool
    stop: tuple[str, ...]
    seed: int | None
    stream: bool
    include_usage: bool
    continuous_usage: bool


_TokenId = Annotated[int, pydantic.Field(ge=0, lt=1 << 32)]


class _StreamOptions(pydantic.BaseModel):
    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Part(pydantic.BaseModel):
    type: str = "text"
    text: str = ""


class _Message(pydantic.BaseModel):
    role: str
    content: str | list[_Part] | None = None

    def as_text(self) -> tuple[str, str]:
        content = self.content or ""
        return self.role, content if isinstance(content, str) else "".join(part.text for part in content)


class _Body(pydantic.BaseModel):
    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int = 0
    n: Annotated[int, pydantic.Field(ge=1)] | None = 1
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = False
    stream_options: _StreamOptions | None = None
    ignore_eos: bool = False
    request_id: str | None = None
    rid: str | list[str] | None = None


class _ChatBody(_Body):
    messages: list[_Message]


class _CompletionBody(_Body):
    prompt: list[_TokenId] | list[list[_TokenId]] | str | list[str]


class TokenizeBody(pydantic.BaseModel):
    """Body of /tokenize: a prompt or messages."""

    prompt: str | None = None
    messages: list[_Message] | None = None

    def ids(self) -> list[int]:
        if self.messages is None:
            return tokens.encode(self.prompt or "")
        return tokens.encode_chat(message.as_text() for message in self.messages)


class AbortRequestsBody(pydantic.BaseModel):
    """Body of vLLM's /abort_requests; no ids means all."""

    request_ids: list[str] = []


class AbortRequestBody(pydantic.BaseModel):
    """Body of SGLang's /abort_request."""

    rid: str = ""
    abort_all: bool = False


_BodyT = TypeVar("_BodyT", bound=pydantic.BaseModel)


def check(raw: bytes, content_type: str, kind: type[_BodyT]) -> _BodyT:
    """A JSON body as `kind`. Raises Rejected: media_type, not_json or invalid."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise Rejected("media_type")
    try:
        decoded = msgspec.json.decode(raw)
    except msgspec.MsgspecError as error:
        raise _not_json(raw) from error
    try:
        return kind.model_validate(decoded)
    except pydantic.ValidationError as error:
        raise Rejected("invalid", errors=error.errors(include_url=False, include_context=False)) from error


def read(raw: bytes, content_type: str, *, chat: bool, rules: Rules, model: str, max_model_tokens: int) -> Generation:
    """The request in a body of /v1/chat/completions or /v1/completions; Rejected says why there is none."""
    body: _ChatBody | _CompletionBody
    body = check(raw, content_type, _ChatBody) if chat else check(raw, content_type, _CompletionBody)
    options = body.stream_options or _StreamOptions()
    if rules.stream_options_need_stream and body.stream_options is not None and not body.stream:
        raise Rejected("stream_options")
    if rules.only_known_models and body.model not in (None, model):
        raise Rejected("unknown_model", model=body.model, known=model)
    if body.temperature is not None and body.temperature < 0:
        raise Rejected("temperature", value=body.temperature)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise Rejected("top_p", value=body.top_p)
    prompts = _prompts(body)
    return Generation(
        chat=chat,
        model=body.model or model,
        request_id=_request_id(body, rules),
        prompts=prompts,
        n=body.n or 1,
        max_tokens=tuple(_max_tokens(body, len(prompt), rules, max_model_tokens) for prompt in prompts),
        min_tokens=body.min_tokens,
        ignore_eos=body.ignore_eos,
        stop=_as_tuple(body.stop),
        seed=body.seed,
        stream=bool(body.stream),
        include_usage=bool(body.stream and options.include_usage),
        continuous_usage=bool(body.stream and options.include_usage and options.continuous_usage_stats),
    )


def _request_id(body: _Body, rules: Rules) -> str | None:
    """A list of rids, one a prompt, is not followed."""
    if rules.id_field == "request_id":
        return body.request_id
    return body.rid if isinstance(body.rid, str) else None


def _not_json(raw: bytes) -> Rejected:
    """Where and why the body stops being JSON, in the words of Python's own decoder."""
    try:
        json.loads(raw)
    except json.JSONDecodeError as error:
        return Rejected("not_json", position=error.pos, error=error.msg, length=len(raw))
    except ValueError:
        pass  # Not UTF-8: no position in characters exists.
    return Rejected("not_json", position=0, error="Expecting value", length=len(raw))


def _prompts(body: _ChatBody | _CompletionBody) -> tuple[tuple[int, ...], ...]:
    if isinstance(body, _ChatBody):
        if not body.messages:
            raise Rejected("no_messages")
        return (tuple(tokens.encode_chat(message.as_text() for message in body.messages)),)
    prompt = body.prompt
    if isinstance(prompt, str):
        return (_text_prompt(prompt),)
    if all(isinstance(part, int) for part in prompt):
        return (tuple(part for part in prompt if isinstance(part, int)) or (tokens.BEGIN,),)
    return tuple(
        _text_prompt(part) if isinstance(part, str) else tuple(part) or (tokens.BEGIN,)
        for part in prompt
        if not isinstance(part, int)
    )


def _text_prompt(text: str) -> tuple[int, ...]:
    """An empty prompt is the begin token alone: something must be computed to sample from."""
    return tuple(tokens.encode(text)) or (tokens.BEGIN,)


def _max_tokens(body: _ChatBody | _CompletionBody, prompt_tokens: int, rules: Rules, max_model_tokens: int) -> int:
    """Output tokens allowed after a prompt of `prompt_tokens`."""
    wanted = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if wanted is not None and wanted < rules.least_max_tokens:
        raise Rejected("max_tokens_least", value=wanted)
    if wanted is not None and wanted > max_model_tokens:
        raise Rejected("max_tokens_most", value=wanted, limit=max_model_tokens)
    if prompt_tokens >= max_model_tokens:
        raise Rejected(
            "prompt_too_long",
            prompt_tokens=prompt_tokens,
            at_least=max_model_tokens + 1,
            limit=max_model_tokens,
        )
    room = max_model_tokens - prompt_tokens
    if wanted is None:
        wanted = room if isinstance(body, _ChatBody) else min(rules.completion_max_tokens, room)
    if wanted > room and rules.sum_must_fit:
        raise Rejected("total_too_long", prompt_tokens=prompt_tokens, wanted=wanted, limit=max_model_tokens)
    if body.min_tokens > wanted:
        raise Rejected("min_tokens", value=body.min_tokens, most=wanted)
    return min(wanted, room)


def _as_tuple(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(filter(None, stop))
