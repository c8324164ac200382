"""The line that tells how a run is going, on standard error.

On a terminal it is rewritten in place twice a second; elsewhere a plain line appears every 5 s. It measures
nothing: what it shows is taken from records that are kept anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TextIO

from protocol.records import RequestRecord

_WINDOW_NS = 10_000_000_000
_TERMINAL_EVERY_S = 0.5
_PLAIN_EVERY_S = 5.0
_REMEMBERED = 10_000
"""Of more first tokens in 10 s, the latest."""


class Progress:
    """Counts finished requests and keeps the TTFTs of the last 10 s."""

    def __init__(self, scheduled: int) -> None:
        self._scheduled = scheduled
        self._failed = 0
        self._ttft: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)

    def finished(self, record: RequestRecord) -> None:
        """Notes a finished request; TTFT counts from the intended time."""
        if record.outcome != "ok":
            self._failed += 1
        if record.first_token_ns is not None:
            self._ttft.append((record.first_token_ns, record.first_token_ns - record.intended_ns))

    def line(self, *, now_ns: int, sent: int, in_flight: int) -> str:
        """The state at `now_ns` of the run. Percentiles are nearest-rank, of first tokens of the last 10 s."""
        recent = sorted(ttft_ns for at_ns, ttft_ns in self._ttft if at_ns >= now_ns - _WINDOW_NS)
        ttft = "-"
        if recent:
            p50, p99 = (recent[-(-len(recent) * share // 100) - 1] / 1e6 for share in (50, 99))
            ttft = f"{p50:.1f}/{p99:.1f} ms"
        return (
            f"{max(0, now_ns) / 1e9:6.1f} s  sent {sent}/{self._scheduled}  in flight {in_flight}"
            f"  TTFT p50/p99 {ttft}  failed {self._failed}"
        )


class Ticker:
    """Prints lines to a stream, or to none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty()

    async def run(self, line: Callable[[], str]) -> None:
        """Shows what `line` returns, again and again until cancelled."""
        while self._stream is not None:
            await asyncio.sleep(_TERMINAL_EVERY_S if self._terminal else _PLAIN_EVERY_S)
            self._write(f"\r\x1b[K{line()}" if self._terminal else f"{line()}\n")

    def end(self, line: str) -> None:
        """Shows the last line and leaves it standing."""
        self._write(f"\r\x1b[K{line}\n" if self._terminal else f"{line}\n")

    def print(self, text: str) -> None:
        """A line of its own."""
        self._write(f"{text}\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(text)
            self._stream.flush()
