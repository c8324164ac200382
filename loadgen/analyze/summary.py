"""Everything a report shows of one run, computed once: `summary.json`.

Pure: `Evidence` in, `Summary` out. Its size is bounded by the number of arms, not of requests, and whoever
renders it has nothing left to compute.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from loadgen.analyze import latency, throughput
from loadgen.analyze.latency import NS_PER_S, ContentReads, Definition, Latencies
from loadgen.analyze.series import Curve, Scatter, Series, curve, scatter, series
from loadgen.analyze.stats import INTERVAL_LABEL, Distribution, Values, describe
from loadgen.analyze.throughput import InFlight, Rates
from loadgen.analyze.validity import Evidence, GatewayView, JoinCounts, Validity, judge
from protocol.records import PHASES, RequestRecord

NO_ARM = "no arm stated"
"""Requests of which neither a response header nor a gateway record names the pool, above all refused ones."""
ALL = "all requests"
"""Stands for `NO_ARM` when no request of the run has an arm."""
OTHER_ARMS = "other arms"
MAX_ARMS = 8
"""Arms shown by name; it bounds the summary, and a chart's palette has no more distinguishable colours."""
BUCKET_EDGES_TOKENS = (128, 512, 1024, 2048, 4096)
"""Upper bounds of the prompt-length buckets. Fixed, so that two runs split alike; steps of 2–4× follow the
prefill work, and 2048 is the usual prefill budget of one engine step."""
MAX_FAILURE_KINDS = 12
MAX_ERROR_CHARS = 200
TO_ENGINE_PHASES = ("receive", "admit", "route", "connect", "send")


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the tables; `arm` or `bucket` is None where the cell spans all of them."""

    arm: str | None
    bucket: str | None
    scheduled: int
    sent: int
    outcomes: dict[str, int]
    """Over scheduled requests; `no record` counts those the run left no record of."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """Sums that engines reported for successful requests."""
    rates: Rates
    latencies: Latencies


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ended the same wrong way; `share` is of all scheduled requests."""

    outcome: str
    status: int | None
    error: str | None
    count: int
    share: float


