"""The one error type of the gateway, and the table of everything that can go wrong.

An error is a value: who is to blame, a stable kind for metrics and records, the HTTP status, and a message
with a remedy. Foreign exceptions become one of these where they enter; nothing else reaches the request path.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from protocol.first_event import ErrorInfo
from protocol.openai import error_body

Source = Literal["client", "gateway", "upstream"]

STALE = "stale_connection"
TRUNCATED = "truncated"
ANSWERED_IN_STREAM = "answered_in_stream"


class ConfigError(Exception):
    """Everything that keeps a gateway from starting, one line each."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class GatewayError(Exception):
    """A request that cannot be answered as asked.

    `kind` is a bounded label. `retry_after_s` becomes the Retry-After header. `engine_error` is an engine's own error
    object, which the client gets in place of ours. Whether a request is tried again is `policy/retry.py`'s to say.
    """

    def __init__(
        self,
        source: Source,
        kind: str,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.source = source
        self.kind = kind
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.engine_error: dict[str, object] | None = None

    def body(self, request_id: str) -> bytes:
        """The error response's body: the engine's own error where there is one, else ours."""
        if self.engine_error is not None:
            return msgspec.json.encode({"error": self.engine_error})
        return error_body(self.message, kind=self.kind, code=self.status, param=self.param, request_id=request_id)

    @property
    def cause(self) -> str | int:
        """What the failure policies go by: the kind, or the status that an engine meant."""
        return self.status if self.engine_error is not None else self.kind


def invalid_request(message: str, param: str | None) -> GatewayError:
    return GatewayError("client", "invalid_request", 400, message, param=param)


def missing_model(known: list[str]) -> GatewayError:
    return GatewayError(
        "client",
        "invalid_request",
        400,
        f"The request names no model; set `model` to one of: {', '.join(known)}.",
        param="model",
    )


def unreadable_body(known: list[str]) -> GatewayError:
    return GatewayError(
        "client",
        "invalid_request",
        400,
        "The model of a compressed or multipart body cannot be read, and several are served; send plain JSON and "
        f"set `model` to one of: {', '.join(known)}.",
        param="model",
    )


def unknown_model(model: str, known: list[str]) -> GatewayError:
    shown = model if len(model) <= 100 else model[:100] + "…"
    return GatewayError(
        "client",
        "model_not_found",
        404,
        f"The model `{shown}` is not served here; available models: {', '.join(known)}.",
        param="model",
    )


def body_too_large(limit_bytes: int) -> GatewayError:
    return GatewayError(
        "client",
        "body_too_large",
        413,
        f"The request body is larger than {limit_bytes} bytes; shorten the prompt, or ask the operator to raise "
        "`limits.body_bytes`.",
    )


def slow_request(timeout_s: float) -> GatewayError:
    return GatewayError(
        "client",
        "receive_timeout",
        408,
        f"The request body did not arrive within {timeout_s:g} s; send it again.",
    )


def overloaded(limit: int) -> GatewayError:
    return GatewayError(
        "gateway",
        "overloaded",
        503,
        f"The gateway carries {limit} requests already, its limit (`limits.in_flight`); try again shortly.",
        retry_after_s=1,
    )


def draining() -> GatewayError:
    return GatewayError(
        "gateway", "draining", 503, "This gateway is shutting down; send the request again.", retry_after_s=1
    )


def cut_by_shutdown() -> GatewayError:
    return GatewayError(
        "gateway",
        "cut_by_shutdown",
        503,
        "The gateway shut down before this response was complete; send the request again.",
        retry_after_s=1,
    )


def internal() -> GatewayError:
    return GatewayError(
        "gateway",
        "internal",
        500,
        "The gateway failed on this request; its log has the reason under the request id.",
    )


def no_endpoint(pools: str, retry_after_s: int) -> GatewayError:
    return GatewayError(
        "upstream",
        "no_endpoint",
        503,
        f"No engine of {pools} can be reached at the moment; try again in {retry_after_s} s.",
        retry_after_s=retry_after_s,
    )


def connect_failed(reason: str) -> GatewayError:
    return GatewayError(
        "upstream",
        "connect_failed",
        503,
        f"The engine could not be reached ({reason}); another one is tried.",
    )


def connect_timeout(timeout_s: float) -> GatewayError:
    return GatewayError(
        "upstream",
        "connect_timeout",
        503,
        f"The engine did not accept a connection within {timeout_s:g} s (`timeouts.connect_s`); another one is tried.",
    )


def closed_before_response() -> GatewayError:
    return GatewayError(
        "upstream",
        "closed_before_response",
        502,
        "The engine closed the connection without answering; send the request again.",
    )


def stale_connection() -> GatewayError:
    """A kept-alive connection that died before a byte came back: the request was never taken up."""
    return GatewayError(
        "upstream",
        STALE,
        502,
        "The engine closed an idle connection as it was used again; a new one is tried.",
    )


def garbage(what: str) -> GatewayError:
    return GatewayError(
        "upstream",
        "garbage",
        502,
        f"The engine answered with something that is not HTTP ({what}); send the request again.",
    )


def truncated(what: str) -> GatewayError:
    return GatewayError(
        "upstream", TRUNCATED, 502, f"The engine's response ended too early ({what}); send the request again."
    )


def answered_in_stream(info: ErrorInfo) -> GatewayError:
    """An error that an engine sent as the first event of a success, as the response it should have been."""
    source: Source = "client" if info.status < 500 and info.status not in (408, 429) else "upstream"
    error = GatewayError(source, ANSWERED_IN_STREAM, info.status, info.message)
    error.engine_error = info.error
    return error


def answered_too_late(status: int) -> GatewayError:
    """An answer that is no stream, after comments have committed the client's response to be one."""
    return GatewayError(
        "upstream",
        "answered_too_late",
        502,
        f"The engine answered {status} after the stream had been opened; try again.",
    )


def error_in_stream() -> GatewayError:
    """The engine reported an error inside a stream; the client has its words already."""
    return GatewayError(
        "upstream", "error_in_stream", 502, "The engine reported an error inside the stream; its words are there."
    )


def cut_stream() -> GatewayError:
    return truncated("the stream stopped without a finish_reason or [DONE]")


def lost_in_stream(error: dict[str, object]) -> GatewayError:
    """The engine died of something inside the stream; its own words go to the client when nobody carries on."""
    lost = GatewayError("upstream", "lost_in_stream", 500, "The engine failed inside the stream; try again.")
    lost.engine_error = error
    return lost


def not_joined(why: str) -> GatewayError:
    return GatewayError(
        "upstream",
        TRUNCATED,
        502,
        f"The engine failed inside the stream, and another one could not go on from there ({why}); try again.",
    )


def first_byte_timeout(timeout_s: float) -> GatewayError:
    return GatewayError(
        "upstream",
        "first_byte_timeout",
        504,
        f"The engine sent nothing within {timeout_s:g} s of the request; try again when it is less busy, or ask the "
        "operator to raise `timeouts.first_byte_s`.",
    )


def chunk_gap_timeout(timeout_s: float) -> GatewayError:
    return GatewayError(
        "upstream",
        "chunk_gap_timeout",
        504,
        f"The engine's response stalled for more than {timeout_s:g} s "
        "(`timeouts.chunk_gap_s`); send the request again.",
    )


def total_timeout(timeout_s: float) -> GatewayError:
    return GatewayError(
        "upstream",
        "total_timeout",
        504,
        f"The response was not complete within {timeout_s:g} s of the request; ask for fewer tokens, or ask the "
        "operator to raise `timeouts.total_s`.",
    )
