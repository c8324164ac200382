"""vLLM as the gateway sees it (`vllm serve`, checked against 0.32).

`/health` tells only that the engine process is alive; it answers at once. `--disable-log-stats` takes the series
of its load away.
"""

from gateway.model import EngineKind, LoadSeries

VLLM = EngineKind(
    name="vllm",
    health_path="/health",
    prefill=True,
    load=LoadSeries(
        running="vllm:num_requests_running",
        waiting="vllm:num_requests_waiting",
        kv_usage="vllm:kv_cache_usage_perc",
        prefix_hits="vllm:prefix_cache_hits_total",
        prefix_queries="vllm:prefix_cache_queries_total",
        rank_label="engine",
    ),
)
