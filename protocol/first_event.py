"""Whether a stream that HTTP calls a success begins with an error, as those of vLLM and SGLang do under load.

Hides the four shapes of such an event (engines' `error`, SGLang's flat one, Anthropic's `event: error`,
`response.failed`) and how each says which HTTP status it should have had. It never waits: the caller brings what
has arrived so far, and is told when that is not enough to know.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

from protocol.openai import ANTHROPIC_ERROR_TYPES, answer_of
from protocol.sse import SseParser

FIRST_EVENT_BYTES = 64 * 1024
"""A first event that is not complete after this many bytes of the stream is taken for an ordinary one."""


class NeedMore(enum.Enum):
    """The first event is not complete yet."""

    NEED_MORE = enum.auto()


NEED_MORE: Literal[NeedMore.NEED_MORE] = NeedMore.NEED_MORE


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """The error that a stream begins with."""

    status: int
    """What the HTTP status should have been, 400 to 599; 500 where the event does not say."""
    message: str
    kind: str | None
    """`type` of the error, or `code` where that is a name (`/v1/responses`)."""
    error: dict[str, object]
    """The error object as sent, fit for the `error` member of a body."""


_STATUS_BY_KIND = {kind: status for status, kind in ANTHROPIC_ERROR_TYPES.items()} | {"rate_limit_exceeded": 429}
_ERROR_STATUSES = range(400, 600)
_FAILURES = frozenset({b"error", b"response.failed"})


def first_event_error(data: bytes) -> ErrorInfo | NeedMore | None:
    """The error that a stream begins with, None when it begins with anything else.

    `data` is the stream from its first byte on, all of it that has arrived. NEED_MORE while its first event with data
    is incomplete (comments are none), at most up to FIRST_EVENT_BYTES.
    """
    if data[:5] == b"data:" and b"\n\n" in data and b'"error"' not in data:
        return None
    events = SseParser().feed(data[:FIRST_EVENT_BYTES])
    if not events:
        return NEED_MORE if len(data) < FIRST_EVENT_BYTES else None
    event = events[0]
    error = answer_of(event.data).error
    if error is None:
        if event.event not in _FAILURES:
            return None
        error = {"message": event.data.decode(errors="replace")}
    kind = _kind(error)
    status = _status(error.get("code"), kind)
    message = error.get("message")
    if not isinstance(message, str):
        message = "the engine gave no reason"
    return ErrorInfo(status=status, message=message, kind=kind, error=error)


def _kind(error: dict[str, object]) -> str | None:
    for kind in (error.get("type"), error.get("code")):
        # A flat event's `type` only says that it is an error.
        if isinstance(kind, str) and kind != "error":
            return kind
    return None


def _status(code: object, kind: str | None) -> int:
    if isinstance(code, str) and len(code) == 3 and code.isdecimal():
        code = int(code)
    if isinstance(code, int) and code in _ERROR_STATUSES:
        return code
    return _STATUS_BY_KIND.get(kind or "", 500)
