"""Reasons to distrust a run, each with its numbers and a remedy, and the verdict they add up to.

Pure checks of the records against the schedule and against each other. A failing system under test is a
finding, not an invalid run: failures warn that the percentiles describe the survivors. Only what makes the
measurement itself untrue is an error.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from loadgen.analyze.latency import NS_PER_S, ContentReads, seconds, send_lateness_ns, ttft_ns
from loadgen.analyze.stats import order_statistic, required_n
from loadgen.analyze.steady import is_stationary, steadiness
from loadgen.analyze.throughput import InFlight, time_in_flight_ns, window_of
from protocol.records import Manifest, RequestRecord, ScheduledRequest, ScheduleHeader, WorkerReport

LATE_SEND_LIMIT_S = 0.005
"""Highest P99 send lateness of a trustworthy client (bench-methods §F.3)."""
BUSY_LIMIT = 0.9
"""Share of its core from which on a client waits for itself: it is one thread."""
STALLED_LIMIT = 0.01
"""Share of a run that a client may be away from its event loop: beyond it no P99 is the system's."""
RESOLUTION_S = 0.001
"""P99 of the loop's lag above which a figure's error is worth telling."""
CAPACITY_SHARE = 0.5
"""Share of what the client can do above which queueing in it begins to show (bench-methods §B, row 16)."""
TOKEN_TOLERANCE = 0.005
"""Largest share of planned tokens by which a run may miss its plan (bench-methods §B, prompt length row)."""
LITTLE_TOLERANCE = 0.001
"""L against λW over a whole window (bench-methods §C, "sanity")."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One reason to distrust: `text` carries the numbers, `remedy` what to do about it."""

    kind: str
    severity: Literal["error", "warning"]
    text: str
    remedy: str


class Validity(msgspec.Struct, frozen=True, kw_only=True):
    """INVALID when any reason is an error."""

    verdict: Literal["VALID", "INVALID"]
    reasons: list[Reason]


class JoinCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many records found their partner by trace id; a duplicated id is ambiguous and pairs nothing."""

    pairs: int
    requests_without_gateway: int
    gateway_without_request: int
    unsent: int
    duplicate_requests: int
    duplicate_gateway: int
    outcomes_differ: int
    """Pairs where one side calls the request ok and the other does not."""
    bodies_differ: int
    """Pairs that both sides call ok, with different numbers of response body bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayView:
    """What the gateway's records add: by request index, the pool that answered and phase durations (ns)."""

    counts: JoinCounts
    pools: Mapping[int, str]
    phases_ns: Mapping[int, Mapping[str, int]]
    outside_ns: Mapping[int, int]
    """Time in flight that the client saw and the gateway did not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything a run left behind. `requests` have distinct indices; `reads` is keyed by them."""

    header: ScheduleHeader
    schedule: Sequence[ScheduledRequest]
    requests: Sequence[RequestRecord]
    reads: Mapping[int, ContentReads]
    manifest: Manifest | None
    """None when the run never got to write one."""
    gateway: GatewayView | None
    damage: Sequence[str]
    """What is wrong with the files themselves, in words."""


def judge(evidence: Evidence) -> Validity:
    """Every reason to distrust this run, errors first, and the verdict."""
    found = [reason for check in CHECKS if (reason := check(evidence)) is not None]
    found.sort(key=lambda reason: reason.severity != "error")
    invalid = any(reason.severity == "error" for reason in found)
    return Validity(verdict="INVALID" if invalid else "VALID", reasons=found)


def _damaged(evidence: Evidence) -> Reason | None:
    if not evidence.damage:
        return None
    return Reason(
        kind="damaged_files",
        severity="error",
        text="; ".join(evidence.damage),
        remedy="Restore the directory from its original, or run again.",
    )


def _interrupted(evidence: Evidence) -> Reason | None:
    if evidence.manifest is not None and evidence.manifest.status == "complete":
        return None
    how = "was killed before it wrote its manifest" if evidence.manifest is None else "was interrupted"
    return Reason(
        kind="interrupted",
        severity="error",
        text=f"The run {how}: {len(_succeeded(evidence)):,} of {len(evidence.schedule):,} scheduled requests succeeded "
        "until then.",
        remedy="Run it again to the end; figures below describe only the part that ran.",
    )


