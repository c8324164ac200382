"""What `/metrics` shows. Observing is a few dictionary look-ups; names and help text exist only in `collect`.

prometheus-client's own metric objects cost several microseconds per labelled observation and take a lock, so
the request path counts in plain numbers here and a scrape turns them into families. One event loop owns one
instance. Every label is bounded: pools, endpoints and routes come from the configuration, the rest from code.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from gateway.model import EndpointSnapshot, EngineLoad
from protocol.records import PHASES, GatewayRecord

NONE = "none"
"""Label value where a request never got as far as having one."""

LATENCY_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
CANCEL_BOUNDS_S = (0.0001, 0.001, 0.005, 0.02, 0.1, 1.0)
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

    @property
    def used(self) -> bool:
        return any(self.counts)

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative buckets as Prometheus wants them."""
        total = 0
        out: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, total))
        return out


Labels = tuple[str, ...]
Key = TypeVar("Key", bound=Labels)


class _Series:
    """What is counted for one route and pool."""

    __slots__ = (
        "chunks",
        "completion_tokens",
        "continuations",
        "duration",
        "first_token",
        "phases",
        "prompt_tokens",
        "response_bytes",
        "saved_tokens",
    )

    def __init__(self) -> None:
        self.chunks = 0
        self.response_bytes = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.saved_tokens = 0
        self.continuations = 0
        self.duration = _Histogram(LATENCY_BOUNDS_S)
        self.first_token = _Histogram(LATENCY_BOUNDS_S)
        self.phases = {phase: _Histogram(PHASE_BOUNDS_S) for phase in PHASES}


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
        self._requests: dict[tuple[str, str, int | None, str], int] = defaultdict(int)
        self._errors: dict[Labels, int] = defaultdict(int)
        self._failed_attempts: dict[Labels, int] = defaultdict(int)
        self._cancel = _Histogram(CANCEL_BOUNDS_S)
        self._series: dict[tuple[str, str], _Series] = defaultdict(_Series)

    def observe(self, record: GatewayRecord, saved_tokens: int = 0) -> None:
        """Counts one finished request. `saved_tokens` estimates what cancelling it spared its engine."""
        route, pool = record.route or NONE, record.pool or NONE
        self._requests[route, pool, record.status, record.outcome] += 1
        if record.error_kind is not None:
            self._errors[record.error_source or NONE, record.error_kind] += 1
        series = self._series[route, pool]
        series.chunks += record.chunks
        series.response_bytes += record.response_bytes
        series.prompt_tokens += record.prompt_tokens or 0
        series.completion_tokens += record.completion_tokens or 0
        series.saved_tokens += saved_tokens
        series.continuations += record.continuations
        if record.first_token_ns is not None:
            series.first_token.observe(record.first_token_ns * 1e-9)
        # Marks are in order of time: each phase lasts until the next mark.
        started, since_ns = "", 0
        for mark, at_ns in record.marks_ns.items():
            if started:
                series.phases[started].observe((at_ns - since_ns) * 1e-9)
            started, since_ns = mark, at_ns
        series.duration.observe(since_ns * 1e-9)

    def cancelled(self, seconds: float) -> None:
        """A client left; its engine's connection was closed that much later."""
        self._cancel.observe(seconds)

    def attempt_failed(self, pool: str, endpoint: str, kind: str) -> None:
        """Counts one failed try on an endpoint, whether or not another one saved the request."""
        self._failed_attempts[pool, endpoint, kind] += 1

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        requests = {
            (route, pool, NONE if status is None else str(status), outcome): count
            for (route, pool, status, outcome), count in self._requests.items()
        }
        yield _counter("weir_requests", "Finished requests.", ("route", "pool", "status", "outcome"), requests)
        yield _counter("weir_errors", "Requests that ended in an error.", ("source", "kind"), self._errors)
        yield _counter(
            "weir_failed_attempts",
            "Tries on an endpoint that failed before a response.",
            ("pool", "endpoint", "kind"),
            self._failed_attempts,
        )
        yield _histogram(
            "weir_cancel_propagation_seconds",
            "From a client's leaving to the closing of its engine's connection.",
            (),
            {(): self._cancel},
        )
        yield from self._collect_series()
        yield GaugeMetricFamily("weir_in_flight_requests", "Requests being handled.", value=self._in_flight())
        yield CounterMetricFamily(
            "weir_records_dropped", "Records that could not be written.", value=self._records_dropped()
        )
        yield from _collect_endpoints(self._endpoints())

    def _collect_series(self) -> Iterator[Metric]:
        labels = ("route", "pool")
        series = self._series
        yield _counter(
            "weir_relayed_chunks", "Reads relayed to clients.", labels, {key: one.chunks for key, one in series.items()}
        )
        yield _counter(
            "weir_relayed_bytes",
            "Response body bytes relayed to clients.",
            labels,
            {key: one.response_bytes for key, one in series.items()},
        )
        yield _counter(
            "weir_continuations",
            "Streams that went on from another endpoint after their engine had failed.",
            labels,
            {key: one.continuations for key, one in series.items()},
        )
        tokens = {(*key, "prompt"): one.prompt_tokens for key, one in series.items()}
        tokens |= {(*key, "completion"): one.completion_tokens for key, one in series.items()}
        yield _counter(
            "weir_tokens_not_generated_estimate",
            "Estimate: what cancelled requests could still have generated, max_tokens less the events relayed.",
            labels,
            {key: one.saved_tokens for key, one in series.items()},
        )
        yield _counter("weir_tokens", "Tokens that engines reported as usage.", (*labels, "direction"), tokens)
        yield _histogram(
            "weir_request_duration_seconds",
            "From receive to the end of finish.",
            labels,
            {key: one.duration for key, one in series.items()},
        )
        yield _histogram(
            "weir_time_to_first_token_seconds",
            "From receive to the first token of a stream.",
            labels,
            {key: one.first_token for key, one in series.items() if one.first_token.used},
        )
        phases = {(*key, phase): one for key, each in series.items() for phase, one in each.phases.items() if one.used}
        yield _histogram("weir_phase_duration_seconds", "Time in each phase.", (*labels, "phase"), phases)


