"""Joins what the client saw with what the gateway saw, one to one by trace id.

Every record of either side ends up in exactly one place of the result; none is dropped and none is paired on
a guess. Pure: records in, records out.
"""

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from protocol.records import PHASES, GatewayRecord, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One request as both sides saw it."""

    request: RequestRecord
    gateway: GatewayRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Where each record went, in input order.

    A trace id that one side holds twice is ambiguous: all its records, of both sides, are duplicates.
    `unsent` requests never reached a gateway, so they take no part in the matching; they may share an empty id.
    """

    pairs: tuple[Pair, ...]
    requests_without_gateway: tuple[RequestRecord, ...]
    gateway_without_request: tuple[GatewayRecord, ...]
    unsent: tuple[RequestRecord, ...]
    duplicate_requests: tuple[RequestRecord, ...]
    duplicate_gateway: tuple[GatewayRecord, ...]


def join(requests: Iterable[RequestRecord], gateway: Iterable[GatewayRecord]) -> Joined:
    """Pairs the records of one run by trace id."""
    requests, gateway = tuple(requests), tuple(gateway)
    sent = [r for r in requests if r.sent_ns is not None]
    repeated = _repeated(r.trace_id for r in sent) | _repeated(g.trace_id for g in gateway)
    partner = {g.trace_id: g for g in gateway if g.trace_id not in repeated}
    single = [r for r in sent if r.trace_id not in repeated]
    asked = {r.trace_id for r in single}
    return Joined(
        pairs=tuple(Pair(request=r, gateway=partner[r.trace_id]) for r in single if r.trace_id in partner),
        requests_without_gateway=tuple(r for r in single if r.trace_id not in partner),
        gateway_without_request=tuple(g for g in partner.values() if g.trace_id not in asked),
        unsent=tuple(r for r in requests if r.sent_ns is None),
        duplicate_requests=tuple(r for r in sent if r.trace_id in repeated),
        duplicate_gateway=tuple(g for g in gateway if g.trace_id in repeated),
    )


def _repeated(trace_ids: Iterable[str]) -> set[str]:
    return {trace_id for trace_id, times in Counter(trace_ids).items() if times > 1}


def phase_durations_ns(record: GatewayRecord) -> dict[str, int]:
    """Time spent in each phase that was entered, ns, in the order entered.

    A phase lasts until the next mark, so the durations add up to `end` − `receive`. A phase without a later
    mark has no duration and is left out.
    """
    known = {mark: at for mark, at in record.marks_ns.items() if mark in PHASES or mark == "end"}
    order = {mark: rank for rank, mark in enumerate((*PHASES, "end"))}
    marks = sorted(known.items(), key=lambda mark: (mark[1], order[mark[0]]))
    return {phase: later - at for (phase, at), (_, later) in itertools.pairwise(marks) if phase != "end"}


def outside_gateway_ns(pair: Pair) -> int | None:
    """Client's send-to-end time minus the gateway's receive-to-finish time: network, kernel and the client.

    Counts to the start of `finish`, whose work is done after the last byte has left. None without both ends.
    """
    request, marks = pair.request, pair.gateway.marks_ns
    finished = marks.get("finish", marks.get("end"))
    if request.sent_ns is None or request.end_ns is None or finished is None or "receive" not in marks:
        return None
    return (request.end_ns - request.sent_ns) - (finished - marks["receive"])
