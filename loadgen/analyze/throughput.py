"""Rates, and requests in flight over time, from the records of a run.

Every group of a run is divided by the same window, so rates of arms or buckets add up to the rate of the run.
Pure arithmetic on offsets; rates are per second.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.analyze.latency import NS_PER_S, Definition
from loadgen.analyze.stats import Values
from protocol.records import RequestRecord

DEFINITIONS = (
    Definition(
        name="requests_per_s",
        label="Requests/s",
        meaning="Successful requests divided by the run's window, first send to last end. The window includes "
        "the ramp at the start and the drain at the end.",
    ),
    Definition(
        name="completions_per_s",
        label="Completions/s",
        meaning="(n − 1) / (last completion − first completion) over successful requests: the rate at which "
        "answers came, without the ramp before the first of them.",
    ),
    Definition(
        name="output_tokens_per_s",
        label="Output tokens/s",
        meaning="Output tokens of successful requests, from the usage object, divided by the run's window.",
    ),
)


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Per second; None where the records allow no such rate. `DEFINITIONS` says what each means."""

    requests_per_s: float | None
    completions_per_s: float | None
    output_tokens_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """First send to last end of a run, ns on the run's clock."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S


def window_of(requests: Iterable[RequestRecord]) -> Window | None:
    """The run's window; None when no request both started and ended, or all in the same instant."""
    sent = [request for request in requests if request.sent_ns is not None]
    starts = [request.sent_ns for request in sent if request.sent_ns is not None]
    ends = [request.end_ns for request in sent if request.end_ns is not None]
    if not ends or max(ends) <= min(starts):
        return None
    return Window(start_ns=min(starts), end_ns=max(ends))


def spaced_rate_per_s(times_ns: Iterable[int]) -> float | None:
    """(n − 1) / span: the rate of a train of instants, free of the silence before the first one."""
    ordered = sorted(times_ns)
    if len(ordered) < 2 or ordered[0] == ordered[-1]:
        return None
    return (len(ordered) - 1) * NS_PER_S / (ordered[-1] - ordered[0])


def rates(requests: Sequence[RequestRecord], window: Window | None) -> Rates:
    """Rates of one group of requests over the window of the whole run."""
    succeeded = [request for request in requests if request.outcome == "ok"]
    tokens = [request.output_tokens for request in succeeded if request.output_tokens is not None]
    return Rates(
        requests_per_s=None if window is None else len(succeeded) / window.seconds,
        completions_per_s=spaced_rate_per_s(r.end_ns for r in succeeded if r.end_ns is not None),
        # Without one usage object the rate is unknown, which is not the same as zero.
        output_tokens_per_s=sum(tokens) / window.seconds if window and (tokens or not succeeded) else None,
    )


def time_in_flight_ns(request: RequestRecord) -> int | None:
    """Send to end, whatever the outcome; None when either is missing."""
    if request.sent_ns is None or request.end_ns is None:
        return None
    return request.end_ns - request.sent_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """Requests between send and end, as a step function: ascending start and end times, ns."""

    starts_ns: npt.NDArray[np.int64]
    ends_ns: npt.NDArray[np.int64]

    @classmethod
    def of(cls, requests: Iterable[RequestRecord], until_ns: int) -> "InFlight":
        """A request without an end counts as in flight until `until_ns`."""
        sent = [
            (request.sent_ns, until_ns if request.end_ns is None else request.end_ns)
            for request in requests
            if request.sent_ns is not None
        ]
        starts, ends = zip(*sent, strict=True) if sent else ((), ())
        return cls(starts_ns=_ascending(starts), ends_ns=_ascending(ends))

    def integral_s(self, edges_ns: npt.NDArray[np.int64]) -> Values:
        """Request-seconds spent in flight up to each of `edges_ns`."""
        return (_elapsed_ns(self.starts_ns, edges_ns) - _elapsed_ns(self.ends_ns, edges_ns)) / NS_PER_S

    def mean(self, window: Window) -> float:
        """Requests in flight on average over the window."""
        start, end = self.integral_s(np.array([window.start_ns, window.end_ns], dtype=np.int64))
        return float(end - start) / window.seconds

    def peak(self) -> int:
        """Most requests in flight at once; one that ends as another starts does not overlap it."""
        ended = np.searchsorted(self.ends_ns, self.starts_ns, side="right")
        return int(np.max(np.arange(1, len(self.starts_ns) + 1) - ended, initial=0))


def _ascending(times: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.sort(np.asarray(times, dtype=np.int64))


def _elapsed_ns(times: npt.NDArray[np.int64], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Σ max(0, edge − time) for each edge. Integers hold it exactly: 10⁶ requests × 1 h is 3.6e18."""
    passed = np.searchsorted(times, edges)
    sums = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(times)))
    return passed * edges - sums[passed]
