"""What a system carries: per load what was served, whether the queue drained, and what share kept every promise (SLO).

Capacity under an SLO is the highest load at which it was kept, and at every load below. Pure: runs in, `Capacity` out.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from scipy.stats import t

from loadgen.analyze import latency, throughput
from loadgen.analyze.knee import Knee, Scalability, find_knee, scalability
from loadgen.analyze.latency import NS_PER_S
from loadgen.analyze.repeats import MIN_RUNS
from loadgen.analyze.stats import CONFIDENCE
from loadgen.analyze.steady import MATERIAL, SIGNIFICANCE, trend
from loadgen.analyze.throughput import InFlight
from loadgen.analyze.validity import Evidence
from protocol.records import RequestRecord

_DRAIN_BINS = 20
"""Of the second half of the sending, in which a queue that drains is level."""
_SLO = re.compile(r"(?P<metric>[a-z0-9]+)_p(?P<percent>\d+(\.\d+)?)=(?P<limit>\d+(\.\d+)?)(?P<unit>ms|s)")
_METRICS: Mapping[str, Callable[[RequestRecord], float | None]] = {
    "ttft": latency.ttft_ns,
    "e2e": latency.e2e_ns,
    "tpot": latency.tpot_ns,
}


class Slo(msgspec.Struct, frozen=True, kw_only=True):
    """A promise: this share of all scheduled requests is at most this long in coming."""

    text: str
    metric: str
    share: float
    limit_s: float

    def kept_by(self, request: RequestRecord) -> bool:
        """A request that failed keeps no promise; one too short to have a TPOT keeps that one."""
        if request.outcome != "ok":
            return False
        found_ns = _METRICS[self.metric](request)
        return found_ns is None or found_ns <= self.limit_s * NS_PER_S


def parse_slo(text: str) -> Slo:
    """Reads `ttft_p99=500ms`. Raises ValueError with the remedy."""
    found = _SLO.fullmatch(text)
    if found is None or found["metric"] not in _METRICS or not 0 < float(found["percent"]) < 100:
        raise ValueError(f"{text!r} is no SLO: write METRIC_pPERCENT=TIME, as ttft_p99=500ms ({', '.join(_METRICS)})")
    limit_s = float(found["limit"]) / (1000 if found["unit"] == "ms" else 1)
    return Slo(text=text, metric=found["metric"], share=float(found["percent"]) / 100, limit_s=limit_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLoad:
    """One run as a point of the curve; rates per second."""

    offered: float
    """Scheduled; of a closed loop, sent."""
    served: float
    in_flight: float
    grows: bool
    """Requests in flight still rose in the second half of the sending: the queue did not drain."""
    kept: dict[str, float]
    """Share of scheduled requests that kept each promise, by its text."""
    goodput: float
    """Requests that kept all of them."""


def run_load(evidence: Evidence, slos: Sequence[Slo]) -> RunLoad:
    """Reduces a run. Raises ValueError when too little of it succeeded to have a rate."""
    requests, scheduled = evidence.requests, len(evidence.schedule)
    sent = [request.sent_ns for request in requests if request.sent_ns is not None]
    served = throughput.spaced_rate_per_s(r.end_ns for r in requests if r.outcome == "ok" and r.end_ns is not None)
    window = throughput.window_of(requests)
    if served is None or window is None or max(sent) == min(sent):
        raise ValueError("fewer than two requests succeeded: there is no throughput")
    duration_s = evidence.header.duration_ns / NS_PER_S
    in_flight = InFlight.of(requests, window.end_ns)
    kept = {slo.text: sum(map(slo.kept_by, requests)) / scheduled for slo in slos}
    good = sum(all(slo.kept_by(request) for slo in slos) and request.outcome == "ok" for request in requests)
    sending = throughput.Window(start_ns=min(sent), end_ns=max(sent))
    return RunLoad(
        offered=scheduled / duration_s if duration_s else len(sent) / sending.seconds,
        served=served,
        in_flight=in_flight.mean(sending),
        grows=_grows(in_flight, sending),
        kept=kept,
        # By the time that throughput counts, so that a queue that drains late is not taken for speed.
        goodput=good / window.seconds,
    )


def _grows(in_flight: InFlight, sending: throughput.Window) -> bool:
    half_ns = (sending.start_ns + sending.end_ns) // 2
    edges = np.linspace(half_ns, sending.end_ns, _DRAIN_BINS + 1).astype(np.int64)
    change, p = trend(np.diff(in_flight.integral_s(edges)))
    return change > MATERIAL and p < SIGNIFICANCE


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One load, over its runs; means unless said otherwise."""

    name: str
    runs: int
    offered: float
    served: float
    in_flight: float
    growing: int
    """Runs in which the queue did not drain."""
    keeps_up: bool
    """It drained in most of them."""
    goodput: float
    kept: dict[str, float]
    kept_low: dict[str, float | None]
    """Lower end of the t-interval of 95 % over runs; None below five."""
    passes: dict[str, bool]


class SloCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """Between which loads an SLO breaks; None on a side that was not measured."""

    slo: str
    holds_at: float | None
    breaks_at: float | None


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """`weir knee --json`, for one arm. Loads and rates are requests/s."""

    schema: str = "weir.capacity/1"
    arm: str
    closed_loop: bool
    levels: list[Level]
    """In the order of what was offered."""
    knee: Knee | None
    no_knee: str | None
    drains_to: float | None
    """Highest load up to which every level kept up."""
    scalability: Scalability | None
    no_scalability: str | None
    slos: list[SloCapacity]


def capacity(
    arm: str, runs: Mapping[str, Sequence[RunLoad]], slos: Sequence[Slo], *, closed_loop: bool = False
) -> Capacity:
    """What the runs of one arm say, by name of the level."""
    levels = sorted((_level(name, of_level, slos) for name, of_level in runs.items()), key=lambda level: level.offered)
    points = [run for of_level in runs.values() for run in of_level]
    offered, served, in_flight = np.array([(run.offered, run.served, run.in_flight) for run in points]).T
    law = scalability(in_flight, served)
    knee: Knee | str = "a closed loop asks for no more than it gets: there is no knee over load"
    if not closed_loop:
        knee = find_knee(offered, served, np.array([level.offered for level in levels]))
    return Capacity(
        arm=arm,
        closed_loop=closed_loop,
        levels=levels,
        knee=knee if isinstance(knee, Knee) else None,
        no_knee=knee if isinstance(knee, str) else None,
        drains_to=_last([level.offered for level in levels], [level.keeps_up for level in levels]),
        scalability=law if isinstance(law, Scalability) else None,
        no_scalability=law if isinstance(law, str) else None,
        slos=[_slo_capacity(slo, levels) for slo in slos],
    )


def _level(name: str, runs: Sequence[RunLoad], slos: Sequence[Slo]) -> Level:
    kept = {slo.text: float(np.mean([run.kept[slo.text] for run in runs])) for slo in slos}
    low = {slo.text: _low([run.kept[slo.text] for run in runs]) for slo in slos}
    growing = sum(run.grows for run in runs)
    return Level(
        name=name,
        runs=len(runs),
        offered=float(np.mean([run.offered for run in runs])),
        served=float(np.mean([run.served for run in runs])),
        in_flight=float(np.mean([run.in_flight for run in runs])),
        growing=growing,
        keeps_up=2 * growing < len(runs),
        goodput=float(np.mean([run.goodput for run in runs])),
        kept=kept,
        kept_low=low,
        passes={slo.text: _surely(kept[slo.text], low[slo.text]) >= slo.share for slo in slos},
    )


def _surely(share: float, low: float | None) -> float:
    return share if low is None else low


def _low(shares: Sequence[float]) -> float | None:
    if len(shares) < MIN_RUNS:
        return None
    error = float(np.std(shares, ddof=1)) / math.sqrt(len(shares))
    return float(np.mean(shares)) - float(t.ppf((1 + CONFIDENCE) / 2, len(shares) - 1)) * error


def _last(loads: Sequence[float], good: Sequence[bool]) -> float | None:
    """The last load before the first that is not good."""
    count = good.index(False) if False in good else len(good)
    return loads[count - 1] if count else None


def _slo_capacity(slo: Slo, levels: Sequence[Level]) -> SloCapacity:
    good = [level.passes[slo.text] for level in levels]
    breaks_at = levels[good.index(False)].offered if False in good else None
    return SloCapacity(slo=slo.text, holds_at=_last([level.offered for level in levels], good), breaks_at=breaks_at)
