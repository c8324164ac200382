"""The two parts of a stream that one engine began and another carried on, joined into one.

Hides what the client has received of a stream, and how a second stream's events become the rest of the first's. Text
is joined, and nothing else: whatever makes a join uncertain is reported as such and never guessed. JSON is read for
each event, and only whole events go to the client, so this is for routes that ask for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from protocol.openai import answer_of
from protocol.sse import SseEvent, SseParser

MAX_EVENT_BYTES = 256 * 1024
"""An event is held until it is whole; a longer one flows on, and its stream cannot be continued any more."""

_blank_lines = re.compile(rb"\n\r?\n").finditer


class Counts(msgspec.Struct, frozen=True):
    """A usage object, as far as two of them are added."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: dict[str, object] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: dict[str, object] | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice]
    id: str | None = None
    created: int | None = None
    model: str | None = None
    usage: Counts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """One event of text: what joining needs of it, and the whole of it."""

    chunk: dict[str, object]
    parts: _Chunk
    text: str
    role: bool
    finish_reason: str | None


def _piece(event: SseEvent) -> _Piece | str:
    """The event, or what it is instead of one that can be joined."""
    try:
        chunk = msgspec.json.decode(event.data, type=dict[str, object])
        if chunk.get("error") is not None:
            return "an error"
        parts = msgspec.convert(chunk, _Chunk)
    except (msgspec.MsgspecError, RecursionError):
        return "an event that is no chunk of text"
    if event.event != b"message" or len(parts.choices) > 1:
        return "an event that is no chunk of one text"
    if not parts.choices:
        return _Piece(chunk=chunk, parts=parts, text="", role=False, finish_reason=None)
    [choice] = parts.choices
    said = choice.delta if choice.delta is not None else {"content": choice.text}
    text = said.get("content") or ""
    other = [name for name, value in said.items() if name not in ("role", "content") and value not in (None, "", [])]
    if other or choice.index != 0 or not isinstance(text, str):
        return f"more than text in an answer: {', '.join(other) or 'parts or choices'}"
    if choice.finish_reason == "abort":
        return "an answer that its engine was told to abort"
    return _Piece(chunk=chunk, parts=parts, text=text, role=bool(said.get("role")), finish_reason=choice.finish_reason)


class Transcript:
    """What the client of one stream has received, its text included. The joined rest goes through it as well."""

    __slots__ = (
        "_held",
        "_parser",
        "_text",
        "doubt",
        "finished",
        "identity",
        "lost",
        "role_sent",
        "text_events",
        "usage",
    )

    def __init__(self) -> None:
        self._held = b""
        self._parser = SseParser()
        self._text: list[str] = []
        self.doubt: str | None = None
        """What makes this stream one that cannot be continued. From then on bytes flow through as they are."""
        self.lost: dict[str, object] | None = None
        """The engine's error object, if it ended the stream with one that is not the request's fault; the event itself
        is not let through. `resume` before the joined rest comes."""
        self.finished = False
        """A finish reason or `[DONE]` was there: nothing is left to say."""
        self.identity: dict[str, object] = {}
        """`id`, `created` and `model` of the first chunk, as far as it has them."""
        self.role_sent = False
        self.text_events = 0
        self.usage: Counts | None = None
        """The last one seen."""

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._text)

    def feed(self, data: bytes) -> bytes:
        """What the client gets now: whole events only, since one that is cut off could not be carried on.

        What is still held when a stream dies is not to be sent.
        """
        if self.doubt is not None:
            return data
        if self.lost is not None:
            return b""
        searched = max(0, len(self._held) - 2)
        data = self._held + data
        end = 0
        for blank in _blank_lines(data, searched):
            for event in self._parser.feed(data[end : blank.end()]):
                self._note(event)
            if self.doubt is not None:
                return data
            if self.lost is not None:
                return data[:end]
            end = blank.end()
        if len(data) - end > MAX_EVENT_BYTES:
            self.doubt = "an event too long to be held"
            return data
        self._held = data[end:]
        return data[:end]

    def resume(self) -> None:
        """Forgets what the lost engine left unfinished; what comes next is the joined rest."""
        self._held = b""
        self.lost = None

    def _note(self, event: SseEvent) -> None:
        if event.data == b"[DONE]":
            self.finished = True
            return
        piece = _piece(event)
        if isinstance(piece, str):
            error = answer_of(event.data).error
            code = error.get("code") if error is not None else None
            if error is None or (isinstance(code, int) and code < 500):
                self.doubt = piece
            else:
                self.lost = error
            return
        parts = piece.parts
        if not self.identity:
            known = {"id": parts.id, "created": parts.created, "model": parts.model}
            self.identity = {name: value for name, value in known.items() if value is not None}
        self.role_sent = self.role_sent or piece.role
        self.finished = self.finished or piece.finish_reason is not None
        self.usage = parts.usage or self.usage
        if piece.text:
            self._text.append(piece.text)
            self.text_events += 1


