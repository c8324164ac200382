"""Waits until a point of the monotonic clock, to a tenth of a millisecond.

It hides Linux's timerfd. uvloop counts timers in whole milliseconds, which would round every step of a stand-in engine
(a few milliseconds long) and show in each measured gap between tokens; and a load generator that waited the last
millisecond out by looking at the clock would spend most of its time so.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class _ITimerSpec(ctypes.Structure):
    """struct itimerspec of timerfd_settime(2): interval, then first expiry, each (seconds, nanoseconds)."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Alarm:
    """One timer of one task; close it when done."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._rang = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._fd, self._ring)

    async def until(self, due_ns: int) -> None:
        """Return at `due_ns` of time.monotonic_ns(); at once, after giving way, when that is past."""
        if due_ns <= time.monotonic_ns():
            await asyncio.sleep(0)
            return
        self._rang.clear()
        spec = _ITimerSpec(0, 0, *divmod(due_ns, _NS_PER_S))
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime")
        await self._rang.wait()

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _ring(self) -> None:
        os.read(self._fd, 8)
        self._rang.set()
