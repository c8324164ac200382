"""The observer of a relayed event stream: counts, times, and at the end what the engine said about itself.

It sees every read of a response body and must cost about a microsecond for the ordinary one, so nothing is
decoded or parsed as JSON before `result`. A read that holds whole one-line LF events is counted by its bytes;
anything else (a cut event, CR, comments, named events) and everything up to the first token goes through the
exact parser. It never changes, delays or holds back a byte, and its memory per stream is bounded.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

import msgspec

from protocol.openai import Usage, answer_of
from protocol.sse import SseEvent, SseParser

EVENT_KEEP_BYTES = 64 * 1024
"""Of one event at most about this much is kept; a longer one is counted, but not read by `result`."""

EVENTS_KEPT = 8
"""`result` reads the first event and this many at the end: finish, usage and `[DONE]` chunks of several choices."""

_TERMINAL_EVENTS = frozenset(
    {b"message_stop", b"response.completed", b"response.incomplete", b"response.failed", b"response.cancelled"}
)
"""Names of the last event of `/v1/messages` and `/v1/responses`, which know no `[DONE]`."""

# A non-empty JSON string under a key that carries model output: chat `content` and tool-call `arguments`; completions
# `text`; Anthropic `text` and `partial_json`; Responses `delta`; and the reasoning before an answer, as `reasoning`
# (vLLM), `reasoning_content` (SGLang), `thinking` (Anthropic). Inside a JSON string the quotes are escaped, so text
# never matches.
_ANSWER_KEYS = rb"content|text|arguments|partial_json|delta"
_REASONING_KEYS = rb"reasoning|reasoning_content|thinking"
_ANSWER_TEXT = re.compile(rb'"(?:%b)"\s*:\s*"[^"]' % _ANSWER_KEYS)
_TOKEN_TEXT = re.compile(rb'"(?:%b|%b)"\s*:\s*"[^"]' % (_ANSWER_KEYS, _REASONING_KEYS))


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamResult:
    """What a finished stream said, from its first and last events."""

    events: int
    done: bool
    """`[DONE]` or the family's own last event was seen; true of a failed stream as well, see `error`."""
    finish_reason: str | None
    """Of the last choice that finished."""
    usage: Usage | None
    """The last one seen."""
    error: dict[str, object] | None
    """The engine's error object, when it ended the stream with one."""
    cut: bool
    """The bytes ended inside an event."""

    @property
    def complete(self) -> bool:
        """False for a truncated stream: cut inside an event, or without any sign of its end."""
        return not self.cut and (self.done or self.finish_reason is not None)


