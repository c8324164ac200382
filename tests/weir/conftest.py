"""Finds what a test started, however it was orphaned: by a mark in the environment, which every descendant inherits."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

import pytest

_VARIABLE = "WEIR_TEST_MARK"


@dataclass(frozen=True, slots=True)
class Marked:
    """Processes that were started from here on, by this one or by those."""

    mark: str

    def pids(self) -> list[int]:
        """Those that still run; one that only waits to be reaped does not."""
        return sorted(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit() and self._runs(path))

    def _runs(self, process: Path) -> bool:
        try:
            state = (process / "stat").read_text().rpartition(") ")[2][0]
            return state not in "ZX" and f"{_VARIABLE}={self.mark}".encode() in (process / "environ").read_bytes()
        except OSError:
            return False


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> Marked:
    mark = uuid.uuid4().hex
    monkeypatch.setenv(_VARIABLE, mark)
    return Marked(mark)
