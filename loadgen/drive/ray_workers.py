"""Workers on the machines of a Ray cluster: an actor on each starts the same worker process that a single machine runs.

Ray only places them and carries shares and records; nothing of it runs while requests are timed, but a question for the
state twice a second. Every machine needs the same version of weir. Imports ray, which is an extra.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError

from loadgen.drive.clock import Exchange, offset_of
from loadgen.drive.crew import Tell
from loadgen.drive.share import TELL_EVERY_S, Share
from loadgen.drive.tally import Tally
from loadgen.drive.worker import lost_worker, run_apart
from loadgen.plan.packed import pack
from loadgen.plan.schedule import Schedule
from loadgen.record import CHUNKS, REQUESTS
from protocol.records import ClockOffset, WorkerReport

_EXCHANGES = 30
_PLACING_TIMEOUT_S = 60.0
_DISTRIBUTION = "weir-llm"


class ClusterError(ValueError):
    """The cluster cannot do this run; the message says why and what to do."""


class _Actor:
    """One worker's host. Its methods run on the event loop of an asynchronous actor."""

    def __init__(self) -> None:
        self._stop = asyncio.Event()
        self._halt = asyncio.Event()
        self._tallies: list[Tally] = []

    async def version(self) -> str:
        return version(_DISTRIBUTION)

    async def clock(self) -> tuple[int, int]:
        taken_ns = time.monotonic_ns()
        return taken_ns, time.monotonic_ns()

    async def send(self, share: bytes, packed: bytes, requests: int) -> tuple[bytes, bytes, bytes]:
        """Its report, and the content of the two files of records."""
        with tempfile.TemporaryDirectory(prefix="weir-") as directory:
            there = msgspec.structs.replace(msgspec.json.decode(share, type=Share), directory=directory)
            report = await run_apart(
                there, packed, requests, stop=self._stop, halt=self._halt, tell=self._tallies.append
            )
            files = [Path(directory) / name for name in (REQUESTS, CHUNKS)]
            content = [file.read_bytes() if file.exists() else b"" for file in files]
            return msgspec.json.encode(report), content[0], content[1]

    async def told(self) -> list[bytes]:
        """What the worker has told since the last question."""
        tallies, self._tallies[:] = list(self._tallies), []
        return [msgspec.json.encode(tally) for tally in tallies]

    async def order(self, *, halt: bool) -> None:
        self._stop.set()
        if halt:
            self._halt.set()


class RayWorkers:
    """A crew that Ray has placed, with its clocks measured; see `place`."""

    apart = True

    def __init__(self, actors: Sequence[Any], clocks: Sequence[ClockOffset], *, owned: bool) -> None:
        self._actors = actors
        self._owned = owned
        self.clocks: list[ClockOffset | None] = list(clocks)
        self.names = [str(number) for number in range(len(actors))]

    def lead_s(self, requests: int) -> float:
        """For shares to travel and processes to start."""
        return 3.0 + 2e-5 * requests

    async def work(
        self, number: int, share: Share, requests: Schedule, stop: asyncio.Event, halt: asyncio.Event, tell: Tell
    ) -> WorkerReport:
        actor = self._actors[number]
        ordering = asyncio.create_task(_order(actor, stop, halt))
        telling = asyncio.create_task(_tell(actor, tell))
        try:
            answer = await actor.send.remote(msgspec.json.encode(share), pack(requests), len(requests))
        except RayError as error:
            why = str(error).strip().partition("\n")[0] or type(error).__name__
            return msgspec.structs.replace(lost_worker(share.name, len(requests), why), clock=self.clocks[number])
        finally:
            for task in (ordering, telling):
                task.cancel()
        report, *files = answer
        _write(Path(share.directory), files)
        return msgspec.structs.replace(msgspec.json.decode(report, type=WorkerReport), clock=self.clocks[number])

    async def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        if self._owned:
            await asyncio.to_thread(ray.shutdown)


def _write(directory: Path, files: list[bytes]) -> None:
    directory.mkdir(parents=True)
    for name, content in zip((REQUESTS, CHUNKS), files, strict=True):
        (directory / name).write_bytes(content)


async def place(address: str, workers: int | None) -> RayWorkers:
    """Workers on the cluster at `address`, spread over its machines, one each unless said otherwise.

    Raises ClusterError when they cannot be placed, or have another version of weir.
    """
    owned = not ray.is_initialized()
    if owned:
        await asyncio.to_thread(_connect, address)
    # What ray adds to a class, its types do not know.
    actor_type: Any = ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")(_Actor)
    actors = [actor_type.remote() for _ in range(workers or _machines())]
    crew = RayWorkers(actors, [], owned=owned)
    try:
        async with asyncio.timeout(_PLACING_TIMEOUT_S):
            versions = set(await asyncio.gather(*(actor.version.remote() for actor in actors)))
            crew.clocks = [await _clock(actor) for actor in actors]
    except TimeoutError:
        refused = (
            f"has no room for {len(actors)} workers of one CPU each within {_PLACING_TIMEOUT_S:g} s: start fewer with"
            " --workers"
        )
    except RayError as error:
        refused = f"cannot run weir: {str(error).strip()[-500:]}"
    else:
        others = sorted(versions - {version(_DISTRIBUTION)})
        if not others:
            return crew
        refused = f"has weir {', '.join(others)} and this is {version(_DISTRIBUTION)}: install one"
    await crew.close()
    raise ClusterError(f"the cluster at {address} {refused}")


def _machines() -> int:
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return sum(bool(node["Alive"]) for node in nodes)


def _connect(address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterError(f"no Ray cluster at {address}: {error}") from error


async def _clock(actor: Any) -> ClockOffset:
    exchanges = []
    for _ in range(_EXCHANGES):
        asked_ns = time.monotonic_ns()
        taken_ns, told_ns = await actor.clock.remote()
        exchanges.append(Exchange(asked_ns=asked_ns, taken_ns=taken_ns, told_ns=told_ns, heard_ns=time.monotonic_ns()))
    return offset_of(exchanges)


# Neither asks a second time when the actor is gone: its lost share says so.
async def _order(actor: Any, stop: asyncio.Event, halt: asyncio.Event) -> None:
    with suppress(RayError):
        await stop.wait()
        await actor.order.remote(halt=False)
        await halt.wait()
        await actor.order.remote(halt=True)


async def _tell(actor: Any, tell: Tell) -> None:
    with suppress(RayError):
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            for tally in await actor.told.remote():
                tell(msgspec.json.decode(tally, type=Tally))
