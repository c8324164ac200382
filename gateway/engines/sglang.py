"""SGLang as the gateway sees it (`sglang.launch_server`, checked against 0.5.23).

`/health` runs a generation and takes a second or more by design; `/ready` answers at once. Its load is there only
with `--enable-metrics`; gauges are as old as the last 40 decode steps, and tokens are counted as requests end.
"""

from gateway.model import EngineKind, LoadSeries

SGLANG = EngineKind(
    name="sglang",
    health_path="/ready",
    prefill=True,
    load=LoadSeries(
        running="sglang:num_running_reqs",
        waiting="sglang:num_queue_reqs",
        kv_usage="sglang:token_usage",
        prefix_hits="sglang:cached_tokens_total",
        prefix_queries="sglang:prompt_tokens_total",
        rank_label="dp_rank",
    ),
)