def _not_as_scheduled(evidence: Evidence) -> Reason | None:
    # In a closed loop the answers decide when a request is due.
    timed = evidence.header.concurrency is None
    plan = {s.index: (s.at_ns * timed, s.prompt_tokens, s.output_tokens) for s in evidence.schedule}
    done = {
        r.index: (r.intended_ns * timed, r.prompt_tokens_planned, r.output_tokens_planned) for r in evidence.requests
    }
    wrong = [index for index, what in done.items() if plan.get(index) != what]
    if not wrong:
        return None
    return Reason(
        kind="not_as_scheduled",
        severity="error",
        text=f"{len(wrong):,} records differ from the schedule in time or lengths, the first at index {wrong[0]:,}.",
        remedy="Use the schedule file that the run was made from.",
    )


def _not_all_sent(evidence: Evidence) -> Reason | None:
    sent = sum(1 for request in evidence.requests if request.sent_ns is not None)
    scheduled = len(evidence.schedule)
    if sent == scheduled:
        return None
    return Reason(
        kind="not_all_sent",
        severity="error",
        text=f"{sent:,} of {scheduled:,} scheduled requests were sent: the load offered was not the load planned.",
        remedy="Look for refused connections and for the limit on open files; let the run finish.",
    )


def _late_sends(evidence: Evidence) -> Reason | None:
    late = np.sort(seconds(evidence.requests, send_lateness_ns))
    if not len(late) or order_statistic(late, 0.99) <= LATE_SEND_LIMIT_S:
        return None
    over = int(np.count_nonzero(late > LATE_SEND_LIMIT_S))
    return Reason(
        kind="late_sends",
        severity="error",
        text=f"P99 of send lateness is {order_statistic(late, 0.99) * 1e3:,.1f} ms, over the limit of "
        f"{LATE_SEND_LIMIT_S * 1e3:g} ms; {over:,} of {len(late):,} sends were later than that. Worst "
        f"{late[-1] * 1e3:,.1f} ms.",
        remedy="Give the load generator a core of its own, or lower the rate.",
    )


def _lost_workers(evidence: Evidence) -> Reason | None:
    lost = [worker for worker in _workers(evidence) if worker.lost is not None]
    if not lost:
        return None
    return Reason(
        kind="lost_worker",
        severity="error",
        text="; ".join(f"worker {worker.name}, with {worker.requests:,} requests: {worker.lost}" for worker in lost)
        + ". The load offered was not the load planned.",
        remedy="Look at that machine's memory and logs, and run again.",
    )


def _client_saturated(evidence: Evidence) -> Reason | None:
    """Busy, held up, or kept from its CPU: by the client's own account, whatever was the cause."""
    found = [(worker.name, worker.health) for worker in _workers(evidence) if worker.health is not None]
    wrong = []
    for name, health in found:
        if health.cpu_s > BUSY_LIMIT * health.wall_s:
            wrong.append(f"worker {name} was busy for {health.cpu_s / health.wall_s:.0%} of the time")
        if health.loop_lag_p99_ns > LATE_SEND_LIMIT_S * NS_PER_S:
            wrong.append(f"worker {name} came {health.loop_lag_p99_ns / 1e6:,.1f} ms late to its reads at P99")
        elif health.stalled_s > STALLED_LIMIT * health.wall_s:
            wrong.append(
                f"worker {name} was away from its event loop {health.stalls:,} times, for {health.stalled_s:,.2f} of"
                f" {health.wall_s:,.0f} s"
            )
    if not wrong:
        return None
    return Reason(
        kind="client_saturated",
        severity="error",
        text="; ".join(wrong) + ": the load generator measured itself.",
        remedy="Give it a core of its own, more --workers, or less load.",
    )


def _client_stalls(evidence: Evidence) -> Reason | None:
    stalled = [request for request in evidence.requests if request.client_stall_ns]
    lags = [worker.health.loop_lag_p99_ns / NS_PER_S for worker in _workers(evidence) if worker.health is not None]
    if not stalled and max(lags, default=0.0) <= RESOLUTION_S:
        return None
    worst_ms = max((request.client_stall_ns for request in stalled), default=0) / 1e6
    return Reason(
        kind="client_stalls",
        severity="warning",
        text=f"{len(stalled):,} of {len(evidence.requests):,} requests were under way while the load generator did not "
        f"look for 5 ms or more, {worst_ms:,.0f} ms at worst; it was late to reads by "
        f"{max(lags, default=0.0) * 1e3:,.1f} ms at P99.",
        remedy="Distrust differences of that size; those requests have `client_stall_ns`.",
    )


def _near_capacity(evidence: Evidence) -> Reason | None:
    found = None if evidence.manifest is None else evidence.manifest.calibration
    if found is None or found.busiest_per_s <= CAPACITY_SHARE * found.capacity_per_s:
        return None
    return Reason(
        kind="near_capacity",
        severity="warning",
        text=f"The busiest second has {found.busiest_per_s:,.0f} requests for each worker, "
        f"{found.busiest_per_s / found.capacity_per_s:.0%} of the {found.capacity_per_s:,.0f} that one can do here.",
        remedy="Start more --workers.",
    )