class Phases(msgspec.Struct, frozen=True, kw_only=True):
    """Where joined requests spent their time, seconds: by arm, the phases in order, and two sums beside them.

    `to_engine` is, per request, the time in the phases before the engine has the request; `outside` is
    client time in flight that the gateway did not see. Percentiles of phases do not add up; means do.
    """

    counts: JoinCounts
    arms: dict[str, dict[str, Distribution]]
    to_engine: dict[str, Distribution]
    outside: dict[str, Distribution]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`summary.json`. Durations are seconds, offsets count from the start of the run."""

    schema: Literal["weir.summary/1"] = "weir.summary/1"
    run_id: str | None
    """None, like the other facts of the manifest, when the run left none."""
    status: str
    url: str | None
    model: str | None
    started_unix_ns: int | None
    command: list[str]
    host: dict[str, str]
    versions: dict[str, str]
    source: str
    seed: int
    arrivals: str
    """Family of the intended times; `own` for the source's own."""
    concurrency: int | None
    """Of a closed loop; None for an open one."""
    schedule_s: float
    run_s: float
    validity: Validity
    scheduled_per_s: float | None
    """Schedule's requests over its duration."""
    sent_per_s: float | None
    """(n − 1) / span of the actual sends."""
    in_flight_mean: float | None
    in_flight_max: int
    arms: list[str]
    buckets: list[str]
    groups: list[Group]
    """First all requests, then each arm, each bucket, each arm in each bucket."""
    failures: list[Failure]
    ttft_cdf: Curve
    e2e_cdf: Curve
    chunk_gap_cdf: Curve
    ttft_over_time: dict[str, Scatter]
    series: Series
    phases: Phases | None
    interval: str
    definitions: list[Definition]

    def group(self, arm: str | None = None, bucket: str | None = None) -> Group | None:
        """The cell of this arm and bucket, None for all of either; None when it holds no request."""
        return next((g for g in self.groups if g.arm == arm and g.bucket == bucket), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One scheduled request with the groups it belongs to; without a record when the run left none."""

    arm: str
    bucket: str
    record: RequestRecord | None


def summarise(evidence: Evidence) -> Summary:
    """Computes every figure of a run's report."""
    manifest, requests = evidence.manifest, evidence.requests
    rows = _rows(evidence)
    by_arm = _records_by_arm(rows)
    window = throughput.window_of(requests)
    run_ns = _run_ns(evidence)
    in_flight = InFlight.of(requests, run_ns)
    return Summary(
        run_id=manifest.run_id if manifest else None,
        status=manifest.status if manifest else "no manifest",
        url=manifest.url if manifest else None,
        model=manifest.model if manifest else None,
        started_unix_ns=manifest.started_unix_ns if manifest else None,
        command=manifest.command if manifest else [],
        host=manifest.host if manifest else {},
        versions=manifest.versions if manifest else {},
        source=evidence.header.source,
        seed=evidence.header.seed,
        arrivals=evidence.header.arrivals,
        concurrency=evidence.header.concurrency,
        schedule_s=evidence.header.duration_ns / NS_PER_S,
        run_s=run_ns / NS_PER_S,
        validity=judge(evidence),
        scheduled_per_s=_scheduled_per_s(evidence),
        sent_per_s=throughput.spaced_rate_per_s(r.sent_ns for r in requests if r.sent_ns is not None),
        in_flight_mean=in_flight.mean(window) if window else None,
        in_flight_max=in_flight.peak(),
        arms=list(by_arm),
        buckets=[name for name in BUCKETS if any(row.bucket == name for row in rows)],
        groups=_groups(rows, evidence.reads, window),
        failures=_failures(rows),
        ttft_cdf=curve({arm: latency.seconds(rs, latency.ttft_ns) for arm, rs in by_arm.items()}),
        e2e_cdf=curve({arm: latency.seconds(rs, latency.e2e_ns) for arm, rs in by_arm.items()}),
        chunk_gap_cdf=curve({arm: latency.pooled_gaps_s(rs, evidence.reads) for arm, rs in by_arm.items()}),
        ttft_over_time={arm: scatter(rs, run_ns / NS_PER_S) for arm, rs in by_arm.items()},
        series=series(by_arm, evidence.reads, run_ns),
        phases=_phases(by_arm, evidence.gateway) if evidence.gateway else None,
        interval=INTERVAL_LABEL,
        definitions=[*latency.DEFINITIONS, *throughput.DEFINITIONS],
    )


def _bucket_names() -> tuple[str, ...]:
    edges = BUCKET_EDGES_TOKENS
    between = (f"{low + 1}–{high}" for low, high in itertools.pairwise(edges))
    return (f"≤ {edges[0]}", *between, f"> {edges[-1]}")


BUCKETS = _bucket_names()


def bucket_of(prompt_tokens: int) -> str:
    """Bucket of a planned prompt length: planned, so that failed requests and all arms split alike."""
    return BUCKETS[int(np.searchsorted(BUCKET_EDGES_TOKENS, prompt_tokens))]


def _rows(evidence: Evidence) -> list[_Row]:
    """A row per record, and one per scheduled request without a record."""
    pools = evidence.gateway.pools if evidence.gateway else {}
    stated = {r.index: r.arm or pools.get(r.index) or NO_ARM for r in evidence.requests}
    name_of = _arm_names(stated.values())
    recorded = [
        _Row(arm=name_of(stated[r.index]), bucket=bucket_of(r.prompt_tokens_planned), record=r)
        for r in evidence.requests
    ]
    missing = [
        _Row(arm=name_of(NO_ARM), bucket=bucket_of(s.prompt_tokens), record=None)
        for s in evidence.schedule
        if s.index not in stated
    ]
    return recorded + missing


def _arm_names(stated: Iterable[str]) -> Callable[[str], str]:
    """What to call each stated arm: the commonest keep their names, the rest share one."""
    counts = Counter(stated)
    counts.pop(NO_ARM, None)
    if not counts:
        return lambda arm: ALL
    kept = {arm for arm, _ in counts.most_common(MAX_ARMS)} | {NO_ARM}
    return lambda arm: arm if arm in kept else OTHER_ARMS


def _records_by_arm(rows: Sequence[_Row]) -> dict[str, list[RequestRecord]]:
    """Records of each arm, arms in alphabetical order, those that are no pool's name last."""
    last = (OTHER_ARMS, NO_ARM)
    names = sorted({row.arm for row in rows}, key=lambda arm: (arm in last, arm))
    return {arm: [r.record for r in rows if r.arm == arm and r.record is not None] for arm in names}


def _run_ns(evidence: Evidence) -> int:
    """Length of the run: the manifest's, or up to the last mark where that is later or the only one."""
    marks = [
        mark
        for r in evidence.requests
        for mark in (r.sent_ns, r.first_token_ns, r.last_token_ns, r.end_ns)
        if mark is not None
    ]
    return max(evidence.manifest.duration_ns if evidence.manifest else 0, *marks, 0)


def _scheduled_per_s(evidence: Evidence) -> float | None:
    duration_s = evidence.header.duration_ns / NS_PER_S
    return len(evidence.schedule) / duration_s if duration_s > 0 else None


def _groups(rows: Sequence[_Row], reads: Mapping[int, ContentReads], window: throughput.Window | None) -> list[Group]:
    cells: dict[tuple[str | None, str | None], list[_Row]] = {(None, None): list(rows)}
    for row in rows:
        for key in ((row.arm, None), (None, row.bucket), (row.arm, row.bucket)):
            cells.setdefault(key, []).append(row)
    in_order = sorted(cells, key=lambda key: (_kind(key), key[0] or "", BUCKETS.index(key[1]) if key[1] else 0))
    return [_group(arm, bucket, cells[arm, bucket], reads, window) for arm, bucket in in_order]


def _kind(key: tuple[str | None, str | None]) -> int:
    """0 for all requests, 1 for an arm, 2 for a bucket, 3 for an arm in a bucket."""
    return (key[0] is not None) + 2 * (key[1] is not None)


def _group(
    arm: str | None,
    bucket: str | None,
    rows: Sequence[_Row],
    reads: Mapping[int, ContentReads],
    window: throughput.Window | None,
) -> Group:
    records = [row.record for row in rows if row.record is not None]
    succeeded = [record for record in records if record.outcome == "ok"]
    return Group(
        arm=arm,
        bucket=bucket,
        scheduled=len(rows),
        sent=sum(record.sent_ns is not None for record in records),
        outcomes=dict(Counter(row.record.outcome if row.record else "no record" for row in rows)),
        prompt_tokens=sum(record.prompt_tokens or 0 for record in succeeded),
        output_tokens=sum(record.output_tokens or 0 for record in succeeded),
        cached_tokens=sum(record.cached_tokens or 0 for record in succeeded),
        rates=throughput.rates(records, window),
        latencies=latency.latencies(records, reads),
    )


def _failures(rows: Sequence[_Row]) -> list[Failure]:
    """Kinds of failure, commonest first; kinds beyond the bound are summed in a last line."""
    kinds = Counter(
        ("no record", None, None)
        if row.record is None
        else (row.record.outcome, row.record.status, (row.record.error or "")[:MAX_ERROR_CHARS] or None)
        for row in rows
        if row.record is None or row.record.outcome != "ok"
    ).most_common()
    rest = sum(count for _, count in kinds[MAX_FAILURE_KINDS:])
    shown = [
        Failure(outcome=outcome, status=status, error=error, count=count, share=count / len(rows))
        for (outcome, status, error), count in kinds[:MAX_FAILURE_KINDS]
    ]
    if rest:
        text = f"{len(kinds) - MAX_FAILURE_KINDS:,} other kinds"
        shown.append(Failure(outcome="various", status=None, error=text, count=rest, share=rest / len(rows)))
    return shown


def _phases(by_arm: Mapping[str, Sequence[RequestRecord]], gateway: GatewayView) -> Phases:
    durations = {
        arm: [gateway.phases_ns[r.index] for r in records if r.index in gateway.phases_ns]
        for arm, records in by_arm.items()
    }
    return Phases(
        counts=gateway.counts,
        arms={
            arm: {phase: describe(_seconds(d[phase] for d in of_arm if phase in d)) for phase in PHASES}
            for arm, of_arm in durations.items()
        },
        to_engine={
            arm: describe(_seconds(sum(d.get(phase, 0) for phase in TO_ENGINE_PHASES) for d in of_arm))
            for arm, of_arm in durations.items()
        },
        outside={
            arm: describe(_seconds(gateway.outside_ns[r.index] for r in records if r.index in gateway.outside_ns))
            for arm, records in by_arm.items()
        },
    )


def _seconds(durations_ns: Iterable[int]) -> Values:
    return np.fromiter(durations_ns, dtype=np.float64) / NS_PER_S
