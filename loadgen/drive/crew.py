"""Who sends: this process, processes of this machine, or processes of many machines. One interface for all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from loadgen.drive.share import Share, send
from loadgen.drive.tally import Tally
from loadgen.drive.worker import run_apart
from loadgen.plan.packed import pack
from loadgen.plan.schedule import Schedule
from loadgen.record import part
from protocol.records import ClockOffset, WorkerReport

Tell = Callable[[Tally], None]


class Crew(Protocol):
    """Workers that are ready; number k of n sends every n-th request from the k-th on."""

    @property
    def apart(self) -> bool:
        """Whether each worker keeps its records in a directory of its own, to be gathered at the end."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """One for each worker."""
        ...

    @property
    def clocks(self) -> Sequence[ClockOffset | None]:
        """Each worker's clock; None where it is this machine's."""
        ...

    def lead_s(self, requests: int) -> float:
        """How long before offset 0 the shares of so many requests have to be given out."""
        ...

    async def work(
        self, number: int, share: Share, requests: Schedule, stop: asyncio.Event, halt: asyncio.Event, tell: Tell
    ) -> WorkerReport:
        """Sends one worker's part. A worker that dies is reported as lost, and nothing is raised."""
        ...

    async def close(self) -> None: ...


class ThisProcess:
    """One worker, here. For when nothing else has to be done meanwhile."""

    apart = False
    names = ("0",)
    clocks = (None,)

    def lead_s(self, requests: int) -> float:
        return 0.1

    async def work(
        self, number: int, share: Share, requests: Schedule, stop: asyncio.Event, halt: asyncio.Event, tell: Tell
    ) -> WorkerReport:
        return await send(share, requests, stop=stop, halt=halt, tell=tell)

    async def close(self) -> None:
        pass


class WorkerProcesses:
    """Workers in processes of their own on this machine; they share its clock."""

    apart = True

    def __init__(self, workers: int) -> None:
        self.names = [str(number) for number in range(workers)]
        self.clocks: list[ClockOffset | None] = [None] * workers

    def lead_s(self, requests: int) -> float:
        """A worker needs 0.4 s to start, and 2 us a request to take them over."""
        return 1.0 + 4e-6 * requests

    async def work(
        self, number: int, share: Share, requests: Schedule, stop: asyncio.Event, halt: asyncio.Event, tell: Tell
    ) -> WorkerReport:
        return await run_apart(share, pack(requests), len(requests), stop=stop, halt=halt, tell=tell)

    async def close(self) -> None:
        pass


def one_worker(*, terminal: bool) -> Crew:
    """For a run that needs no more. Apart where a table is drawn meanwhile, which must not hold up what sends."""
    return WorkerProcesses(1) if terminal else ThisProcess()


def part_directory(directory: Path, crew: Crew, number: int) -> Path:
    """Where a worker's records go."""
    return part(directory, crew.names[number]) if crew.apart else directory
