"""One worker's share of a run: sends its part of the schedule and writes down what became of it.

The same whether it is the whole run in one process, one of several, or a part of it on another machine. It never looks
at what other workers do: they have the schedule and the origin of time in common, and nothing else.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Client, parse_target
from loadgen.drive.dispatch import Keep, Limit, OpenLoop
from loadgen.drive.health import HealthWatch, punctually
from loadgen.drive.tally import Counting, Tally
from loadgen.plan.schedule import Schedule
from loadgen.record import RunWriter
from loadgen.workload.texts import Vocabulary
from protocol.records import ChunkRecord, RequestRecord, WorkerReport

TELL_EVERY_S = 0.5
_COLLECT_AFTER = 20_000
"""Containers more than there were, in place of 700: some seconds at 200 requests a second."""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a worker needs but the requests themselves."""

    name: str
    url: str
    model: str
    run_id: str
    origin_ns: int
    """Offset 0 of every record, on the monotonic clock of the worker's machine."""
    template_tokens: int
    timeout_s: float
    grace_s: float
    in_flight: int | None
    """Most requests at once, of this worker; None: no limit."""
    closed: bool
    vocabulary: Vocabulary
    """What prompts are made of."""
    token_ids: bool
    """Prompts are sent as ids in place of text."""
    directory: str
    """Where its records go: new, or empty."""
    api_key: str | None


def shares_of(limit: int | None, workers: int) -> list[int | None]:
    """A limit of requests at once, divided over workers as evenly as it goes."""
    if limit is None:
        return [None] * workers
    return [limit // workers + (number < limit % workers) for number in range(workers)]


async def send(
    share: Share,
    requests: Schedule,
    *,
    stop: asyncio.Event,
    halt: asyncio.Event,
    tell: Callable[[Tally], None],
) -> WorkerReport:
    """Sends `requests` and returns how it went; their records are in the share's directory then.

    `tell` gets the state twice a second and once at the end. Raises OSError when the target's name has no address.
    """
    target = parse_target(share.url)
    client = await Client.open(target)
    chat = ChatRequests(
        target,
        model=share.model,
        run_id=share.run_id,
        vocabulary=share.vocabulary,
        token_ids=share.token_ids,
        api_key=share.api_key,
    )
    chat.template_tokens = share.template_tokens
    writer = RunWriter(Path(share.directory))
    counting = Counting()
    watch = HealthWatch()
    loop = OpenLoop(
        client,
        build=chat.streamed,
        keep=_keeper(writer, counting, watch, share.origin_ns),
        run_id=share.run_id,
        origin_ns=share.origin_ns,
        timeout_s=share.timeout_s,
    )

    def tell_now() -> None:
        tell(counting.tell(sent=loop.sent, in_flight=loop.in_flight))

    telling = asyncio.create_task(_repeatedly(tell_now))
    limit = None if share.in_flight is None else Limit(requests=share.in_flight, closed=share.closed)
    try:
        with punctually() as scheduling, _seldom_collecting():
            async with watch:
                await loop.run(requests, stop=stop, halt=halt, grace_s=share.grace_s, limit=limit)
    finally:
        telling.cancel()
        writer.close()
        client.close()
    tell_now()
    return WorkerReport(
        name=share.name,
        requests=len(requests),
        outcomes=dict(writer.outcomes),
        scheduling=scheduling,
        health=watch.health(),
    )


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Keeps the garbage collector from holding up reads: each of its whole passes takes milliseconds.

    What exists by now lives until the end and need not be looked at; what comes is lists of numbers and bytes, which
    are freed without it.
    """
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _keeper(writer: RunWriter, counting: Counting, watch: HealthWatch, origin_ns: int) -> Keep:
    """Writes a finished request down, marked with the client's own stall if there was one meanwhile."""

    def keep(record: RequestRecord, chunks: ChunkRecord | None) -> None:
        if watch.stalls and record.sent_ns is not None and record.end_ns is not None:
            stalled_ns = watch.stall_within(origin_ns + record.sent_ns, origin_ns + record.end_ns)
            record = msgspec.structs.replace(record, client_stall_ns=stalled_ns)
        writer.add(record, chunks)
        counting.finished(record)

    return keep


async def _repeatedly(tell: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(TELL_EVERY_S)
        tell()