_EngineFigure = tuple[type[GaugeMetricFamily | CounterMetricFamily], str, str, Callable[[EngineLoad], float | None]]

_ENGINE_FIGURES: tuple[_EngineFigure, ...] = (
    (GaugeMetricFamily, "running_requests", "Requests that the engine says it works on.", lambda load: load.running),
    (GaugeMetricFamily, "waiting_requests", "Requests that the engine says it has queued.", lambda load: load.waiting),
    (GaugeMetricFamily, "kv_usage_ratio", "Share of the engine's KV cache in use.", lambda load: load.kv_usage),
    (CounterMetricFamily, "prefix_hit_tokens", "Prompt tokens the cache had.", lambda load: load.prefix_hit_tokens),
    (CounterMetricFamily, "prefix_query_tokens", "Prompt tokens looked up.", lambda load: load.prefix_query_tokens),
)
"""What engines say of themselves, the same for every kind: family, name after `weir_engine_`, help, reader."""


def _collect_endpoints(endpoints: list[EndpointSnapshot]) -> Iterator[Metric]:
    labels = ("pool", "endpoint")
    up = GaugeMetricFamily("weir_endpoint_up", "1 when the health checks pass.", labels=labels)
    busy = GaugeMetricFamily("weir_endpoint_in_flight_requests", "Requests at the endpoint.", labels=labels)
    for endpoint in endpoints:
        up.add_metric((endpoint.pool, endpoint.name), float(endpoint.healthy))
        busy.add_metric((endpoint.pool, endpoint.name), endpoint.in_flight)
    yield from (up, busy)
    for kind, name, text, read in _ENGINE_FIGURES:
        family = kind(f"weir_engine_{name}", text, labels=labels)
        for endpoint in endpoints:
            value = None if endpoint.load is None else read(endpoint.load)
            if value is not None:
                family.add_metric((endpoint.pool, endpoint.name), value)
        yield family


def _counter(name: str, text: str, labels: Labels, values: Mapping[Key, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for label_values, value in values.items():
        family.add_metric(label_values, value)
    return family


def _histogram(name: str, text: str, labels: Labels, series: Mapping[Key, _Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=labels)
    for label_values, histogram in series.items():
        family.add_metric(label_values, histogram.buckets(), sum_value=histogram.sum)
    return family
