"""vLLM 0.32.0's /metrics: its names, labels and buckets over what the model really did.

It hides prometheus_client. Counters and histograms move as things happen; gauges are read from the engine
when scraped, so they are true at that moment. Only series with a meaning in the model exist.
Source of names, help and buckets: reference capture `vllm_metrics.txt`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from simulator.profile import Profile
from simulator.steps import Admitted, Finished, Request, Snapshot, StepResult

_FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_PER_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0),
    *(480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class VllmMeters:
    """`Meters` of a vLLM-shaped engine. A client that leaves is counted nowhere, as in the real one."""

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
        self._labels = {"engine": "0", "model_name": model}
        self._snapshot = snapshot
        self._add_gauges(page_tokens, profile)
        self._add_counters(model)
        self._add_latencies()
        lengths = _one_two_five(max_model_tokens)
        self._prompt = self._histogram("request_prompt_tokens", "Number of prefill tokens processed.", lengths)
        self._output = self._histogram("request_generation_tokens", "Number of generation tokens processed.", lengths)
        self._max_tokens = self._histogram(
            "request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths
        )
        self._computed = self._histogram(
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            lengths,
        )
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS
        )

    def admitted(self, event: Admitted) -> None:
        """Prompt tokens count once, at first admission; a resumed request is not a new query."""
        if event.resumed:
            return
        self._queries.inc(event.known_tokens)
        self._hits.inc(event.cached_tokens)
        self._prompt_tokens.inc(event.known_tokens)
        self._computed_tokens.inc(event.known_tokens - event.cached_tokens)
        self._cached_tokens.inc(event.cached_tokens)

    def first_token(self, streaming: bool, since_arrival_s: float) -> None:
        self._output_tokens.inc()
        self._ttft.observe(since_arrival_s)

    def next_token(self, since_previous_s: float) -> None:
        self._output_tokens.inc()
        self._itl.observe(since_previous_s)

    def finished(self, event: Finished, request: Request, streaming: bool) -> None:
        self._success[event.reason].inc()
        decode_s = event.finished_s - event.first_token_s
        self._e2e.observe(event.finished_s - event.arrived_s)
        self._queue.observe(event.admitted_s - event.arrived_s)
        self._inference.observe(event.finished_s - event.admitted_s)
        self._prefill.observe(event.first_token_s - event.admitted_s)
        self._decode.observe(decode_s)
        if event.output_tokens > 1:
            self._tpot.observe(decode_s / (event.output_tokens - 1))
        self._request_preemptions.observe(event.preemptions)
        self._prompt.observe(event.prompt_tokens)
        self._output.observe(event.output_tokens)
        self._max_tokens.observe(request.max_tokens)
        self._computed.observe(event.prompt_tokens - event.cached_tokens)

    def aborted(self, streaming: bool, since_arrival_s: float) -> None:
        """vLLM forgets a request that was aborted before it could count it."""

    def refused(self) -> None:
        self._rejections.inc()

    def stepped(self, result: StepResult, now: float) -> None:
        if result.new_tokens:
            self._step_tokens.observe(result.new_tokens)
        self._preemptions.inc(len(result.preempted))

    def render(self) -> bytes:
        state = self._snapshot()
        self._running.set(state.running)
        self._waiting.set(state.waiting)
        self._waiting_capacity.set(state.waiting)
        self._kv_usage.set(state.kv.used_tokens / state.kv.capacity_tokens)
        return generate_latest(self._registry)

    def _gauge(self, name: str, text: str, **labels: str) -> Gauge:
        labels |= self._labels
        return Gauge(f"vllm:{name}", text, sorted(labels), registry=self._registry).labels(**labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"vllm:{name}", text, sorted(self._labels), registry=self._registry).labels(**self._labels)

    def _counters(self, name: str, text: str, label: str, values: Sequence[str]) -> dict[str, Counter]:
        family = Counter(f"vllm:{name}", text, sorted({*self._labels, label}), registry=self._registry)
        return {value: family.labels(**self._labels, **{label: value}) for value in values}

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"vllm:{name}", text, sorted(self._labels), buckets=buckets, registry=self._registry).labels(
            **self._labels
        )

    def _add_gauges(self, page_tokens: int, profile: Profile) -> None:
        self._running = self._gauge("num_requests_running", "Number of requests in model execution batches.")
        self._waiting = self._gauge("num_requests_waiting", "Number of requests waiting to be processed.")
        by_reason = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Number of waiting requests by reason.",
            ["engine", "model_name", "reason"],
            registry=self._registry,
        )
        self._waiting_capacity = by_reason.labels(**self._labels, reason="capacity")
        by_reason.labels(**self._labels, reason="deferred").set(0)
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.")
        Gauge(
            "vllm:cache_config_info",
            "Information of the LLMEngine CacheConfig",
            ["block_size", "enable_prefix_caching", "engine", "gpu_memory_utilization", "num_gpu_blocks"],
            registry=self._registry,
        ).labels(
            block_size=str(page_tokens),
            enable_prefix_caching="True",
            engine="0",
            gpu_memory_utilization=str(profile.efficiency.memory_utilisation),
            num_gpu_blocks=str(self._snapshot().kv.capacity_tokens // page_tokens),
        ).set(1)

    def _add_counters(self, model: str) -> None:
        self._queries = self._counter(
            "prefix_cache_queries", "Prefix cache queries, in terms of number of queried tokens."
        )
        self._hits = self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.")
        self._preemptions = self._counter("num_preemptions", "Cumulative number of preemption from the engine.")
        self._prompt_tokens = self._counter("prompt_tokens", "Number of prefill tokens processed.")
        sources = self._counters(
            "prompt_tokens_by_source",
            "Number of prompt tokens by source.",
            "source",
            ("local_compute", "local_cache_hit", "external_kv_transfer"),
        )
        self._computed_tokens, self._cached_tokens = sources["local_compute"], sources["local_cache_hit"]
        self._output_tokens = self._counter("generation_tokens", "Number of generation tokens processed.")
        self._success = self._counters(
            "request_success", "Count of successfully processed requests.", "finished_reason", _FINISH_REASONS
        )
        self._rejections = Counter(
            "vllm:admission_rejections",
            "Number of admission attempts rejected by a queue limit, by reason.",
            ["model_name", "reason"],
            registry=self._registry,
        ).labels(model_name=model, reason="max_num_queued_reqs")

    def _add_latencies(self) -> None:
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN_S
        )
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _PER_TOKEN_S
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Histogram of time_per_output_token_seconds per request.",
            _PER_TOKEN_S,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST_S
        )
        self._queue = self._phase("queue", "WAITING")
        self._inference = self._phase("inference", "RUNNING")
        self._prefill = self._phase("prefill", "PREFILL")
        self._decode = self._phase("decode", "DECODE")
        self._request_preemptions = self._histogram(
            "request_num_preemptions",
            "Histogram of the number of times a request was preempted.",
            (1, 2, 3, 4, 5, 10, 20),
        )

    def _phase(self, name: str, state: str) -> Histogram:
        text = f"Histogram of time spent in {state} phase for request."
        return self._histogram(f"request_{name}_time_seconds", text, _REQUEST_S)


def _one_two_five(most: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 … up to `most`: vLLM's build_1_2_5_buckets."""
    return [step * 10**power for power in range(len(str(most))) for step in (1, 2, 5) if step * 10**power <= most]
