"""Several tries of the same thing at once: the first good one wins, the others are cancelled and waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Generic, Self, TypeVar

Result = TypeVar("Result")


class Race(Generic[Result]):
    """`async with Race(good) as tries:` — at the end of the block, however it ends, no try is left running."""

    def __init__(self, good: Callable[[Result], bool]) -> None:
        self._good = good
        self._running: set[asyncio.Task[Result]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self._running:
            one.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def start(self, one: Coroutine[None, None, Result]) -> None:
        """Begins a try. One that raises ends the race with its exception."""
        self._running.add(asyncio.get_running_loop().create_task(one))

    async def winner(self, timeout_s: float | None = None) -> Result | None:
        """The first good result, or the last bad one when no try is left; None when `timeout_s` is over before."""
        result: Result | None = None
        while self._running:
            done, self._running = await asyncio.wait(
                self._running, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                return None
            for one in done:
                result = one.result()
                if self._good(result):
                    return result
        return result
