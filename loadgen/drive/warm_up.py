"""Requests before a run, so that its first ones find the engine and everything before it warm. They count for nothing.

They are as long as requests of the schedule, of all its parts alike, and no text of theirs is in the schedule, nor in
the warm-up of another run: what they leave in a prefix cache is of no use to any request that is measured. Never looks
at their latency.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from hashlib import blake2b

import numpy as np

from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Client
from loadgen.drive.dispatch import Limit, OpenLoop
from loadgen.plan.schedule import Schedule
from loadgen.workload.texts import OUTSIDE_RUNS
from protocol.records import ChunkRecord, RequestRecord, ScheduledRequest

_AT_ONCE = 8
"""When the run has no limit of its own: engines prepare themselves for batches of several sizes."""


def warm_up_requests(schedule: Schedule, count: int, run_id: str) -> list[ScheduledRequest]:
    """So many requests with lengths from the first to the last of the schedule; none of an empty one."""
    if not len(schedule):
        return []
    places = np.linspace(0, len(schedule) - 1, count).astype(np.int64).tolist()
    return [
        ScheduledRequest(
            index=number,
            at_ns=0,
            prompt_tokens=int(schedule.prompt_tokens[place]),
            output_tokens=int(schedule.output_tokens[place]),
            segments=((_text_number(run_id, number), int(schedule.prompt_tokens[place])),),
        )
        for number, place in enumerate(places)
    ]


def _text_number(run_id: str, number: int) -> int:
    digest = blake2b(f"{run_id}-{number}".encode(), digest_size=8).digest()
    return OUTSIDE_RUNS | int.from_bytes(digest)


async def warm_up(
    client: Client,
    build: Callable[[ScheduledRequest], Outgoing],
    requests: list[ScheduledRequest],
    *,
    run_id: str,
    at_once: int | None,
    timeout_s: float,
    stop: asyncio.Event,
) -> list[RequestRecord]:
    """Sends `requests`, at most `at_once` at a time, and returns their records once all have ended.

    Offset 0 of the records is the start of the warm-up. `stop` ends it at once.
    """
    records: list[RequestRecord] = []

    def keep(record: RequestRecord, _: ChunkRecord | None) -> None:
        records.append(record)

    loop = OpenLoop(client, build=build, keep=keep, run_id=run_id, origin_ns=time.monotonic_ns(), timeout_s=timeout_s)
    limit = Limit(requests=at_once or _AT_ONCE, closed=True)
    await loop.run(requests, stop=stop, halt=stop, grace_s=0, limit=limit)
    return records
