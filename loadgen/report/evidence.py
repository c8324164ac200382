"""Reads a run directory into the `Evidence` that the analysis works on.

Hides what a run that was killed or damaged looks like: whatever is readable is read, and what is not becomes a
sentence in `Evidence.damage`. Never changes a file.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from loadgen import record
from loadgen.analyze.latency import ContentReads, content_reads
from loadgen.analyze.validity import Evidence, GatewayView, JoinCounts
from loadgen.join import Joined, join, outside_gateway_ns, phase_durations_ns
from loadgen.plan.schedule import Schedule
from loadgen.plan.schedule_file import read_schedule
from protocol.records import GatewayRecord, Manifest, RequestRecord

_Item = TypeVar("_Item")


def read_evidence(run: Path, damage: list[str]) -> Evidence:
    """Everything in the directory of a run; `damage` is what a check of its seal has already found.

    Raises ValueError when there is no readable schedule: without it nothing else can be judged.
    """
    schedule = _schedule(run)
    damage = list(damage)
    parts = record.parts(run)
    requests = _distinct(readable(record.read_requests, parts, damage), damage)
    reads = readable(_reads, parts, damage)
    before = {request.trace_id for request in readable(record.read_warm_up, [run], damage)}
    gateway = [seen for seen in readable(record.read_gateway, [run], damage) if seen.trace_id not in before]
    return Evidence(
        header=schedule.header,
        schedule=schedule,
        requests=requests,
        reads=dict(reads),
        manifest=_manifest(run),
        gateway=_view(requests, gateway) if (run / record.GATEWAY).exists() else None,
        damage=tuple(damage),
    )


def _schedule(run: Path) -> Schedule:
    try:
        return read_schedule(run / record.SCHEDULE)
    except OSError as error:
        raise ValueError(f"{run} is no run directory: {record.SCHEDULE} cannot be read ({error.strerror})") from error


def _manifest(run: Path) -> Manifest | None:
    try:
        return record.read_manifest(run)
    except ValueError:
        # Either the run never wrote one, or the check of the seal has already said what is wrong with it.
        return None


def readable(items: Callable[[Path], Iterator[_Item]], directories: Iterable[Path], damage: list[str]) -> list[_Item]:
    """Items of each directory, up to the first that cannot be read, which is noted in `damage`."""
    found: list[_Item] = []
    for directory in directories:
        try:
            found.extend(items(directory))
        except (ValueError, OSError) as error:
            damage.append(str(error))
    return found


def _reads(directory: Path) -> Iterator[tuple[int, ContentReads]]:
    # Converted one by one: as Python integers the reads of a long run would take gigabytes.
    return ((chunks.index, content_reads(chunks)) for chunks in record.read_chunks(directory))


def _distinct(requests: list[RequestRecord], damage: list[str]) -> list[RequestRecord]:
    """Requests in order of their index, the first record of each."""
    first = {request.index: request for request in reversed(requests)}
    if len(first) < len(requests):
        damage.append(f"{record.REQUESTS}: {len(requests) - len(first):,} records repeat an index and are left out")
    return sorted(first.values(), key=lambda request: request.index)


def _view(requests: list[RequestRecord], gateway: list[GatewayRecord]) -> GatewayView:
    joined = join(requests, gateway)
    outside = {pair.request.index: outside_gateway_ns(pair) for pair in joined.pairs}
    return GatewayView(
        counts=_counts(joined),
        pools={pair.request.index: pair.gateway.pool for pair in joined.pairs if pair.gateway.pool},
        phases_ns={pair.request.index: phase_durations_ns(pair.gateway) for pair in joined.pairs},
        outside_ns={index: spent for index, spent in outside.items() if spent is not None},
    )


def _counts(joined: Joined) -> JoinCounts:
    succeeded = [(p.request.outcome == "ok", p.gateway.outcome == "ok") for p in joined.pairs]
    return JoinCounts(
        pairs=len(joined.pairs),
        requests_without_gateway=len(joined.requests_without_gateway),
        gateway_without_request=len(joined.gateway_without_request),
        unsent=len(joined.unsent),
        duplicate_requests=len(joined.duplicate_requests),
        duplicate_gateway=len(joined.duplicate_gateway),
        outcomes_differ=sum(client != gateway for client, gateway in succeeded),
        bodies_differ=sum(
            client and gateway and pair.request.response_bytes != pair.gateway.response_bytes
            for (client, gateway), pair in zip(succeeded, joined.pairs, strict=True)
        ),
    )
