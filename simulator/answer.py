"""What both kinds need to know of an answer to render it; how it looks on the wire is theirs.

Values only, and the two encodings of JSON that both engines use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from simulator.intake import Generation, Rejected, Rules

EndReason = Literal["stop", "length", "abort"]

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """None when the engine was not told to report it."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished choice. `stop` is the stop string that ended it."""

    text: str
    tokens: int
    reason: EndReason
    stop: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every chunk of an answer repeats. `ids` has one id a choice; vLLM's are all the same."""

    ids: tuple[str, ...]
    chat: bool
    model: str
    created_s: int
    fingerprint: str
    include_usage: bool


class Stream(Protocol):
    """The events of one streamed answer, each a whole `data:` event."""

    def opening(self, index: int, usage: Usage | None) -> list[bytes]:
        """Sent once a choice, when its first token exists."""

    def delta(self, index: int, text: str, usage: Usage | None) -> bytes:
        """Text of one or more tokens."""

    def closing(self, index: int, text: str, reason: EndReason, stop: str | None, usage: Usage | None) -> list[bytes]:
        """The last text of a choice, maybe empty, and how it ended."""

    def ending(self, usage: Usage) -> list[bytes]:
        """After the last choice; `usage` is sent if it was asked for."""


class Wire(Protocol):
    """What one engine kind looks like over HTTP; `wire_vllm` and `wire_sglang` are its two modules."""

    @property
    def RULES(self) -> Rules: ...
    @property
    def ROUTES(self) -> dict[str, dict[str, str]]:
        """path → method → name of a handler in `simulator/server.py`."""

    @property
    def POLLS_DISCONNECT(self) -> bool:
        """A client that leaves an answer that is not a stream is noticed by polling only."""

    @property
    def HEADERS_WITH_FIRST_TOKEN(self) -> bool:
        """A stream's response head is held back until there is something to send."""

    def answer_ids(self, generation: Generation, header_id: str | None, choices: int) -> tuple[str, ...]: ...
    def stream(self, head: Head) -> Stream: ...
    def body(self, head: Head, choices: list[Choice], usage: Usage) -> bytes: ...
    def rejection(self, rejected: Rejected) -> tuple[int, bytes]: ...
    def stream_rejection(self, rejected: Rejected) -> bytes:
        """The one event of a stream that was refused after its head."""


def compact(value: object) -> bytes:
    """JSON without spaces, as both engines write answers."""
    return msgspec.json.encode(value)


def spaced(value: object) -> bytes:
    """JSON with a space after each separator, as both engines write errors inside a stream."""
    return json.dumps(value).encode()
