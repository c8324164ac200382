"""Child processes of a command: started, waited for until they listen, and ended by their ids, whatever happens.

A child gets a session of its own, so that Ctrl-C reaches only the command, which then ends its children in
order; what a child prints goes to a file that an error can quote.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_LISTENING = re.compile(rb"listening on (http://\S+)")


class StartError(Exception):
    """A child did not come up; the message quotes the end of its log."""


@dataclass(kw_only=True)
class Child:
    """One running child. `url` is where it said that it listens."""

    name: str
    process: Process
    url: str
    reading: asyncio.Task[None]


@dataclass(kw_only=True)
class Processes:
    """`async with Processes(logs=...)`: children started inside are ended at its end, the last one first."""

    logs: Path
    stop_timeout_s: float = 10.0
    _children: list[Child] = field(default_factory=list)

    async def __aenter__(self) -> Processes:
        self.logs.mkdir(parents=True, exist_ok=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        """A cancellation meanwhile ends the patience with the children, never the ending."""
        ending = asyncio.create_task(self._end_all())
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            for child in self._children:
                _send(child.process, signal.SIGKILL)
            await ending
            raise

    async def start(self, name: str, command: Sequence[str], timeout_s: float = 60.0) -> Child:
        """Starts a child and waits for its `listening on URL` line. Raises StartError when none comes."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as errors:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=PIPE, stderr=errors, start_new_session=True
            )
        url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        reading = asyncio.create_task(self._read(process, log, url))
        child = Child(name=name, process=process, url="", reading=reading)
        self._children.append(child)
        try:
            async with asyncio.timeout(timeout_s):
                child.url = await url
        except TimeoutError:
            raise StartError(f"{name} did not listen within {timeout_s:g} s; its log is {log}") from None
        return child

    async def stop(self, child: Child) -> None:
        """Ends one child before the others, and waits until it is gone."""
        await self._end(child)
        self._children.remove(child)

    async def _read(self, process: Process, log: Path, url: asyncio.Future[str]) -> None:
        """Copies the child's output to its log, from the first line to the last."""
        assert process.stdout is not None
        with log.open("ab", buffering=0) as copy:
            async for line in process.stdout:
                copy.write(line)
                found = _LISTENING.search(line)
                if found and not url.done():
                    url.set_result(found[1].decode())
        status = await process.wait()
        if not url.done():
            last = log.read_text(errors="replace").strip().splitlines()[-3:]
            reason = "; ".join(last) or "it printed nothing"
            url.set_exception(StartError(f"{log.stem} ended with status {status}: {reason}"))

    async def _end_all(self) -> None:
        for child in reversed(self._children):
            await self._end(child)

    async def _end(self, child: Child) -> None:
        """SIGTERM, time to leave, SIGKILL."""
        _send(child.process, signal.SIGTERM)
        try:
            async with asyncio.timeout(self.stop_timeout_s):
                await child.process.wait()
        except TimeoutError:
            _send(child.process, signal.SIGKILL)
        # Not by awaiting it: whoever cancels this must not cancel the reading, which would leave the pipe full.
        await asyncio.wait([child.reading])


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # It is gone already.
        process.send_signal(number)
