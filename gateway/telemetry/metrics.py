"""What `/metrics` shows. Observing is a few dictionary look-ups; names and help text exist only in `collect`.

prometheus-client's own metric objects cost several microseconds per labelled observation and take a lock, so
the request path counts in plain numbers here and a scrape turns them into families. One event loop owns one
instance. Every label is bounded: pools, endpoints and routes come from the configuration, the rest from code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.model import EndpointSnapshot
from protocol.records import PHASES, GatewayRecord

NONE = "none"
"""Label value where a request never got as far as having one."""

LATENCY_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
PHASE_BOUNDS_S = (0.00001, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0)


class _Histogram:
    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative buckets as Prometheus wants them."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, total))
        return out


Labels = tuple[str, ...]
_Series = dict[Labels, _Histogram]


class GatewayMetrics(Collector):
    """Counts finished requests; reads the live state of the fleet when scraped."""

    def __init__(
        self,
        endpoints: Callable[[], list[EndpointSnapshot]],
        in_flight: Callable[[], int],
        records_dropped: Callable[[], int],
    ) -> None:
        self._endpoints = endpoints
        self._in_flight = in_flight
        self._records_dropped = records_dropped
        self._requests: dict[Labels, int] = defaultdict(int)
        self._errors: dict[Labels, int] = defaultdict(int)
        self._failed_attempts: dict[Labels, int] = defaultdict(int)
        self._chunks: dict[Labels, int] = defaultdict(int)
        self._bytes: dict[Labels, int] = defaultdict(int)
        self._tokens: dict[Labels, int] = defaultdict(int)
        self._duration: _Series = defaultdict(lambda: _Histogram(LATENCY_BOUNDS_S))
        self._first_token: _Series = defaultdict(lambda: _Histogram(LATENCY_BOUNDS_S))
        self._phases: _Series = defaultdict(lambda: _Histogram(PHASE_BOUNDS_S))

    def observe(self, record: GatewayRecord) -> None:
        """Counts one finished request."""
        route, pool = record.route or NONE, record.pool or NONE
        self._requests[route, pool, str(record.status or NONE), record.outcome] += 1
        if record.error_kind is not None:
            self._errors[record.error_source or NONE, record.error_kind] += 1
        self._chunks[(pool,)] += record.chunks
        self._bytes[(pool,)] += record.response_bytes
        self._tokens[pool, "prompt"] += record.prompt_tokens or 0
        self._tokens[pool, "completion"] += record.completion_tokens or 0
        marks = record.marks_ns
        self._duration[route, pool].observe(marks["end"] * 1e-9)
        if record.first_token_ns is not None:
            self._first_token[route, pool].observe(record.first_token_ns * 1e-9)
        started: str | None = None
        for phase in (*PHASES, "end"):
            if phase in marks:
                if started is not None:
                    self._phases[pool, started].observe((marks[phase] - marks[started]) * 1e-9)
                started = phase

    def attempt_failed(self, pool: str, endpoint: str, kind: str) -> None:
        """Counts one failed try on an endpoint, whether or not another one saved the request."""
        self._failed_attempts[pool, endpoint, kind] += 1

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield _counter("weir_requests", "Finished requests.", ("route", "pool", "status", "outcome"), self._requests)
        yield _counter("weir_errors", "Requests that ended in an error.", ("source", "kind"), self._errors)
        yield _counter(
            "weir_failed_attempts",
            "Tries on an endpoint that failed before a response.",
            ("pool", "endpoint", "kind"),
            self._failed_attempts,
        )
        yield _counter("weir_relayed_chunks", "Reads relayed to clients.", ("pool",), self._chunks)
        yield _counter("weir_relayed_bytes", "Response body bytes relayed to clients.", ("pool",), self._bytes)
        yield _counter("weir_tokens", "Tokens that engines reported as usage.", ("pool", "direction"), self._tokens)
        yield _histogram(
            "weir_request_duration_seconds",
            "From receive to the end of finish.",
            ("route", "pool"),
            self._duration,
        )
        yield _histogram(
            "weir_time_to_first_token_seconds",
            "From receive to the first token of a stream.",
            ("route", "pool"),
            self._first_token,
        )
        yield _histogram("weir_phase_duration_seconds", "Time in each phase.", ("pool", "phase"), self._phases)
        yield GaugeMetricFamily("weir_in_flight_requests", "Requests being handled.", value=self._in_flight())
        yield CounterMetricFamily(
            "weir_records_dropped", "Records that could not be written.", value=self._records_dropped()
        )
        up = GaugeMetricFamily("weir_endpoint_up", "1 when the health checks pass.", labels=("pool", "endpoint"))
        busy = GaugeMetricFamily(
            "weir_endpoint_in_flight_requests", "Requests at the endpoint.", labels=("pool", "endpoint")
        )
        for endpoint in self._endpoints():
            up.add_metric((endpoint.pool, endpoint.name), float(endpoint.healthy))
            busy.add_metric((endpoint.pool, endpoint.name), endpoint.in_flight)
        yield up
        yield busy


def _counter(name: str, text: str, labels: Labels, values: Mapping[Labels, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, text: str, labels: Labels, series: Mapping[Labels, _Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, histogram in series.items():
        family.add_metric(label_values, histogram.buckets(), sum_value=histogram.sum)
    return family
