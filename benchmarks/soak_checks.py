"""What must be true at the end of a soak: each check as a pure function of the evidence.

Reads no clock, opens nothing. A check says what it found in one line, whether it passed or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.faulty_engine import BEHAVIOURS, Stats
from benchmarks.soak_traffic import Sent
from protocol.records import GatewayRecord

MAX_GROWTH_BYTES = 6 * 1024 * 1024
"""RSS may grow by that much, fitted, over the second half. Measured at 32 clients: 12 MiB in the first two minutes,
while the collector's generations fill for the first time (gateway/app.py has it wait), and nothing afterwards."""

SPARE_FILES = 3
"""The health checks' own connections, one per endpoint that answers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """The gateway from outside: what it says of itself, and what the kernel says."""

    in_flight: dict[str, float]
    """Every gauge and ledger of requests in flight, by name."""
    records_dropped: float
    open_files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    sent: list[Sent]
    records: list[GatewayRecord]
    engine: Stats
    before: Gateway
    after: Gateway
    rss_bytes: list[int]
    """At equal intervals, while the traffic ran."""
    log: str
    exit_status: int | None
    """Of the gateway, after SIGTERM; None when it did not end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    title: str
    passed: bool
    found: str


def answered(evidence: Evidence) -> Check:
    """Every client that stayed got an answer in time; a good engine's came whole."""
    staying = [sent for sent in evidence.sent if sent.case.leave is None]
    hung = sum(sent.hung for sent in evidence.sent)
    unanswered = sum(sent.status is None for sent in staying)
    steady = [sent for sent in staying if sent.case.model == "steady"]
    broken = [sent for sent in steady if not (sent.whole and sent.status == 200)]
    crossed = sum(sent.crossed for sent in evidence.sent)
    first = f", the first {broken[0].request_id} ({broken[0].case.ask})" if broken else ""
    return Check(
        title="answers",
        passed=not (hung or unanswered or broken or crossed) and bool(steady),
        found=f"{len(staying)} clients stayed: {unanswered} without an answer; of {len(steady)} to good engines "
        f"{len(broken)} not whole{first}; {hung} hung, {crossed} crossed",
    )


def covered(evidence: Evidence) -> Check:
    """The run met what it is for: every behaviour of the engine, and clients that left in every phase of waiting."""
    left = Counter(filter(None, map(_left_in, evidence.records)))
    missed = sorted({*BEHAVIOURS} - {*evidence.engine.served} | {"receive", "connect", "first_byte", "relay"} - {*left})
    return Check(
        title="coverage",
        passed=not missed,
        found=f"{sum(evidence.engine.served.values())} requests at the engines; clients left in "
        + ", ".join(f"{phase} {count}" for phase, count in sorted(left.items()))
        + (f"; never met: {', '.join(missed)}" if missed else ""),
    )


def _left_in(record: GatewayRecord) -> str | None:
    """The phase in which the client left."""
    phases = [phase for phase in record.marks_ns if phase not in ("finish", "end")]
    return phases[-1] if record.outcome == "client_gone" and phases else None


def let_go(evidence: Evidence) -> Check:
    """Nothing is in flight: not by the gateway's ledgers, not by its metrics, not at the engines."""
    busy = {name: value for name, value in evidence.after.in_flight.items() if value}
    engine = evidence.engine
    return Check(
        title="in flight",
        passed=not busy and engine.at_work == 0 and bool(evidence.after.in_flight),
        found=f"{len(evidence.after.in_flight)} ledgers"
        + (f", not zero: {busy}" if busy else ", all zero")
        + f"; engines: {engine.at_work} still at work, {engine.cut} cut on the way",
    )


def recorded(evidence: Evidence) -> Check:
    """One record for each request whose head must have arrived, at most one for the others, none of anything else.

    A client that leaves with RST takes back what the gateway has not read yet, so its request may never have been.
    """
    counts = Counter(record.request_id for record in evidence.records)
    sure = {sent.request_id for sent in evidence.sent if sent.case.leave is None or not sent.case.rough}
    missing = sorted(sure - set(counts))
    strange = sorted(set(counts) - {sent.request_id for sent in evidence.sent})
    twice = sorted(request_id for request_id, count in counts.items() if count > 1)
    dropped = evidence.after.records_dropped
    return Check(
        title="records",
        passed=not (missing or strange or twice or dropped),
        found=f"{len(evidence.sent)} requests, {len(evidence.records)} records; missing {missing[:3] or 0}, "
        f"twice {twice[:3] or 0}, of nobody {strange[:3] or 0}, dropped {dropped:g}",
    )


def flat(evidence: Evidence) -> Check:
    """RSS does not grow over the second half: its straight line rises by less than MAX_GROWTH_BYTES."""
    half = np.array(evidence.rss_bytes[len(evidence.rss_bytes) // 2 :], np.float64)
    growth_bytes = float(np.polyfit(np.arange(half.size), half, 1)[0]) * half.size
    return Check(
        title="memory",
        passed=growth_bytes < MAX_GROWTH_BYTES,
        found=f"RSS {half[0] / 2**20:.1f} MiB at half time, {half[-1] / 2**20:.1f} MiB at the end, fitted growth "
        f"{growth_bytes / 2**20:+.2f} MiB, allowed {MAX_GROWTH_BYTES / 2**20:g}",
    )


def closed(evidence: Evidence) -> Check:
    """File descriptors are back to what they were before the traffic."""
    before, after = evidence.before.open_files, evidence.after.open_files
    return Check(
        title="open files",
        passed=after <= before + SPARE_FILES,
        found=f"{before} before, {after} after, allowed {SPARE_FILES} more",
    )


def sound(evidence: Evidence) -> Check:
    """No fault of the gateway's own is in its log, and it ends when it is told to."""
    faults = [line for line in evidence.log.splitlines() if "Traceback" in line or "failed inside" in line]
    return Check(
        title="log and exit",
        passed=not faults and evidence.exit_status == 0,
        found=f"{len(faults)} faults of its own"
        + "".join(f" ({line})" for line in faults[:1])
        + f", exit status {evidence.exit_status}",
    )


CHECKS: tuple[Callable[[Evidence], Check], ...] = (answered, covered, let_go, recorded, flat, closed, sound)
