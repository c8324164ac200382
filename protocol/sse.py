"""Server-sent events (WHATWG HTML, "Interpreting an event stream"), one read at a time.

Hides line endings, comments, the byte order mark and where the reads were cut: the same bytes give the same
events, however they arrive. It never decodes text (values stay bytes, as sent) and never looks into `data`.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One dispatched event. `id` is the last id the stream has sent so far, None before the first."""

    event: bytes = b"message"
    data: bytes = b""
    id: bytes | None = None


class SseParser:
    """Incremental parser of one stream; its cost is linear in the bytes fed, for any size of line or read.

    `keep_bytes` bounds memory for an observer that need not read everything: of a longer line only that many
    bytes are kept, and of an event no further line once its data has reached it. Which events are dispatched
    does not change.
    """

    __slots__ = ("_data", "_data_bytes", "_event", "_id", "_keep", "_open", "_partial", "_skip_lf", "_started")

    def __init__(self, keep_bytes: int = sys.maxsize) -> None:
        self._keep = keep_bytes
        self._partial = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = b""
        self._id: bytes | None = None
        self._open = False
        self._started = False
        self._skip_lf = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """The events that this read completes."""
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            # A CR at the end of a read ends its line now; if an LF follows in the next read, it belongs to it.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        rest = lines.pop()
        events = self._take_lines(lines) if lines else []
        self._hold(rest)
        return events

    def close(self) -> bool:
        """True when the stream ended inside an event: after one of its fields, before its blank line."""
        rest = self._partial if self._started else self._partial.removeprefix(_BOM)
        return self._open or (len(rest) > 0 and not rest.startswith(b":"))

    @property
    def between_events(self) -> bool:
        """True when nothing of the bytes so far can change the meaning of the next ones."""
        return not (self._open or self._partial or self._skip_lf)

    def _take_lines(self, lines: list[bytes]) -> list[SseEvent]:
        if self._partial:
            self._hold(lines[0])
            lines[0] = bytes(self._partial)
            self._partial.clear()
        keep = self._keep
        if not self._started:
            self._started = True
            lines[0] = lines[0][:keep].removeprefix(_BOM)
        events: list[SseEvent] = []
        for line in lines:
            if line:
                self._take_field(line if len(line) <= keep else line[:keep])
            elif self._open:
                self._dispatch(events)
        return events

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if not name:
            return
        self._open = True
        value = value.removeprefix(b" ")
        if name == b"data":
            # The first line is taken whatever its length: it is what makes the event one that carries data.
            if self._data_bytes < self._keep:
                self._data.append(value)
                self._data_bytes += len(value) + 1
        elif name == b"event":
            self._event = value
        elif name == b"id" and b"\0" not in value:
            self._id = value

    def _dispatch(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._event or b"message", b"\n".join(self._data), self._id))
            self._data.clear()
            self._data_bytes = 0
        self._event = b""
        self._open = False

    def _hold(self, piece: bytes) -> None:
        room = self._keep - len(self._partial)
        self._partial += piece if len(piece) <= room else piece[:room]
