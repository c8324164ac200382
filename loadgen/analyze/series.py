"""Bounded data for charts: distributions as curves, and what happened second by second.

Sizes depend on the number of arms and never on the number of requests. Every curve point is exact: thinning
leaves points out and never averages them.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.analyze.latency import NS_PER_S, ContentReads, ttft_ns
from loadgen.analyze.stats import Values, order_statistic
from loadgen.analyze.throughput import InFlight
from protocol.records import RequestRecord

CURVE_POINTS = 160
"""Per arm; half of them even in rank, half crowding towards the slow tail."""
SCATTER_POINTS = 2_000
SLOWEST_KEPT = 200
"""Of the scatter points of an arm, how many are its slowest requests: thinning must not hide a spike."""
MAX_BINS = 1_800
TABLE_SLICES = 10


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """Empirical CDFs of all arms on one axis: `share[arm][i]` of its values are <= `x[i]` (seconds)."""

    x: list[float]
    share: dict[str, list[float]]


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT of the requests intended within one tenth of the run; seconds, None without a request."""

    start_s: float
    end_s: float
    n: int
    median_s: float | None
    max_s: float | None


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """TTFT against intended time, both seconds, at most `SCATTER_POINTS` of `n`; and the same as a table."""

    n: int
    t_s: list[float]
    ttft_s: list[float]
    slices: list[Slice]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One arm bin by bin: mean requests in flight, sends and output tokens per second."""

    in_flight: list[float]
    sent_per_s: list[float]
    output_tokens_per_s: list[float]


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Bins of `bin_s` seconds that start at `t_s` after the start of the run."""

    bin_s: int
    t_s: list[float]
    arms: dict[str, Load]


def curve(values: Mapping[str, Values]) -> Curve:
    """CDFs of each arm's `values` (seconds, any order), all at the points chosen from any arm."""
    ordered = {arm: np.sort(of_arm) for arm, of_arm in values.items() if len(of_arm)}
    if not ordered:
        return Curve(x=[], share={})
    x = np.unique(np.concatenate([of_arm[_ranks(len(of_arm))] for of_arm in ordered.values()]))
    return Curve(
        x=x.tolist(),
        share={
            arm: (np.searchsorted(of_arm, x, side="right") / len(of_arm)).tolist() for arm, of_arm in ordered.items()
        },
    )


def _ranks(n: int) -> npt.NDArray[np.int64]:
    if n <= CURVE_POINTS:
        return np.arange(n)
    even = np.linspace(0, n - 1, CURVE_POINTS // 2)
    tail = n - np.geomspace(1, n, CURVE_POINTS // 2)
    return np.unique(np.concatenate((even, tail)).astype(np.int64))


def scatter(requests: Iterable[RequestRecord], run_s: float) -> Scatter:
    """TTFT of one arm over a run of `run_s` seconds: its slowest requests and an even choice of the rest."""
    found = [(r.intended_ns, wait) for r in requests if (wait := ttft_ns(r)) is not None]
    t_s, ttft_s = np.array(found, dtype=np.float64).reshape(-1, 2).T / NS_PER_S
    kept = np.arange(len(t_s))
    if len(t_s) > SCATTER_POINTS:
        slowest_first = np.argsort(-ttft_s, kind="stable")
        slow, rest = slowest_first[:SLOWEST_KEPT], np.sort(slowest_first[SLOWEST_KEPT:])
        even = np.linspace(0, len(rest) - 1, SCATTER_POINTS - SLOWEST_KEPT).astype(np.int64)
        kept = np.concatenate((slow, rest[even]))
    kept = kept[np.argsort(t_s[kept], kind="stable")]
    return Scatter(n=len(t_s), t_s=t_s[kept].tolist(), ttft_s=ttft_s[kept].tolist(), slices=_slices(t_s, ttft_s, run_s))


def _slices(t_s: Values, ttft_s: Values, run_s: float) -> list[Slice]:
    edges = np.linspace(0, run_s, TABLE_SLICES + 1)
    member = np.minimum(t_s * (TABLE_SLICES / max(run_s, 1e-9)), TABLE_SLICES - 1).astype(np.int64)
    return [_slice(float(edges[i]), float(edges[i + 1]), np.sort(ttft_s[member == i])) for i in range(TABLE_SLICES)]


def _slice(start_s: float, end_s: float, ordered: Values) -> Slice:
    return Slice(
        start_s=start_s,
        end_s=end_s,
        n=len(ordered),
        median_s=order_statistic(ordered, 0.5) if len(ordered) else None,
        max_s=float(ordered[-1]) if len(ordered) else None,
    )


def series(arms: Mapping[str, Sequence[RequestRecord]], reads: Mapping[int, ContentReads], run_ns: int) -> Series:
    """Load over time of each arm, in the narrowest whole seconds that keep to `MAX_BINS` bins."""
    bin_s = int(run_ns / NS_PER_S / MAX_BINS) + 1
    bins = int(run_ns / NS_PER_S / bin_s) + 1
    edges_ns = np.arange(bins + 1, dtype=np.int64) * bin_s * 1_000_000_000
    return Series(
        bin_s=bin_s,
        t_s=(edges_ns[:-1] / NS_PER_S).tolist(),
        arms={arm: _load(requests, reads, edges_ns) for arm, requests in arms.items()},
    )


def _load(
    requests: Sequence[RequestRecord], reads: Mapping[int, ContentReads], edges_ns: npt.NDArray[np.int64]
) -> Load:
    bin_s = float(edges_ns[1] - edges_ns[0]) / NS_PER_S
    integral_s = InFlight.of(requests, int(edges_ns[-1])).integral_s(edges_ns)
    sent = np.array([r.sent_ns for r in requests if r.sent_ns is not None], dtype=np.int64)
    token_t_ns, tokens = _token_times(requests, reads)
    return Load(
        in_flight=(np.diff(integral_s) / bin_s).tolist(),
        sent_per_s=(np.histogram(sent, edges_ns)[0] / bin_s).tolist(),
        output_tokens_per_s=(np.histogram(token_t_ns, edges_ns, weights=tokens)[0] / bin_s).tolist(),
    )


def _token_times(
    requests: Iterable[RequestRecord], reads: Mapping[int, ContentReads]
) -> tuple[npt.NDArray[np.int64], Values]:
    """Times (ns) and token counts of successful responses.

    A response's tokens are shared out over its reads in proportion to their events, because a read does not
    say how many tokens it holds; the total is the usage object's. Without reads all count at the end.
    """
    times, tokens = [np.empty(0, dtype=np.int64)], [np.empty(0)]
    for request in requests:
        if request.outcome != "ok" or not request.output_tokens or request.end_ns is None:
            continue
        of_one = reads.get(request.index)
        if of_one is not None and len(of_one.t_ns):
            times.append(of_one.t_ns)
            tokens.append(request.output_tokens * of_one.events / of_one.events.sum())
        else:
            times.append(np.array([request.end_ns], dtype=np.int64))
            tokens.append(np.array([request.output_tokens], dtype=np.float64))
    return np.concatenate(times), np.concatenate(tokens)
