"""SGLang 0.5.23 on the wire: routes, ids, SSE chunks, bodies and errors.

Data and pure functions. Byte shapes were recorded from a running SGLang 0.5.23 (reference captures
`sglang_sse.txt` and `sglang_errors.txt`); keys and their order are part of the shape.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from simulator.answer import DONE, Choice, EndReason, Head, Usage, compact, spaced
from simulator.intake import Generation, Rejected, Rules
from simulator.tokens import END_OF_TURN

RULES = Rules(
    only_known_models=False,
    stream_options_need_stream=False,
    least_max_tokens=0,
    sum_must_fit=False,
    id_field="rid",
)
POLLS_DISCONNECT = True
HEADERS_WITH_FIRST_TOKEN = True

ROUTES = {
    "/v1/chat/completions": {"POST": "chat"},
    "/v1/completions": {"POST": "completions"},
    "/v1/models": {"GET": "models"},
    "/health": {"GET": "health_generate"},
    "/health_generate": {"GET": "health_generate"},
    "/ready": {"GET": "ready"},
    "/ping": {"GET": "health", "POST": "health"},
    "/tokenize": {"POST": "tokenize"},
    "/v1/tokenize": {"POST": "tokenize"},
    "/metrics": {"GET": "metrics"},
    "/v1/loads": {"GET": "loads"},
    "/server_info": {"GET": "server_info"},
    "/get_server_info": {"GET": "server_info"},
    "/model_info": {"GET": "model_info"},
    "/get_model_info": {"GET": "model_info"},
    "/flush_cache": {"GET": "flush_cache", "POST": "flush_cache"},
    "/abort_request": {"POST": "abort_request"},
}


def answer_ids(generation: Generation, header_id: str | None, choices: int) -> tuple[str, ...]:
    """The body's rid for a single choice, else one random id a choice; X-Request-Id is not read."""
    if generation.request_id is not None and choices == 1:
        return (generation.request_id,)
    return tuple(uuid.uuid4().hex for _ in range(choices))


class _Stream:
    """`Stream` in SGLang's shapes."""

    def __init__(self, head: Head) -> None:
        name = b"chat.completion.chunk" if head.chat else b"text_completion"
        model = compact(head.model)
        self._starts = [
            b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":['
            % (compact(each), name, head.created_s, model)
            for each in head.ids
        ]
        self._chat = head.chat
        self._include_usage = head.include_usage

    def opening(self, index: int, usage: Usage | None) -> list[bytes]:
        """The role chunk never carries usage."""
        if not self._chat:
            return []
        return [self._chat_chunk(index, b',"role":"assistant","content":""', b"null", b"null", None)]

    def delta(self, index: int, text: str, usage: Usage | None) -> bytes:
        if self._chat:
            return self._chat_chunk(index, b',"content":' + compact(text), b"null", b"null", usage)
        return self._text_chunk(index, text, b"null", b"null", usage)

    def closing(self, index: int, text: str, reason: EndReason, stop: str | None, usage: Usage | None) -> list[bytes]:
        """Chat ends with a chunk of its own, completions with the last text."""
        end, matched = compact(reason), compact(_matched_stop(reason, stop))
        if not self._chat:
            return [self._text_chunk(index, text, end, matched, usage)]
        last = [self.delta(index, text, usage)] if text else []
        return [*last, self._chat_chunk(index, b"", end, matched, None)]

    def ending(self, usage: Usage) -> list[bytes]:
        if not self._include_usage:
            return [DONE]
        counts = _counts(usage)
        if not self._chat:
            counts = {key: value for key, value in counts.items() if value is not None}
        return [b'%b],"usage":%b}\n\n' % (self._starts[0], compact(counts)), DONE]

    def _chat_chunk(self, index: int, delta: bytes, reason: bytes, matched: bytes, usage: Usage | None) -> bytes:
        counts = b"" if usage is None else b',"usage":' + compact(_counts(usage))
        return (
            b'%b{"index":%d,"delta":{"reasoning_content":null%b},"logprobs":null,"finish_reason":%b,'
            b'"matched_stop":%b}]%b}\n\n' % (self._starts[index], index, delta, reason, matched, counts)
        )

    def _text_chunk(self, index: int, text: str, reason: bytes, matched: bytes, usage: Usage | None) -> bytes:
        counts = compact(None if usage is None else _counts(usage))
        return b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b,"matched_stop":%b}],"usage":%b}\n\n' % (
            self._starts[index],
            index,
            compact(text),
            reason,
            matched,
            counts,
        )


def stream(head: Head) -> _Stream:
    return _Stream(head)


