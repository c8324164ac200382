"""What a process tree costs, read from /proc: CPU time, peak memory; and how busy the whole host is.

Times are kernel ticks (1/CLK_TCK s). A tree is a process and all its living descendants; children that
ended and were waited for are counted in their parent (cutime, cstime). Linux only.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """One /proc/PID/stat: `ticks` is utime + stime + cutime + cstime."""

    pid: int
    parent: int
    ticks: int


def parse_stat(text: str) -> ProcessStat:
    """Fields as in proc(5). The name, field 2, may itself hold spaces and parentheses."""
    before, after = text.rsplit(")", 1)
    fields = after.split()
    return ProcessStat(pid=int(before.split(" ", 1)[0]), parent=int(fields[1]), ticks=sum(map(int, fields[11:15])))


def tree_of(stats: list[ProcessStat], root: int) -> list[ProcessStat]:
    """`root` and its descendants among `stats`; empty when `root` is not there."""
    children: dict[int, list[ProcessStat]] = {}
    for stat in stats:
        children.setdefault(stat.parent, []).append(stat)
    found = [stat for stat in stats if stat.pid == root]
    for stat in found:
        found.extend(children.get(stat.pid, []))
    return found


def read_all() -> list[ProcessStat]:
    """Every process there is."""
    stats = []
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                stats.append(parse_stat((entry / "stat").read_text(encoding="utf-8", errors="replace")))
    return stats


def read_tree(root: int) -> list[ProcessStat]:
    """The living tree below and with process `root`."""
    return tree_of(read_all(), root)


def tree_ticks(root: int) -> int:
    return sum(stat.ticks for stat in read_tree(root))


def reset_peak_rss(root: int) -> None:
    """Starts a new peak for every process of the tree (`clear_refs` 5, proc(5))."""
    for stat in read_tree(root):
        with suppress(FileNotFoundError, ProcessLookupError):
            (_PROC / str(stat.pid) / "clear_refs").write_text("5", encoding="ascii")


def peak_rss_bytes(root: int) -> int:
    """Sum of the peaks since `reset_peak_rss`; pages shared by several processes count in each."""
    return _status_bytes(root, "VmHWM:")


def rss_bytes(root: int) -> int:
    """Resident memory of the tree now; pages shared by several processes count in each."""
    return _status_bytes(root, "VmRSS:")


def _status_bytes(root: int, key: str) -> int:
    total_bytes = 0
    for stat in read_tree(root):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = (_PROC / str(stat.pid) / "status").read_text(encoding="utf-8", errors="replace")
            total_bytes += sum(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(key))
    return total_bytes


def parse_host_stat(text: str) -> int:
    """Busy ticks of all cores, from the first line of /proc/stat: all but idle, iowait and steal."""
    user, nice, system, _idle, _iowait, irq, softirq = map(int, text.split("\n", 1)[0].split()[1:8])
    return user + nice + system + irq + softirq


def host_ticks() -> int:
    return parse_host_stat((_PROC / "stat").read_text(encoding="ascii"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Ticks used so far: by the contestant (None: none or gone), by all of this comparison, by the whole host."""

    at_ns: int
    contestant: int | None
    ours: int
    host: int

    @classmethod
    def now(cls, pid: int | None) -> Usage:
        """`pid` is the root of the contestant's tree, which is part of this process's own."""
        stats = read_all()
        tree = tree_of(stats, pid) if pid else []
        return cls(
            at_ns=time.monotonic_ns(),
            contestant=sum(stat.ticks for stat in tree) if tree else None,
            ours=sum(stat.ticks for stat in tree_of(stats, os.getpid())),
            host=host_ticks(),
        )

    def foreign_s_since(self, before: Usage) -> float:
        """CPU time that processes outside this comparison took; rounding can make it slightly negative."""
        return ((self.host - before.host) - (self.ours - before.ours)) / TICKS_PER_S