def _workers(evidence: Evidence) -> list[WorkerReport]:
    return [] if evidence.manifest is None else evidence.manifest.workers


def _marks_out_of_order(evidence: Evidence) -> Reason | None:
    wrong = [request.index for request in evidence.requests if not _in_order(request)]
    if not wrong:
        return None
    return Reason(
        kind="marks_out_of_order",
        severity="error",
        text=f"{len(wrong):,} records have marks that run backwards, the first at index {wrong[0]:,}.",
        remedy="Report it as a defect of the load generator and keep the run directory.",
    )


def _in_order(request: RequestRecord) -> bool:
    marks = (
        request.intended_ns,
        request.dequeued_ns,
        request.connected_ns,
        request.secured_ns,
        request.sent_ns,
        request.first_byte_ns,
        request.headers_ns,
        request.first_token_ns,
        request.first_answer_ns,
        request.last_token_ns,
        request.end_ns,
    )
    present = [mark for mark in marks if mark is not None]
    return all(earlier <= later for earlier, later in itertools.pairwise(present))


def _prompt_tokens(evidence: Evidence) -> Reason | None:
    counted = [(r.prompt_tokens_planned, r.prompt_tokens) for r in evidence.requests]
    return _token_mismatch("prompt", counted, "Calibrate the chat template again and check the tokenizer.")


def _output_tokens(evidence: Evidence) -> Reason | None:
    counted = [(r.output_tokens_planned, r.output_tokens) for r in _succeeded(evidence)]
    return _token_mismatch(
        "output",
        counted,
        "Make the engine honour `ignore_eos` and check its context limit; arms that write different lengths "
        "do different work.",
    )


def _token_mismatch(side: str, counted: Iterable[tuple[int, int | None]], remedy: str) -> Reason | None:
    """Compares the sum of absolute differences, so that long and short requests cannot cancel out."""
    known = [(planned, actual) for planned, actual in counted if actual is not None]
    planned_sum = sum(planned for planned, _ in known)
    off_sum = sum(abs(actual - planned) for planned, actual in known)
    if off_sum <= TOKEN_TOLERANCE * planned_sum:
        return None
    off = sum(1 for planned, actual in known if actual != planned)
    return Reason(
        kind=f"{side}_tokens_differ",
        severity="error",
        text=f"{off:,} of {len(known):,} requests had another {side} length than planned, by {off_sum:,} of "
        f"{planned_sum:,} tokens in all; at most {TOKEN_TOLERANCE:.1%} is tolerated.",
        remedy=remedy,
    )


def _missing_usage(evidence: Evidence) -> Reason | None:
    succeeded = _succeeded(evidence)
    missing = sum(1 for r in succeeded if r.output_tokens is None or r.prompt_tokens is None)
    if not missing:
        return None
    return Reason(
        kind="missing_usage",
        severity="error" if missing > TOKEN_TOLERANCE * len(succeeded) else "warning",
        text=f"{missing:,} of {len(succeeded):,} successful responses reported no token usage: TPOT and "
        "tokens/s leave them out, and their lengths are unchecked.",
        remedy="Ask for `stream_options.include_usage`, and check that nothing on the way strips it.",
    )


def _truncated(evidence: Evidence) -> Reason | None:
    cut = sum(1 for request in evidence.requests if request.outcome == "truncated")
    if not cut:
        return None
    return Reason(
        kind="truncated_streams",
        severity="warning",
        text=f"{cut:,} of {len(evidence.schedule):,} responses broke off before their end.",
        remedy="Look at the engine's and the gateway's logs for these request ids.",
    )


def _failures(evidence: Evidence) -> Reason | None:
    counted = Counter(r.outcome for r in evidence.requests)
    failed = sum(counted[outcome] for outcome in ("refused", "error", "timeout", "cancelled"))
    succeeded, scheduled = counted["ok"], len(evidence.schedule)
    if scheduled and not succeeded:
        return Reason(
            kind="no_success",
            severity="error",
            text=f"None of {scheduled:,} scheduled requests succeeded: there is no latency to report.",
            remedy="Fix the cause shown in the error table and run again.",
        )
    if not failed:
        return None
    return Reason(
        kind="failures",
        severity="warning",
        text=f"{failed:,} of {scheduled:,} requests failed ({failed / scheduled:.2%}); latencies describe "
        f"the {succeeded:,} that succeeded. A system that rejects looks faster than it is.",
        remedy="Read latencies together with the error table.",
    )