def body(head: Head, choices: list[Choice], usage: Usage) -> bytes:
    """An answer that is not a stream."""
    return compact(
        {
            "id": head.ids[0],
            "object": "chat.completion" if head.chat else "text_completion",
            "created": head.created_s,
            "model": head.model,
            "choices": [_choice(index, choice, head.chat) for index, choice in enumerate(choices)],
            "usage": _counts(usage),
            "metadata": {
                "weight_version": "default",
                "weight_versions": [{"version": "default", "start": 0, "end": choices[0].tokens}],
            },
        }
    )


def _choice(index: int, choice: Choice, chat: bool) -> dict[str, object]:
    message = {"role": "assistant", "content": choice.text, "reasoning_content": None}
    return {
        "index": index,
        **({"message": message} if chat else {"text": choice.text}),
        "logprobs": None,
        "finish_reason": choice.reason,
        "matched_stop": _matched_stop(choice.reason, choice.stop),
    }


def _matched_stop(reason: EndReason, stop: str | None) -> str | int | None:
    """A natural end is reported as the end token's id."""
    return END_OF_TURN if reason == "stop" and stop is None else stop


def _counts(usage: Usage) -> dict[str, object]:
    cached = None if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": cached,
        "reasoning_tokens": 0,
        "completion_tokens_details": None,
    }


_Facts = Mapping[str, object]
_CHAT_ROUTE = "POST /v1/chat/completions"


def rejection(rejected: Rejected) -> tuple[int, bytes]:
    """Status and flat body of an error."""
    status, kind, message = _ERRORS[rejected.why](rejected.facts)
    return status, compact({"object": "error", "message": message, "type": kind, "param": None, "code": status})


def stream_rejection(rejected: Rejected) -> bytes:
    """Nested, and with the name of the status instead of its number as type."""
    status, _, message = _ERRORS[rejected.why](rejected.facts)
    error = {
        "object": "error",
        "message": message,
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": status,
    }
    return b"data: " + spaced({"error": error}) + b"\n\n"


def _error(message: str) -> tuple[int, str, str]:
    return 400, "BadRequestError", message


def _validation(errors: list[dict[str, object]]) -> tuple[int, str, str]:
    """SGLang lists the errors, then the place in its code, then the errors again."""
    plural = "error" if len(errors) == 1 else "errors"
    lines = "\n".join(f"  {error}" for error in errors)
    where = f'  File "http_server.py", line 1870, in openai_v1_chat_completions\n    {_CHAT_ROUTE} {errors}'
    return 400, "Bad Request", f"{len(errors)} validation {plural}:\n{lines}\n\n{where}"


def _invalid(facts: _Facts) -> tuple[int, str, str]:
    errors = facts["errors"]
    assert isinstance(errors, list)
    return _validation(
        [{"type": e["type"], "loc": ("body", *e["loc"]), "msg": e["msg"], "input": _shown(e["input"])} for e in errors]
    )


def _shown(value: object) -> object:
    """A body without tools has had `tool_choice` filled in before it is checked."""
    if isinstance(value, dict) and "tools" not in value:
        return {**value, "tool_choice": "none"}
    return value


def _not_json(facts: _Facts) -> tuple[int, str, str]:
    """orjson says only whether the text ended early."""
    ended = facts["position"] == facts["length"]
    error = "unexpected end of data" if ended else "unexpected character"
    return _validation(
        [
            {
                "type": "json_invalid",
                "loc": ("body", facts["position"]),
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error},
            }
        ]
    )


def _media_type(_: _Facts) -> tuple[int, str, str]:
    message = "Unsupported Media Type: Only 'application/json' is allowed"
    error = {"loc": ["header", "content-type"], "msg": message, "type": "value_error"}
    return 400, "Bad Request", f"1 validation error:\n  {error} [{error}]"


_ERRORS: dict[str, Callable[[_Facts], tuple[int, str, str]]] = {
    "media_type": _media_type,
    "not_json": _not_json,
    "invalid": _invalid,
    "temperature": lambda facts: _error(f"temperature must be a non-negative finite number, got {facts['value']}."),
    "top_p": lambda facts: _error(f"top_p must be in (0, 1], got {facts['value']}."),
    "max_tokens_least": lambda facts: _error(f"max_new_tokens must be at least 0, got {facts['value']}."),
    # The missing space is SGLang's.
    "max_tokens_most": lambda facts: _error(
        f"max_completion_tokens is too large: {facts['value']}."
        f"This model supports at most {facts['limit']} completion tokens."
    ),
    "min_tokens": lambda facts: _error(
        f"min_new_tokens must be in [0, max_new_tokens({facts['most']})], got {facts['value']}."
    ),
    "no_messages": lambda _: _error("Messages cannot be empty."),
    "prompt_too_long": lambda facts: _error(
        f"The input ({facts['prompt_tokens']} tokens) is longer than the model's context length "
        f"({facts['limit']} tokens)."
    ),
    "duplicate_id": lambda facts: _error(f"Duplicate request ID detected: {facts['request_id']}"),
    "queue_full": lambda _: (503, "503", "The request queue is full."),
}
