"""SGLang 0.5.23's /metrics and /v1/loads: its names, labels and buckets over what the model really did.

It hides prometheus_client. Gauges are read from the engine when scraped; the real ones can be forty decode
steps old. Token and request counters move when a request ends, as the real ones do. Only series with a
meaning in the model exist. Source: reference capture `sglang_metrics_nopriority.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from simulator.profile import Profile
from simulator.steps import Admitted, Finished, Request, Snapshot, StepResult

_FIRST_TOKEN_S = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0),
)
_REQUEST_S = (*_FIRST_TOKEN_S, 600.0, 1200.0, 1800.0, 2400.0)
_PER_TOKEN_S = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4),
    *(0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0),
)
_QUEUE_S = (
    *(0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0),
    *(50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0, 900.0, 1000.0),
    *(1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0),
)
_REPORT_STEPS = 40
"""--decode-log-interval: throughput is taken over this many steps."""
_RANK = {"moe_ep_rank": "0", "pp_rank": "0", "tp_rank": "0"}
_STREAMING = {True: "true", False: "false"}


class SglangMeters:
    """`Meters` of an SGLang-shaped engine."""

    def __init__(
        self,
        *,
        model: str,
        profile: Profile,
        page_tokens: int,
        max_model_tokens: int,
        snapshot: Callable[[], Snapshot],
    ) -> None:
        self._registry = CollectorRegistry()
        self._snapshot = snapshot
        self._request_labels = {"engine_type": "unified", "model_name": model}
        self._scheduler_labels = self._request_labels | _RANK
        self._throughput, self._hit_rate = 0.0, 0.0
        self._window_start_s, self._window_steps, self._window_tokens = 0.0, 0, 0
        self._add_constants(profile, page_tokens, max_model_tokens)
        self._add_gauges()
        self._add_counters()
        self._add_latencies()

    def admitted(self, event: Admitted) -> None:
        self._realtime["prefill_compute"].inc(event.known_tokens - event.cached_tokens)
        self._realtime["prefill_cache"].inc(event.cached_tokens)

    def first_token(self, streaming: bool, since_arrival_s: float) -> None:
        self._realtime["decode"].inc()
        self._ttft[streaming].observe(since_arrival_s)

    def next_token(self, since_previous_s: float) -> None:
        self._realtime["decode"].inc()
        self._itl.observe(since_previous_s)

    def finished(self, event: Finished, request: Request, streaming: bool) -> None:
        self._requests[streaming].inc()
        self._prompt_tokens[streaming].inc(event.prompt_tokens)
        self._output_tokens[streaming].inc(event.output_tokens)
        self._cached_tokens.inc(event.cached_tokens)
        self._e2e[streaming].observe(event.finished_s - event.arrived_s)
        self._queue.observe(event.admitted_s - event.arrived_s)
        if event.output_tokens > 1:
            self._tpot[streaming].observe((event.finished_s - event.first_token_s) / (event.output_tokens - 1))

    def aborted(self, streaming: bool, since_arrival_s: float) -> None:
        self._aborted.inc()
        self._requests[streaming].inc()
        self._e2e[streaming].observe(since_arrival_s)

    def refused(self) -> None:
        """SGLang has no counter for a full queue."""

    def stepped(self, result: StepResult, now: float) -> None:
        self._retracted.inc(len(result.preempted))
        asked = sum(event.known_tokens for event in result.admitted)
        if asked:
            self._hit_rate = sum(event.cached_tokens for event in result.admitted) / asked
        if self._window_steps == 0:
            self._window_start_s, self._window_tokens = now, 0
        self._window_tokens += len(result.emitted)
        self._window_steps += 1
        if result.duration_s is None:
            self._window_steps, self._throughput = 0, 0.0
        elif self._window_steps > _REPORT_STEPS:
            self._throughput = self._window_tokens / (now - self._window_start_s)
            self._window_steps = 0

    def render(self) -> bytes:
        state = self._snapshot()
        for name, value in _state(state).items():
            self._gauges[name].set(value)
        self._gauges["gen_throughput"].set(self._throughput)
        self._gauges["cache_hit_rate"].set(self._hit_rate)
        return generate_latest(_WithoutCreated(self._registry))

    def loads(self, max_running: int) -> dict[str, object]:
        """The entry of /v1/loads for the one data-parallel rank."""
        state = self._snapshot()
        return {
            "dp_rank": 0,
            "num_running_reqs": state.running,
            "num_waiting_reqs": state.waiting,
            "num_used_tokens": state.kv.used_tokens,
            "max_total_num_tokens": state.kv.capacity_tokens,
            "max_running_requests": max_running,
            "token_usage": round(state.kv.used_tokens / state.kv.capacity_tokens, 4),
            "gen_throughput": round(self._throughput, 2),
            "cache_hit_rate": round(self._hit_rate, 4),
            "utilization": round(state.running / max_running, 4),
            "queues": {"waiting": state.waiting, "grammar": 0, "paused": 0, "retracted": 0},
        }

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"sglang:{name}", text, sorted(self._scheduler_labels), registry=self._registry).labels(
            **self._scheduler_labels
        )

    def _counter(self, name: str, text: str, labels: dict[str, str]) -> Counter:
        return Counter(f"sglang:{name}", text, sorted(labels), registry=self._registry).labels(**labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], labels: dict[str, str]) -> Histogram:
        return Histogram(f"sglang:{name}", text, sorted(labels), buckets=buckets, registry=self._registry).labels(
            **labels
        )

    def _counters_by_streaming(self, name: str, text: str) -> dict[bool, Counter]:
        names = sorted({*self._request_labels, "is_streaming"})
        family = Counter(f"sglang:{name}", text, names, registry=self._registry)
        return {key: family.labels(**self._request_labels, is_streaming=value) for key, value in _STREAMING.items()}

    def _histograms_by_streaming(self, name: str, text: str, buckets: Sequence[float]) -> dict[bool, Histogram]:
        names = sorted({*self._request_labels, "is_streaming"})
        family = Histogram(f"sglang:{name}", text, names, buckets=buckets, registry=self._registry)
        return {key: family.labels(**self._request_labels, is_streaming=value) for key, value in _STREAMING.items()}

    def _add_constants(self, profile: Profile, page_tokens: int, max_model_tokens: int) -> None:
        capacity = self._snapshot().kv.capacity_tokens
        for name, text, value in (
            ("max_total_num_tokens", "Maximum total number of tokens in the KV cache pool.", capacity),
            ("page_size", "KV cache page size in tokens.", page_tokens),
            ("num_pages", "Number of KV cache pages.", capacity // page_tokens),
            ("context_len", "Maximum context length.", max_model_tokens),
            (
                "weight_memory_usage_gb",
                "Memory used by model weights in GB.",
                profile.weight_bytes / profile.gpus / 2**30,
            ),
            (
                "kv_cache_memory_usage_gb",
                "Memory used by the KV cache pools in GB.",
                capacity * profile.kv_bytes_per_token / profile.gpus / 2**30,
            ),
        ):
            self._gauge(name, text).set(value)

    def _add_gauges(self) -> None:
        self._gauges = {
            name: self._gauge(name, text)
            for name, text in (
                ("num_running_reqs", "The number of running requests."),
                ("num_queue_reqs", "The number of requests in the waiting queue."),
                ("token_usage", "The token usage."),
                ("num_used_tokens", "The number of used tokens."),
                ("kv_available_tokens", "Number of free token slots in the KV cache pool."),
                (
                    "kv_evictable_tokens",
                    "Number of evictable (radix-cached) token slots in the KV cache pool.",
                ),
                ("kv_used_tokens", "Number of actively used token slots in the KV cache pool."),
                ("gen_throughput", "The generation throughput (token/s)."),
                ("cache_hit_rate", "The prefix cache hit rate."),
            )
        }

    def _add_counters(self) -> None:
        self._prompt_tokens = self._counters_by_streaming("prompt_tokens", "Number of prefill tokens processed.")
        self._output_tokens = self._counters_by_streaming("generation_tokens", "Number of generation tokens processed.")
        self._requests = self._counters_by_streaming("num_requests", "Number of requests processed.")
        self._cached_tokens = self._counter(
            "cached_tokens",
            "Number of cached prompt tokens by source (device/host/storage).",
            self._request_labels | {"cache_source": "device"},
        )
        self._aborted = self._counter("num_aborted_requests", "Number of requests aborted.", self._request_labels)
        self._retracted = self._counter(
            "num_retracted_requests", "Total number of retracted requests.", self._scheduler_labels
        )
        names = sorted({*self._scheduler_labels, "mode"})
        realtime = Counter(
            "sglang:realtime_tokens", "Total number of tokens processed.", names, registry=self._registry
        )
        self._realtime = {
            mode: realtime.labels(**self._scheduler_labels, mode=mode)
            for mode in ("prefill_compute", "prefill_cache", "decode")
        }

    def _add_latencies(self) -> None:
        self._ttft = self._histograms_by_streaming(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_S
        )
        self._tpot = self._histograms_by_streaming(
            "request_time_per_output_token_seconds", "Per-request TPOT in seconds.", _PER_TOKEN_S
        )
        self._e2e = self._histograms_by_streaming(
            "e2e_request_latency_seconds", "Histogram of End-to-end request latency in seconds", _REQUEST_S
        )
        self._itl = self._histogram(
            "inter_token_latency_seconds",
            "Histogram of inter-token latency in seconds.",
            _PER_TOKEN_S,
            self._request_labels,
        )
        self._queue = self._histogram(
            "queue_time_seconds",
            "Histogram of queueing time in seconds.",
            _QUEUE_S,
            self._scheduler_labels,
        )


class _WithoutCreated(Collector):
    """SGLang's registry is collected in multiprocess mode, which has no `_created` series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            metric.samples = [each for each in metric.samples if not each.name.endswith("_created")]
            yield metric


def _state(state: Snapshot) -> dict[str, float]:
    kv = state.kv
    return {
        "num_running_reqs": state.running,
        "num_queue_reqs": state.waiting,
        "token_usage": kv.used_tokens / kv.capacity_tokens,
        "num_used_tokens": kv.used_tokens,
        "kv_available_tokens": kv.free_tokens,
        "kv_evictable_tokens": kv.cached_tokens,
        "kv_used_tokens": kv.used_tokens,
    }