def _few_samples(evidence: Evidence) -> Reason | None:
    n, need = len(seconds(evidence.requests, ttft_ns)), required_n(0.99)
    if not n or n >= need:
        return None
    return Reason(
        kind="few_samples",
        severity="warning",
        text=f"{n:,} requests received a token; a P99 needs {need} and is left out.",
        remedy="Run for longer.",
    )


def _littles_law(evidence: Evidence) -> Reason | None:
    """L, the in-flight integral per second, against λW, arrivals per second × mean time in flight.

    Over a whole window the two agree unless requests were lost without an end: those stay in L to the end of
    the window but have no W. Source: Little, Operations Research 9(3), 1961.
    """
    window = window_of(evidence.requests)
    if window is None:
        return None
    sent = [r for r in evidence.requests if r.sent_ns is not None]
    times_s = seconds(sent, time_in_flight_ns)
    in_flight = InFlight.of(sent, window.end_ns).mean(window)
    expected = len(sent) / window.seconds * float(times_s.mean())
    if abs(in_flight - expected) <= LITTLE_TOLERANCE * in_flight:
        return None
    return Reason(
        kind="littles_law",
        severity="error",
        text=f"{in_flight:,.2f} requests were in flight on average, but {len(sent) / window.seconds:,.2f} "
        f"sends/s × {times_s.mean():,.3f} s each make {expected:,.2f}: {len(sent) - len(times_s):,} sent "
        "requests have no end.",
        remedy="Distrust every figure of this run; look for requests the load generator lost.",
    )


def _not_steady(evidence: Evidence) -> Reason | None:
    """Only under a load that is the same at all times: what rises and falls with its load is no transient."""
    sent = [request.sent_ns for request in evidence.requests if request.sent_ns is not None]
    if not sent or not is_stationary(evidence.header.arrivals):
        return None
    found = steadiness(evidence.requests, evidence.reads, max(sent))
    if never := [each for each in found if each.never]:
        changes = ", ".join(f"{each.name} by {each.change:+.0%} of its mean" for each in never)
        return Reason(
            kind="not_steady",
            severity="error",
            text=f"The run never came to rest though its load stayed the same. From start to end changed: {changes}. "
            "Had it been longer or shorter, its percentiles would be others.",
            remedy="Lower the load until the system keeps up, or run for much longer.",
        )
    late = max((each for each in found if each.late), key=lambda each: each.settled_s, default=None)
    if late is None:
        return None
    return Reason(
        kind="transient",
        severity="warning",
        text=f"The first {late.settled_s:,.0f} of {late.run_s:,.0f} s are a start unlike the rest ({late.name}), and "
        "every figure includes them.",
        remedy="Run for longer, or read the figures as those of a system that has just been started.",
    )


def _unjoined(evidence: Evidence) -> Reason | None:
    if evidence.gateway is None:
        return None
    c = evidence.gateway.counts
    duplicates = c.duplicate_requests + c.duplicate_gateway
    if not (c.requests_without_gateway or c.gateway_without_request or duplicates or c.outcomes_differ):
        return None
    return Reason(
        kind="join_incomplete",
        severity="warning",
        text=f"{c.pairs:,} requests have their gateway record; {c.requests_without_gateway:,} sent requests "
        f"and {c.gateway_without_request:,} gateway records have no partner, {duplicates:,} share a trace "
        f"id, and {c.outcomes_differ:,} pairs disagree on whether the request succeeded.",
        remedy="Check that the gateway's record file covers the whole run; phase times describe pairs only.",
    )


def _bodies_differ(evidence: Evidence) -> Reason | None:
    if evidence.gateway is None or not evidence.gateway.counts.bodies_differ:
        return None
    c = evidence.gateway.counts
    return Reason(
        kind="bodies_differ",
        severity="error",
        text=f"In {c.bodies_differ:,} of {c.pairs:,} pairs the client received another number of body bytes than the "
        "gateway relayed.",
        remedy="Look for a proxy between the two, and for gateway records of another run.",
    )


def _succeeded(evidence: Evidence) -> list[RequestRecord]:
    return [request for request in evidence.requests if request.outcome == "ok"]


CHECKS: tuple[Callable[[Evidence], Reason | None], ...] = (
    _damaged,
    _interrupted,
    _not_as_scheduled,
    _lost_workers,
    _not_all_sent,
    _client_saturated,
    _late_sends,
    _marks_out_of_order,
    _prompt_tokens,
    _output_tokens,
    _missing_usage,
    _littles_law,
    _not_steady,
    _bodies_differ,
    _failures,
    _truncated,
    _few_samples,
    _client_stalls,
    _near_capacity,
    _unjoined,
)
"""Every check, most damaging first; each gives at most one reason."""
