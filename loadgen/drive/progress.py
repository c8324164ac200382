"""How a run is going, on standard error: a live table on a terminal, elsewhere a plain line every 5 s.

It measures nothing: what it shows is what workers tell. The table is drawn by a process that does not send.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from loadgen.drive.tally import Tally

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_WINDOW_NS = 10_000_000_000
_TERMINAL_EVERY_S = 0.5
_PLAIN_EVERY_S = 5.0
_REMEMBERED = 10_000
"""Of more first tokens or sends in 10 s, the latest."""


class Board:
    """What all workers have told so far. Times are on the clock of the run, whose offset 0 is `origin_ns`."""

    def __init__(self, *, scheduled: int, duration_ns: int, origin_ns: int) -> None:
        self._scheduled = scheduled
        self._duration_ns = duration_ns
        self._origin_ns = origin_ns
        self._tallies: dict[str, Tally] = {}
        self._ttft_ns: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED)
        self._late_ns: deque[int] = deque(maxlen=_REMEMBERED)

    def note(self, worker: str, tally: Tally) -> None:
        """Takes one worker's state in place of its last."""
        self._tallies[worker] = tally
        self._ttft_ns += tally.ttft_ns
        self._late_ns += tally.late_ns

    def figures(self, now_ns: int) -> dict[str, str]:
        """What is shown at `now_ns`, by name. Percentiles are nearest-rank; TTFT is that of the last 10 s."""
        sent, in_flight, failed = (
            sum(getattr(tally, name) for tally in self._tallies.values()) for name in ("sent", "in_flight", "failed")
        )
        recent = [ttft_ns for at_ns, ttft_ns in self._ttft_ns if at_ns >= now_ns - _WINDOW_NS]
        return {
            "elapsed": f"{max(0, now_ns) / 1e9:.1f} s",
            "left": self._left(now_ns, sent),
            "sent": f"{sent}/{self._scheduled}",
            "in flight": str(in_flight),
            "failed": str(failed),
            "TTFT p50/p99": _percentiles_ms(recent, 1),
            "sent late p50/p99": _percentiles_ms(list(self._late_ns), 2),
        }

    def now_ns(self) -> int:
        """On the clock of the run."""
        return time.monotonic_ns() - self._origin_ns

    def _left(self, now_ns: int, sent: int) -> str:
        """By the schedule; a closed loop's by the pace so far."""
        if self._duration_ns:
            return f"{max(0, self._duration_ns - max(0, now_ns)) / 1e9:.0f} s"
        return f"{max(0, now_ns) * (self._scheduled - sent) / sent / 1e9:.0f} s" if sent else "-"


def _percentiles_ms(values_ns: list[int], digits: int) -> str:
    if not values_ns:
        return "-"
    ordered = sorted(values_ns)
    p50, p99 = (ordered[-(-len(ordered) * share // 100) - 1] / 1e6 for share in (50, 99))
    return f"{p50:.{digits}f}/{p99:.{digits}f} ms"


class Screen:
    """Shows a board on a stream, or on none."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._terminal = stream is not None and stream.isatty()

    async def run(self, board: Board) -> None:
        """Shows the board again and again until cancelled, and its last state then."""
        with ExitStack() as stack:
            live = stack.enter_context(self._live()) if self._terminal else None
            try:
                while True:
                    if live is not None:
                        live.update(_table(board), refresh=True)
                    await asyncio.sleep(_TERMINAL_EVERY_S if self._terminal else _PLAIN_EVERY_S)
                    if live is None:
                        self._print_figures(board)
            finally:
                if live is not None:
                    live.update(_table(board), refresh=True)
                else:
                    self._print_figures(board)

    def print(self, text: str) -> None:
        """A line of its own."""
        if self._stream is not None:
            self._stream.write(f"{text}\n")
            self._stream.flush()

    def _print_figures(self, board: Board) -> None:
        self.print("  ".join(f"{name} {value}" for name, value in board.figures(board.now_ns()).items()))

    def _live(self) -> Live:
        # Imported where there is a terminal to draw on: it is as large as all the rest of a worker.
        from rich.console import Console
        from rich.live import Live

        return Live(console=Console(file=self._stream), auto_refresh=False)


def _table(board: Board) -> Table:
    from rich.table import Table

    table = Table(show_header=True, header_style="bold", box=None, padding=(0, 2, 0, 0))
    figures = board.figures(board.now_ns())
    for name in figures:
        table.add_column(name, justify="right")
    table.add_row(*figures.values())
    return table
