"""vLLM 0.32.0 on the wire: routes, ids, SSE chunks, bodies and errors.

Data and pure functions. Byte shapes were recorded from a running vLLM 0.32.0 (reference captures
`vllm_sse.txt` and `vllm_errors.txt`); keys and their order are part of the shape.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping

from simulator.answer import DONE, Choice, EndReason, Head, Usage, compact, spaced
from simulator.intake import Generation, Rejected, Rules

RULES = Rules(
    only_known_models=True,
    stream_options_need_stream=True,
    least_max_tokens=1,
    sum_must_fit=True,
    id_field="request_id",
)
POLLS_DISCONNECT = False
HEADERS_WITH_FIRST_TOKEN = False

ROUTES = {
    "/v1/chat/completions": {"POST": "chat"},
    "/v1/completions": {"POST": "completions"},
    "/v1/models": {"GET": "models"},
    "/health": {"GET": "health"},
    "/ping": {"GET": "health", "POST": "health"},
    "/version": {"GET": "version"},
    "/load": {"GET": "load"},
    "/tokenize": {"POST": "tokenize"},
    "/metrics": {"GET": "metrics"},
    "/inference/v1/abort_requests": {"POST": "abort_requests"},
    "/abort_requests": {"POST": "abort_requests"},
    "/reset_prefix_cache": {"POST": "reset_prefix_cache"},
}


def answer_ids(generation: Generation, header_id: str | None, choices: int) -> tuple[str, ...]:
    """`chatcmpl-` or `cmpl-` and the X-Request-Id, else the body's request_id, else random."""
    prefix = "chatcmpl-" if generation.chat else "cmpl-"
    return (prefix + (header_id or generation.request_id or uuid.uuid4().hex[:16]),) * choices


class _Stream:
    """`Stream` in vLLM's shapes."""

    def __init__(self, head: Head) -> None:
        name = "chat.completion.chunk" if head.chat else "text_completion"
        self._start = b'data: {"id":%b,"object":"%b","created":%d,"model":%b,"choices":[' % (
            compact(head.ids[0]),
            name.encode(),
            head.created_s,
            compact(head.model),
        )
        self._chat = head.chat
        self._include_usage = head.include_usage
        self._fingerprint = b',"system_fingerprint":' + compact(head.fingerprint)

    def opening(self, index: int, usage: Usage | None) -> list[bytes]:
        if not self._chat:
            return []
        return [
            b'%b{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
            b'%b,"prompt_token_ids":null,"prompt_text":null}\n\n' % (self._start, index, self._running_usage(usage))
        ]

    def delta(self, index: int, text: str, usage: Usage | None) -> bytes:
        return self._chunk(index, text, b"null", usage) + b"}\n\n"

    def closing(self, index: int, text: str, reason: EndReason, stop: str | None, usage: Usage | None) -> list[bytes]:
        end = b'"%b"' % reason.encode()
        chunk = self._chunk(index, text, end, usage, compact(stop))
        return [chunk + (b"" if self._include_usage else self._fingerprint) + b"}\n\n"]

    def ending(self, usage: Usage) -> list[bytes]:
        if not self._include_usage:
            return [DONE]
        return [
            b'%b],"usage":%b%b}\n\n' % (self._start, compact(_final_usage(usage)), self._fingerprint),
            DONE,
        ]

    def _chunk(self, index: int, text: str, reason: bytes, usage: Usage | None, stop: bytes | None = None) -> bytes:
        """A chunk up to where the fingerprint may follow; `stop` is set on the last one."""
        if self._chat:
            ending = b"" if stop is None else b',"stop_reason":' + stop
            shape = b'%b{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":%b%b,"token_ids":null}]%b'
        else:
            ending = b',"stop_reason":' + (stop or b"null")
            shape = (
                b'%b{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b%b,"prompt_token_ids":null,'
                b'"token_ids":null}]%b'
            )
        return shape % (self._start, index, compact(text), reason, ending, self._running_usage(usage))

    def _running_usage(self, usage: Usage | None) -> bytes:
        if usage is None:
            return b""
        details = {"completion_tokens_details": None} if self._chat else {}
        return b',"usage":' + compact(_counts(usage) | details)


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
            "choices": [
                _chat_choice(index, choice) if head.chat else _text_choice(index, choice)
                for index, choice in enumerate(choices)
            ],
            "service_tier": None,
            "system_fingerprint": head.fingerprint,
            "usage": _counts(usage)
            | {"prompt_tokens_details": None, "completion_tokens_details": None}
            | _details(usage),
            **({"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if head.chat else {}),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
    )


def _chat_choice(index: int, choice: Choice) -> dict[str, object]:
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": choice.text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": None,
        "finish_reason": choice.reason,
        "stop_reason": choice.stop,
        "token_ids": None,
        "routed_experts": None,
    }


def _text_choice(index: int, choice: Choice) -> dict[str, object]:
    return {
        "index": index,
        "text": choice.text,
        "logprobs": None,
        "finish_reason": choice.reason,
        "stop_reason": choice.stop,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }


