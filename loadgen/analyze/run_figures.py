"""What one run contributes to a comparison of runs: one value per metric, and what it was run on.

Reduces `Evidence` to that, so that dozens of runs fit in memory. Figures are those of the report of the run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from loadgen.analyze import latency, throughput
from loadgen.analyze.latency import NS_PER_S
from loadgen.analyze.stats import Values, order_statistic, required_n
from loadgen.analyze.summary import BUCKETS, bucket_of
from loadgen.analyze.validity import Evidence, Validity, judge
from protocol.records import Manifest, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A figure that runs are compared by."""

    name: str
    label: str
    better: Literal["lower", "higher"]
    scale: Literal["ratio", "difference"] = "ratio"
    """Whether B over A or B less A is of interest: a rate of errors may be 0."""
    unit: Literal["s", "tokens/s", "share"] = "s"


METRICS = (
    Metric(name="ttft_p50", label="TTFT P50", better="lower"),
    Metric(name="ttft_p99", label="TTFT P99", better="lower"),
    Metric(name="gap_p99", label="Chunk gap P99", better="lower"),
    Metric(name="e2e_p99", label="E2E P99", better="lower"),
    Metric(name="output_tokens_per_s", label="Output tokens/s", better="higher", unit="tokens/s"),
    Metric(name="error_rate", label="Error rate", better="lower", scale="difference", unit="share"),
)
BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFigures:
    """One run, reduced. Arrays have one entry per scheduled request in the order of the schedule, nan without one."""

    name: str
    started_unix_ns: int
    schedule_sha256: str
    validity: Validity
    fingerprint: dict[str, str]
    """What it was run on and with; `fingerprint_of` says how."""
    values: dict[str, float | None]
    """By name of the metric; None where the run is too short for it."""
    buckets: dict[str, dict[str, float | None]]
    """The same for TTFT, by bucket of the planned prompt length."""
    ttft_s: Values
    e2e_s: Values


def run_figures(name: str, evidence: Evidence) -> RunFigures:
    """Reduces a run. Raises ValueError when it has no manifest: nobody knows then what it was run on."""
    manifest = evidence.manifest
    if manifest is None:
        raise ValueError(f"{name} has no manifest: the run was killed, run it again")
    ttft_s, e2e_s = (_by_schedule(evidence, metric) for metric in (latency.ttft_ns, latency.e2e_ns))
    schedule = manifest.files.get("schedule.parquet")
    return RunFigures(
        name=name,
        started_unix_ns=manifest.started_unix_ns,
        schedule_sha256=schedule.sha256 if schedule else "",
        validity=judge(evidence),
        fingerprint=fingerprint_of(manifest),
        values=_values(evidence, ttft_s, e2e_s),
        buckets=_buckets(evidence, ttft_s),
        ttft_s=ttft_s,
        e2e_s=e2e_s,
    )


def _values(evidence: Evidence, ttft_s: Values, e2e_s: Values) -> dict[str, float | None]:
    requests = evidence.requests
    succeeded = sum(request.outcome == "ok" for request in requests)
    rates = throughput.rates(requests, throughput.window_of(requests))
    return {
        "ttft_p50": percentile(ttft_s, 0.5),
        "ttft_p99": percentile(ttft_s, 0.99),
        "gap_p99": percentile(latency.pooled_gaps_s(requests, evidence.reads), 0.99),
        "e2e_p99": percentile(e2e_s, 0.99),
        "output_tokens_per_s": rates.output_tokens_per_s,
        "error_rate": 1 - succeeded / len(evidence.schedule) if len(evidence.schedule) else None,
    }


def percentile(values: Values, q: float) -> float | None:
    """An order statistic of what is not nan; None where the report would refuse it, too."""
    known = np.sort(values[~np.isnan(values)])
    return order_statistic(known, q) if len(known) >= required_n(q) else None


def _by_schedule(evidence: Evidence, metric: Callable[[RequestRecord], float | None]) -> Values:
    values = np.full(len(evidence.schedule), np.nan)
    for request in evidence.requests:
        if request.index < len(values) and (found := metric(request)) is not None:
            values[request.index] = found / NS_PER_S
    return values


def _buckets(evidence: Evidence, ttft_s: Values) -> dict[str, dict[str, float | None]]:
    member = np.array([bucket_of(scheduled.prompt_tokens) for scheduled in evidence.schedule])
    return {
        bucket: {name: percentile(ttft_s[member == bucket], q) for name, q in (("ttft_p50", 0.5), ("ttft_p99", 0.99))}
        for bucket in BUCKETS
        if (member == bucket).any()
    }


def fingerprint_of(manifest: Manifest) -> dict[str, str]:
    """What a run was run on and with, as `part.field`: target, host, versions, client and schedule."""
    schedule = manifest.schedule
    found = {
        "url": manifest.url,
        "model": manifest.model,
        "template_tokens": str(manifest.template_tokens),
        "workers": str(len(manifest.workers)),
        "scheduling": ", ".join(sorted({worker.scheduling for worker in manifest.workers})),
        "schedule.source": schedule.source,
        "schedule.source_sha256": schedule.source_sha256,
        "schedule.arrivals": schedule.arrivals,
        "schedule.concurrency": str(schedule.concurrency),
        "schedule.requests": str(schedule.requests),
        "schedule.duration_s": f"{schedule.duration_ns / NS_PER_S:g}",
    }
    found |= {f"host.{name}": value for name, value in manifest.host.items()}
    return found | {f"version.{name}": value for name, value in manifest.versions.items()}