class Joiner:
    """Turns the stream of a Continuation into the rest of the client's: same identity, no text twice, usage of both.

    `swallow` is the text that comes again. `prefilled` says that the engine was given the text before it; otherwise
    the engine says the whole answer again, and its usage is that of the whole.
    """

    __slots__ = (
        "_before",
        "_identity",
        "_parser",
        "_prefilled",
        "_repeated_tokens",
        "_role_sent",
        "_swallow",
        "failure",
    )

    def __init__(self, transcript: Transcript, *, swallow: str, prefilled: bool) -> None:
        self._identity = transcript.identity
        self._role_sent = transcript.role_sent
        self._swallow = swallow
        self._prefilled = prefilled
        self._repeated_tokens = int(prefilled and swallow != "")
        self._before = transcript.usage, transcript.text_events
        self._parser = SseParser()
        self.failure: str | None = None
        """What makes the join uncertain, once something does; all that came out before is sound."""

    def feed(self, data: bytes) -> bytes:
        """More of the client's stream; empty from the failure on."""
        out = bytearray()
        for event in self._parser.feed(data):
            if self.failure is None:
                out += self._join(event)
        return bytes(out)

    def _join(self, event: SseEvent) -> bytes:
        piece = None if event.data == b"[DONE]" else _piece(event)
        if isinstance(piece, str):
            return self._fail(piece)
        text = "" if piece is None else self._unheard(piece.text)
        if text is None:
            return self._fail("a different answer")
        if self._swallow and (piece is None or piece.finish_reason is not None):
            return self._fail("an answer that ends before what the client has")
        if piece is None:
            return b"data: [DONE]\n\n"
        says = text or piece.finish_reason is not None or (piece.role and not self._role_sent)
        if piece.parts.choices and not says:
            return b""
        event_data = msgspec.json.encode(self._rewritten(piece, text))
        self._role_sent = self._role_sent or piece.role
        return b"data: " + event_data + b"\n\n"

    def _fail(self, what: str) -> bytes:
        self.failure = what
        return b""

    def _unheard(self, text: str) -> str | None:
        """The part of the text that the client does not have; None when it contradicts what the client has."""
        known = min(len(text), len(self._swallow))
        if text[:known] != self._swallow[:known]:
            return None
        self._swallow = self._swallow[known:]
        return text[known:]

    def _rewritten(self, piece: _Piece, text: str) -> dict[str, object]:
        chunk = piece.chunk | self._identity
        if piece.parts.choices:
            chunk["choices"] = [self._choice(chunk["choices"], piece.parts.choices[0].delta, text)]
        if piece.parts.usage is not None and self._prefilled:
            chunk["usage"] = msgspec.convert(chunk["usage"], dict[str, object]) | self._counts(piece.parts.usage)
        return chunk

    def _choice(self, choices: object, delta: dict[str, object] | None, text: str) -> dict[str, object]:
        [choice] = msgspec.convert(choices, list[dict[str, object]])
        if delta is None:
            return choice | {"text": text}
        if self._role_sent:
            delta = {name: value for name, value in delta.items() if name != "role"}
        if delta.get("content"):
            delta = delta | {"content": text}
        return choice | {"delta": delta}

    def _counts(self, rest: Counts) -> dict[str, object]:
        """Usage of the whole: what was prefilled is prompt to the engine of the rest, and completion to the client.

        White space that comes again is taken for one token.
        """
        before, text_events = self._before
        if before is None:
            prefilled_tokens = text_events - self._repeated_tokens
            before = Counts(max(0, rest.prompt_tokens - prefilled_tokens), text_events)
        completion_tokens = before.completion_tokens + rest.completion_tokens - self._repeated_tokens
        counts: dict[str, object] = {
            "prompt_tokens": before.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": before.prompt_tokens + completion_tokens,
        }
        if rest.prompt_tokens_details is not None:
            counts["prompt_tokens_details"] = before.prompt_tokens_details
        return counts