def _counts(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "total_tokens": usage.total_tokens,
        "completion_tokens": usage.completion_tokens,
    }


def _details(usage: Usage) -> dict[str, object]:
    if usage.cached_tokens is None:
        return {}
    return {"prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "created_cache_tokens": 0}}


def _final_usage(usage: Usage) -> dict[str, object]:
    return _counts(usage) | _details(usage)


def rejection(rejected: Rejected) -> tuple[int, bytes]:
    """Status and body of an error."""
    status, error = _ERRORS[rejected.why](rejected.facts)
    return status, compact({"error": error})


def stream_rejection(rejected: Rejected) -> bytes:
    _, error = _ERRORS[rejected.why](rejected.facts)
    return b"data: " + spaced({"error": error}) + b"\n\n"


_Facts = Mapping[str, object]
_Error = tuple[int, dict[str, object]]


def _error(status: int, kind: str, message: str, param: str | None = None) -> _Error:
    return status, {"message": message, "type": kind, "param": param, "code": status}


def _bad_value(message: str, param: str, value: object) -> _Error:
    return _error(400, "BadRequestError", f"{message} (parameter={param}, value={value})", param)


def _shown(value: object) -> str:
    """vLLM does not echo containers, only their size."""
    if isinstance(value, dict | list):
        return repr(f"<{type(value).__name__} of {len(value)} items>")
    return repr(value)


def _not_json(facts: _Facts) -> _Error:
    where = f"body.{facts['position']}"
    return _error(
        400,
        "Bad Request",
        f"1 validation error:\n  {{'type': 'json_invalid', 'loc': '{where}', 'msg': 'JSON decode error', "
        f"'input': '<dict of 0 items>', 'ctx': {{'error': {facts['error']!r}}}}}",
        where,
    )


def _invalid(facts: _Facts) -> _Error:
    """At most ten errors are listed; `param` is where the first one is."""
    errors = facts["errors"]
    assert isinstance(errors, list)
    paths = [".".join(map(str, ("body", *error["loc"]))) for error in errors]
    lines = [
        f"  {{'type': {error['type']!r}, 'loc': {path!r}, 'msg': {error['msg']!r}, 'input': {_shown(error['input'])}}}"
        for error, path in zip(errors[:10], paths, strict=False)
    ]
    plural = "error" if len(errors) == 1 else "errors"
    text = f"{len(errors)} validation {plural}:\n" + "\n".join(lines)
    return _error(400, "Bad Request", text, paths[0])


_ERRORS: dict[str, Callable[[_Facts], _Error]] = {
    "media_type": lambda _: _error(
        400,
        "Bad Request",
        "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
    ),
    "not_json": _not_json,
    "invalid": _invalid,
    "stream_options": lambda _: _error(
        400,
        "BadRequestError",
        "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
        "stream_options",
    ),
    "unknown_model": lambda facts: _error(
        404,
        "NotFoundError",
        f"The model `{facts['model']}` does not exist. Valid aliases: {facts['known']}.",
        "model",
    ),
    "temperature": lambda facts: _bad_value(
        f"temperature must be non-negative, got {facts['value']}.", "temperature", facts["value"]
    ),
    "top_p": lambda facts: _bad_value(f"top_p must be in (0, 1], got {facts['value']}.", "top_p", facts["value"]),
    "max_tokens_least": lambda facts: _bad_value(
        f"max_tokens must be at least 1, got {facts['value']}.", "max_tokens", facts["value"]
    ),
    "max_tokens_most": lambda facts: _bad_value(
        f"max_tokens={facts['value']} cannot be greater than max_model_len={facts['limit']}. "
        "Please request fewer output tokens.",
        "max_tokens",
        facts["value"],
    ),
    "min_tokens": lambda facts: _bad_value(
        f"min_tokens must be less than or equal to max_tokens={facts['most']}, got {facts['value']}.",
        "min_tokens",
        facts["value"],
    ),
    "no_messages": lambda _: _error(
        400,
        "BadRequestError",
        "Cannot apply chat template to an empty conversation. Provide at least one message.",
    ),
    # vLLM stops tokenizing one token past the limit, so it only knows a lower bound.
    "prompt_too_long": lambda facts: _bad_value(
        f"This model's maximum context length is {facts['limit']} tokens. However, your prompt contains at "
        f"least {facts['at_least']} input tokens, which exceeds this limit even without any "
        "output tokens. Please reduce the length of the input prompt.",
        "input_tokens",
        facts["at_least"],
    ),
    "total_too_long": lambda facts: _bad_value(
        f"This model's maximum context length is {facts['limit']} tokens. However, you requested "
        f"{facts['wanted']} output tokens and your prompt contains {facts['prompt_tokens']} input tokens. "
        "Please reduce the length of the input prompt or the number of requested output tokens.",
        "input_tokens",
        facts["prompt_tokens"],
    ),
    "queue_full": lambda _: _error(
        503,
        "Service Unavailable",
        "The engine is currently busy and cannot accept new requests. "
        "Please try again later or on a different instance.",
    ),
    "shut_down": lambda _: _error(500, "InternalServerError", "cannot schedule new futures after shutdown"),
}
