"""Usage on every stream: asks the engine for it, and hides the one event that the client did not ask for.

Hides how `stream_options` is written into a body that is otherwise sent as received, and how the usage event is
found wherever the reads were cut. Every other byte of request and stream stays as it was; only the beginning of
an event that may still be the usage event is held back.
"""

from __future__ import annotations

import re

import msgspec

from protocol.openai import RequestPeek

HOLD_BYTES = 4096
"""Longest line that is held back or taken for the usage event; those of vLLM and SGLang have about 300 bytes."""


class _Asked(msgspec.Struct):
    stream_options: msgspec.Raw


_asked_decoder = msgspec.json.Decoder(_Asked)


def inject_usage(body: bytes, peek: RequestPeek) -> bytes | None:
    """The body of a chat or completions request with `stream_options.include_usage` set; None where it stays as it is.

    It stays when the request does not stream or asks for usage itself. The option goes in before the last brace, as a
    second `stream_options` where the client sent one: that one's members are repeated in it, and of equal names the
    last counts in every parser that engines use (json, orjson, jiter, msgspec, pydantic, nlohmann). `peek` must be
    that of `body`.

    What still differs for the client once `UsageStrip` has taken the usage event out:
    * vLLM puts `system_fingerprint` on the usage event instead of on each choice's last event, both endpoints;
    * vLLM heeds `continuous_usage_stats` only together with `include_usage`, so a client that sent the first
      alone now finds a `usage` object in every event;
    * an engine told to report usage to everybody (`--enable-force-include-usage`,
      `--stream-response-default-include-usage`) would have sent the usage event unasked.
    SGLang's events are the same either way; its completions carry `"usage":null` with and without.
    """
    if not peek.stream or peek.include_usage:
        return None
    option = b'"include_usage":true}'
    if peek.stream_options:
        members = bytes(_asked_decoder.decode(body).stream_options)[:-1]
        option = members + (b"," if members[1:].strip() else b"") + option
    else:
        option = b"{" + option
    view, end = memoryview(body), body.rindex(b"}")
    return b"".join((view[:end], b',"stream_options":', option, view[end:]))


class _Chunk(msgspec.Struct):
    choices: list[msgspec.Raw]
    usage: dict[str, msgspec.Raw]


_chunk_decoder = msgspec.json.Decoder(_Chunk)

# What rules out a line, however it goes on: no object, or a list of choices with something in it.
_no_object = re.compile(rb"data:\s*[^{\s]").match
_with_choices = re.compile(rb'"choices"\s*:\s*\[[^\]]').search

# A regular expression, because `in` takes twice as long for two bytes.
_empty_list = re.compile(rb"\[\]").search

_BLANK = (b"\n", b"\r\n", b"\r")


class UsageStrip:
    """Takes the usage event out of one stream: the one whose `choices` is `[]` and whose `usage` is an object.

    It is recognised as engines send it, one `data:` line of at most HOLD_BYTES and its blank line, with any line ends.
    All other bytes come out of the `feed` that took them, a read of whole ordinary events as the same object; only a
    line that may still turn out to be that event waits for its rest.
    """

    __slots__ = ("_clear", "_fresh", "_held", "_in_line", "_lf")

    def __init__(self) -> None:
        # Nothing is pending and the next byte begins an event.
        self._clear = True
        # The current event has had no field yet; a comment is none.
        self._fresh = True
        self._held = b""
        # What has been let through ends inside a line.
        self._in_line = False
        # The last read ended with a CR: an LF that comes next belongs to it, and goes out as this.
        self._lf: bytes | None = None

    def feed(self, data: bytes) -> bytes:
        """What the client may see now; may be empty."""
        if self._clear and data[-2:] == b"\n\n" and _empty_list(data) is None:
            return data
        return self._filter(data) if data else b""

    def close(self) -> bytes:
        """What is still held at the end of the stream: an event that was never finished."""
        held, self._held = self._held, b""
        return held

    def _filter(self, data: bytes) -> bytes:
        begin = b""
        if self._lf is not None and data[:1] == b"\n":
            begin, data = self._lf, data[1:]
        lines = (self._held + data).splitlines(keepends=True)
        self._held = b""
        out = [self._take(line) for line in lines]
        cr = bool(lines) and lines[-1][-1:] == b"\r" and not self._held
        self._lf = (b"\n" if out[-1] else b"") if cr else None
        self._clear = self._fresh and not (self._held or self._in_line or cr)
        return begin + b"".join(out)

    def _take(self, line: bytes) -> bytes:
        """What goes out because of this line; `_held` is a whole line that only a blank one makes the usage event."""
        if self._in_line:
            out = line
        elif self._fresh and not self._held and _may_be_usage(line):
            self._held = line
            return b""
        else:
            held, self._held = self._held, b""
            out = held + line
            if line in _BLANK:
                self._fresh = True
                return b"" if held and _is_usage(held) else out
            self._fresh = self._fresh and not held and line[:1] == b":"
        self._in_line = line[-1:] not in (b"\n", b"\r")
        return out


def _may_be_usage(line: bytes) -> bool:
    """False only if no continuation of the line is a usage event, so the answer does not depend on where it is cut."""
    if len(line) > HOLD_BYTES:
        return False
    if line[:5] != b"data:":
        return b"data:".startswith(line)
    return _no_object(line) is None and _with_choices(line) is None


def _is_usage(line: bytes) -> bool:
    # Without the first test, a list written as `[ ]` would be found here and missed by the short way of `feed`.
    if b"[]" not in line:
        return False
    try:
        return not _chunk_decoder.decode(line[5:]).choices
    except (msgspec.DecodeError, RecursionError):
        return False
