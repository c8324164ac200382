"""Writes one JSON line per finished request. Never delays a request and never fails one.

Lines wait in memory for at most `FLUSH_S` or `FLUSH_BYTES`, whichever comes first. When the file cannot be
written (disk full, gone), lines are dropped and counted, and the log says so once until writing works again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from protocol.records import GatewayRecord, encode_line

FLUSH_S = 0.25
FLUSH_BYTES = 256 * 1024

_log = logging.getLogger("weir.records")


class RecordWriter:
    """Appends to `path`; with None it keeps nothing. Opening fails loudly, so that a typo is seen at start."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0) if path is not None else None
        self._lines: list[bytes] = []
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failing = False
        self.dropped = 0

    def write(self, record: GatewayRecord) -> None:
        if self._file is None:
            return
        line = encode_line(record)
        self._lines.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes >= FLUSH_BYTES:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Hands the waiting lines to the operating system."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._file is None or not self._lines:
            return
        data = b"".join(self._lines)
        self._lines, self._waiting_bytes = [], 0
        written = 0
        try:
            while written < len(data):
                written += self._file.write(data[written:])
            self._failing = False
        except OSError as error:
            self._drop(data, written)
            if not self._failing:
                _log.error("records cannot be written to %s: %s; they are being dropped", self._path, error)
            self._failing = True

    def _drop(self, data: bytes, written: int) -> None:
        """Counts the lines that are not whole in the file, and takes a torn one out: it would spoil the next."""
        assert self._file is not None
        whole = data.rfind(b"\n", 0, written) + 1
        self.dropped += data.count(b"\n", whole)
        if written > whole:
            with contextlib.suppress(OSError):
                self._file.truncate(self._file.tell() - (written - whole))

    def close(self) -> None:
        """Writes out what waits; records that come later are not kept."""
        self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None
