"""What the reads of one response body say: tokens in each, first and last, the engine's own words, a digest.

The ordinary body, whole one-line events of one shape, costs about a microsecond a read: the bytes before an event's
text are the same from event to event, so they are found once and then compared. Anything else goes through the exact
parser. Both give the same figures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from protocol.sse import SseEvent, SseParser
from protocol.stream import StreamResult, StreamWatch, answer_start, carries_answer, carries_token

_QUOTE = 34


class BodyReads:
    """Takes a body in slices of reads, in order."""

    def __init__(self) -> None:
        self.content_events: list[int] = []
        """How many events with model output each read completed."""
        self.first_token_ns: int | None = None
        self.first_answer_ns: int | None = None
        self.last_token_ns: int | None = None
        self._watch = StreamWatch()
        self._parser = SseParser()
        self._sha256 = hashlib.sha256()
        self._before_text = b""
        """How the last event with a part of the answer began, up to the text itself; none has been seen when empty."""

    def feed(self, stamps_ns: Sequence[int], reads: Sequence[bytes]) -> None:
        """Takes some reads, each with the time when it came."""
        joined = b"".join(reads)
        self._sha256.update(joined)
        self._feed_watch(stamps_ns, reads)
        events = _plain_events(joined) if self._parser.between_events else None
        if events is None:
            for stamp_ns, data in zip(stamps_ns, reads, strict=True):
                self._note(stamp_ns, self._parser.feed(data))
        else:
            self._note_plain(stamps_ns, reads, events)

    def result(self) -> StreamResult:
        """What the stream said about itself; call it once, after the last read."""
        return self._watch.result()

    def sha256(self) -> str | None:
        """Of the whole body, hex; None without one."""
        return self._sha256.hexdigest() if self.content_events else None

    def _feed_watch(self, stamps_ns: Sequence[int], reads: Sequence[bytes]) -> None:
        """Reads are told apart up to the first token only; its gaps and counts of reads are not used here."""
        for position, data in enumerate(reads):
            if self._watch.first_token_ns is not None:
                self._watch.feed(b"".join(reads[position:]), stamps_ns[-1])
                return
            self._watch.feed(data, stamps_ns[position])

    def _note(self, stamp_ns: int, events: list[SseEvent]) -> None:
        tokens = sum(map(carries_token, events))
        self.content_events.append(tokens)
        if tokens:
            self._note_tokens(stamp_ns)
            if self.first_answer_ns is None and any(map(carries_answer, events)):
                self.first_answer_ns = stamp_ns

    def _note_tokens(self, stamp_ns: int) -> None:
        if self.first_token_ns is None:
            self.first_token_ns = stamp_ns
        self.last_token_ns = stamp_ns

    def _note_plain(self, stamps_ns: Sequence[int], reads: Sequence[bytes], events: list[bytes]) -> None:
        """An event counts for the read that its end is in."""
        tokens_at = self._token_ends(events)
        due = next(tokens_at, None)
        end = 0
        for stamp_ns, data in zip(stamps_ns, reads, strict=True):
            end += len(data)
            tokens = 0
            while due is not None and due[0] <= end:
                tokens += 1
                if due[1] and self.first_answer_ns is None:
                    self.first_answer_ns = stamp_ns
                due = next(tokens_at, None)
            self.content_events.append(tokens)
            if tokens:
                self._note_tokens(stamp_ns)

    def _token_ends(self, events: list[bytes]) -> Iterator[tuple[int, bool]]:
        """Where each event with model output ends within the slice, and whether it is a part of the answer."""
        end = 0
        before = self._before_text
        for data in events:
            end += len(data) + 2
            if before and data.startswith(before) and data[len(before)] != _QUOTE:
                yield end, True
                continue
            event = SseEvent(data=data[5:])
            start = answer_start(event)
            if start is not None:
                self._before_text = before = data[: 5 + start]
                yield end, True
            elif carries_token(event):
                yield end, False


def _plain_events(joined: bytes) -> list[bytes] | None:
    """The events of a body that is whole one-line `data:` events and nothing else, each without its blank line."""
    if not joined.startswith(b"data:") or not joined.endswith(b"\n\n") or b"\r" in joined:
        return None
    events = joined[:-2].split(b"\n\n")
    ordinary = joined.count(b"\n") == 2 * len(events) and joined.count(b"\n\ndata:") == len(events) - 1
    return events if ordinary else None
