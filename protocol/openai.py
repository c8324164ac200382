"""Bodies of the OpenAI API and its relatives: what a gateway reads of a request, what an answer says, errors.

Hides which engine spells a field how (vLLM, SGLang, llama.cpp, Anthropic `/v1/messages`, `/v1/responses`).
Reading skips whatever it does not need without turning it into objects. It never rewrites a body and never
judges the values of a request: that is the engine's to answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

Family = Literal["chat", "completions", "messages", "responses"]
"""Endpoints that generate text, by the dialect of their answers: two of OpenAI's, Anthropic's, OpenAI's newest."""


def family_of(path: str) -> Family | None:
    """The family of an endpoint, by its path with or without a query; None for one that generates nothing."""
    match path.partition("?")[0].rsplit("/", 2)[-2:]:
        case ["chat", "completions"]:
            return "chat"
        case [_, ("completions" | "messages" | "responses") as family]:
            return family
    return None


class BadRequest(ValueError):
    """A request body that cannot be routed; `param` is the field at fault, where one is."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class RequestPeek(msgspec.Struct, frozen=True, kw_only=True):
    """What routing, admission and accounting need of a request body."""

    model: str | None
    stream: bool
    include_usage: bool
    """`stream_options.include_usage`."""
    stream_options: bool
    """There is a `stream_options` object, whatever it says."""
    user: str | None
    max_tokens: int | None
    """Output bound per choice; None when not stated or negative (llama.cpp writes "no bound" as -1)."""
    n: int
    """Choices asked for, at least 1."""
    size_bytes: int


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Request(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


_request_decoder = msgspec.json.Decoder(_Request)
_PARAM = re.compile(r" - at `\$\.([^`]+)`$")


def peek_request(body: bytes) -> RequestPeek:
    """Reads the few fields of a request in one pass; about 0.3 ms per MiB of prompt.

    Raises BadRequest for a body that is not a JSON object (with the byte position where known) and for a wrong
    type of a field that is read.
    """
    try:
        request = _request_decoder.decode(body)
    except msgspec.ValidationError as error:
        where = _PARAM.search(str(error))
        raise BadRequest(str(error), where and where[1]) from error
    except msgspec.DecodeError as error:
        raise BadRequest(f"the request body is not valid JSON: {error}") from error
    except RecursionError as error:
        raise BadRequest("the request body is nested too deeply") from error
    bounds = (request.max_completion_tokens, request.max_tokens, request.max_output_tokens)
    bound = next((value for value in bounds if value is not None), -1)
    return RequestPeek(
        model=request.model,
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        stream_options=request.stream_options is not None,
        user=request.user,
        max_tokens=bound if bound >= 0 else None,
        n=max(1, request.n or 1),
        size_bytes=len(body),
    )


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one answer, as the engine counted them."""

    prompt_tokens: int
    """All of the prompt, cached or not; 0 when the body does not say."""
    completion_tokens: int
    cached_tokens: int | None
    """Prompt tokens served from the prefix cache; None when the engine does not report them."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole response body, or one event of a stream, says about itself; None where it is silent."""

    usage: Usage | None = None
    finish_reason: str | None = None
    """As sent: OpenAI `finish_reason` of the first choice that has one, or Anthropic `stop_reason`."""
    error: dict[str, object] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Counts(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None


class _Delta(msgspec.Struct):
    stop_reason: str | None = None


class _Inner(msgspec.Struct):
    """`message` of Anthropic's `message_start`; `response` of the Responses events."""

    usage: _Counts | None = None
    error: dict[str, object] | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Counts | None = None
    stop_reason: str | None = None
    delta: _Delta | str | None = None
    message: _Inner | str | None = None
    response: _Inner | None = None
    error: dict[str, object] | str | None = None
    type: str | None = None
    kind: str | None = msgspec.field(default=None, name="object")


_body_decoder = msgspec.json.Decoder(_Body)
_object_decoder = msgspec.json.Decoder(dict[str, object])


def answer_of(body: bytes) -> Answer:
    """Usage, finish reason and error of a response body or of one event's data.

    A body that is not JSON of a known shape says nothing.
    """
    try:
        read = _body_decoder.decode(body)
        return Answer(usage=_usage(_counts(read)), finish_reason=_finish_reason(read), error=_error(read, body))
    except (msgspec.DecodeError, RecursionError):
        return Answer()


def usage_of(body: bytes) -> Usage | None:
    """Token counts of a whole response body; see `answer_of` for more than one fact of the same body."""
    return answer_of(body).usage


def finish_reason_of(body: bytes) -> str | None:
    """Why generation ended, of a whole response body; see `answer_of`."""
    return answer_of(body).finish_reason


def _counts(read: _Body) -> _Counts | None:
    if read.usage is not None:
        return read.usage
    inner = read.message if isinstance(read.message, _Inner) else read.response
    return inner.usage if inner is not None else None


def _usage(counts: _Counts | None) -> Usage | None:
    if counts is None:
        return None
    if counts.prompt_tokens is not None:
        details = counts.prompt_tokens_details
        return Usage(
            prompt_tokens=counts.prompt_tokens,
            completion_tokens=counts.completion_tokens or 0,
            cached_tokens=details.cached_tokens if details is not None else None,
        )
    if counts.input_tokens is None and counts.output_tokens is None:
        return None
    # Anthropic's `input_tokens` leaves out what the cache read or took in (SGLang does the same; vLLM reports no
    # cache fields); that of Responses, whose cached tokens are in the details, includes them.
    read, created = counts.cache_read_input_tokens, counts.cache_creation_input_tokens
    details = counts.input_tokens_details
    return Usage(
        prompt_tokens=(counts.input_tokens or 0) + (read or 0) + (created or 0),
        completion_tokens=counts.output_tokens or 0,
        cached_tokens=details.cached_tokens if details is not None else read,
    )


def _finish_reason(read: _Body) -> str | None:
    for choice in read.choices or ():
        if choice.finish_reason is not None:
            return choice.finish_reason
    if isinstance(read.delta, _Delta):
        return read.delta.stop_reason
    return read.stop_reason


def _error(read: _Body, body: bytes) -> dict[str, object] | None:
    """Nested (vLLM, OpenAI, SGLang in a stream), a bare string (both engines' 401), or flat (SGLang over HTTP)."""
    if isinstance(read.error, str):
        return {"message": read.error}
    if read.error is not None:
        return read.error
    if read.response is not None:
        return read.response.error
    if "error" in (read.kind, read.type) and isinstance(read.message, str):
        return _object_decoder.decode(body)
    return None


def error_body(message: str, *, kind: str, code: int, param: str | None = None, request_id: str | None = None) -> bytes:
    """An error response in OpenAI's shape; `code` is the HTTP status as an integer, as in vLLM."""
    error: dict[str, object] = {"message": message, "type": kind, "param": param, "code": code}
    if request_id is not None:
        error["request_id"] = request_id
    return msgspec.json.encode({"error": error})


ANTHROPIC_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""By status, from Anthropic's API errors page; 503 stands for its own 529. Any other is `api_error`."""


def error_for(path: str, body: bytes) -> bytes:
    """An error body in the shape of the family of `path`: Anthropic's has a type around it, the others share one."""
    return msgspec.json.encode(_anthropic_error(answer_of(body).error or {})) if family_of(path) == "messages" else body


def _anthropic_error(error: dict[str, object]) -> dict[str, object]:
    code = error.get("code")
    known = ANTHROPIC_ERROR_TYPES.get(code) if isinstance(code, int) else error.get("type")
    return {"type": "error", "error": {**error, "type": known or "api_error"}}


def stream_error(path: str, body: bytes, events_before: int = 0) -> bytes:
    """An error body as the last event of a stream that has already begun, in the family of `path`.

    `body` is any JSON error body (`error_body`, or an engine's). Events of `/v1/responses` are numbered from 0: this
    one follows `events_before` others. No `[DONE]` follows: a client that skips chunks it does not know would take it
    for a good end, and one that knows the error stops there anyway.
    """
    error = answer_of(body).error or {"message": body.decode(errors="replace")}
    code = error.get("code")
    family = family_of(path)
    if family == "messages":
        return _named_event("error", _anthropic_error(error))
    if family == "responses":
        cause = "rate_limit_exceeded" if code == 429 else "server_error"
        failure = {"code": cause, "message": error.get("message")}
        response = {"object": "response", "status": "failed", "error": failure, "output": []}
        event = {"type": "response.failed", "sequence_number": events_before, "response": response}
        return _named_event("response.failed", event)
    return b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"


def _named_event(name: str, data: dict[str, object]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


class ModelCard(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="object", tag="model"):
    """One entry of `GET /v1/models`; `created` is in unix seconds."""

    id: str
    created: int
    owned_by: str
    max_model_len: int | None = None
    """Context length, where it is known (both engines name it so)."""


def models_body(models: Sequence[ModelCard]) -> bytes:
    """Body of `GET /v1/models`."""
    return msgspec.json.encode({"object": "list", "data": models})