class StreamWatch:
    """Watches one stream. Times are the caller's `now_ns` of the read that brought the byte; None until then."""

    __slots__ = (
        "_first",
        "_gap_max_ns",
        "_ordinary",
        "_parser",
        "_tail",
        "bytes",
        "events",
        "first_byte_ns",
        "first_token_ns",
        "last_byte_ns",
        "reads",
    )

    def __init__(self) -> None:
        self.reads = 0
        self.bytes = 0
        self.events = 0
        self.first_byte_ns: int | None = None
        self.first_token_ns: int | None = None
        self.last_byte_ns: int | None = None
        self._gap_max_ns = -1
        self._parser = SseParser(EVENT_KEEP_BYTES)
        self._first: SseEvent | None = None
        # Parsed events, or reads of whole one-line LF `data:` events (bytes, at most EVENTS_KEPT in one).
        self._tail: deque[bytes | SseEvent] = deque(maxlen=EVENTS_KEPT)
        # The first token was seen and the last read ended between two events.
        self._ordinary = False

    @property
    def gap_max_ns(self) -> int | None:
        """Longest time between two reads; None before the second."""
        return self._gap_max_ns if self.reads > 1 else None

    def feed(self, data: bytes, now_ns: int) -> None:
        """Notes one read; an empty one says nothing and is not counted."""
        size = len(data)
        if not size:
            return
        last_ns = self.last_byte_ns
        if last_ns is None:
            self.first_byte_ns = now_ns
        elif now_ns - last_ns > self._gap_max_ns:
            self._gap_max_ns = now_ns - last_ns
        self.last_byte_ns = now_ns
        self.reads += 1
        self.bytes += size
        if (
            self._ordinary
            and data[:5] == b"data:"
            and data[-2:] == b"\n\n"
            and 13 not in data  # a carriage return; found as a number, it costs a sixth
            and size <= EVENT_KEEP_BYTES
        ):
            newlines = data.count(b"\n")
            if newlines == 2:
                self.events += 1
                self._tail.append(data)
                return
            # Every newline belongs to a pair that is followed by `data:` or by the end of the read.
            events = data.count(b"\n\ndata:") + 1
            if newlines == 2 * events:
                self.events += events
                self._tail.append(_last_events(data) if events > EVENTS_KEPT else data)
                return
        self._feed_exactly(data, now_ns)

    def result(self) -> StreamResult:
        """What the stream said; call it once, after the last read. Unreadable events say nothing."""
        done = False
        finish_reason: str | None = None
        usage: Usage | None = None
        error: dict[str, object] | None = None
        for event in self._kept():
            done = done or event.data == b"[DONE]" or event.event in _TERMINAL_EVENTS
            answer = answer_of(event.data)
            finish_reason = answer.finish_reason or finish_reason
            usage = _newer(usage, answer.usage)
            error = answer.error or error
        return StreamResult(
            events=self.events,
            done=done,
            finish_reason=finish_reason,
            usage=usage,
            error=error,
            cut=self._parser.close(),
        )

    def _feed_exactly(self, data: bytes, now_ns: int) -> None:
        for event in self._parser.feed(data):
            self.events += 1
            self._tail.append(event)
            if self._first is None:
                self._first = event
            if self.first_token_ns is None and carries_token(event):
                self.first_token_ns = now_ns
        self._ordinary = self.first_token_ns is not None and self._parser.between_events

    def _kept(self) -> list[SseEvent]:
        """The first event and the last ones, in order; in a short stream the first comes twice."""
        last: list[SseEvent] = []
        for entry in self._tail:
            if isinstance(entry, SseEvent):
                last.append(entry)
            else:
                last += [SseEvent(data=line[5:].removeprefix(b" ")) for line in entry[:-2].split(b"\n\n")]
        first = [] if self._first is None else [self._first]
        return first + last[-EVENTS_KEPT:]


def carries_token(event: SseEvent) -> bool:
    """Whether an event brings model output: non-empty text, reasoning or tool-call arguments, in any family."""
    return not _repeats(event) and _TOKEN_TEXT.search(event.data) is not None


def carries_answer(event: SseEvent) -> bool:
    """Whether an event brings a part of the answer itself: text or tool-call arguments, but no reasoning."""
    return answer_start(event) is not None


def answer_start(event: SseEvent) -> int | None:
    """Where in `data` the first text of the answer begins; None when there is none."""
    if _repeats(event) or event.event.startswith(b"response.reasoning"):
        return None
    match = _ANSWER_TEXT.search(event.data)
    return match and match.end() - 1


def _repeats(event: SseEvent) -> bool:
    """The other events of `/v1/responses` repeat instructions, input and finished text under the same keys."""
    return event.event.startswith(b"response.") and not event.event.endswith(b".delta")


def _last_events(data: bytes) -> bytes:
    """The last `EVENTS_KEPT` of more one-line LF events, so that a large read is not kept alive whole."""
    end = len(data) - 2
    for _ in range(EVENTS_KEPT):
        end = data.rindex(b"\n\n", 0, end)
    return data[end + 2 :]


def _newer(older: Usage | None, newer: Usage | None) -> Usage | None:
    """The newer usage; Anthropic's last one may omit the input, which `message_start` has told."""
    if newer is None or older is None:
        return newer or older
    if newer.prompt_tokens:
        return newer
    return msgspec.structs.replace(newer, prompt_tokens=older.prompt_tokens, cached_tokens=older.cached_tokens)
