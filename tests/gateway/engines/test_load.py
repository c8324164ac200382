"""One set of figures from what each engine kind shows; real pages, and pages of engines with several ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.engines.kinds import ENGINES
from gateway.engines.load import read_load
from gateway.model import EngineLoad, LoadSeries

CAPTURES = Path(__file__).parents[2] / "contract" / "captures"
NOTHING = EngineLoad(running=None, waiting=None, kv_usage=None, prefix_hit_tokens=None, prefix_query_tokens=None)


def series(kind: str) -> LoadSeries:
    found = ENGINES[kind].load
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_a_real_engines_page_has_every_figure(kind: str) -> None:
    """Captured after requests whose prompts were cached in part, when the engine was idle again."""
    load = read_load((CAPTURES / kind / "metrics.txt").read_text(encoding="utf-8"), series(kind))
    assert (load.running, load.waiting) == (0, 0)
    assert load.kv_usage is not None
    assert 0 <= load.kv_usage < 1
    assert load.prefix_hit_tokens is not None
    assert load.prefix_query_tokens is not None
    assert 0 < load.prefix_hit_tokens < load.prefix_query_tokens


def test_vllms_ranks_are_added_up_and_the_fullest_cache_counts() -> None:
    page = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
vllm:num_requests_waiting{engine="1",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="m",reason="capacity"} 7.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 100.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 50.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 60.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 5.0
"""
    assert read_load(page, series("vllm")) == EngineLoad(
        running=5, waiting=7, kv_usage=0.75, prefix_hit_tokens=65, prefix_query_tokens=150
    )


def test_sglangs_tensor_ranks_and_priorities_repeat_what_is_said_already() -> None:
    """With priorities, the total stands under the empty one; streams and others are counted apart."""
    page = """
sglang:num_running_reqs{dp_rank="0",tp_rank="0",priority=""} 5.0
sglang:num_running_reqs{dp_rank="0",tp_rank="1",priority=""} 5.0
sglang:num_running_reqs{dp_rank="0",tp_rank="0",priority="1"} 3.0
sglang:num_running_reqs{dp_rank="0",tp_rank="0",priority="2"} 2.0
sglang:num_running_reqs{dp_rank="1",tp_rank="2",priority=""} 1.0
sglang:num_queue_reqs{dp_rank="0",tp_rank="0",priority=""} 0.0
sglang:token_usage{dp_rank="0",tp_rank="0"} 0.1
sglang:token_usage{dp_rank="1",tp_rank="2"} 0.2
sglang:prompt_tokens_total{is_streaming="true"} 100.0
sglang:prompt_tokens_total{is_streaming="false"} 20.0
"""
    assert read_load(page, series("sglang")) == EngineLoad(
        running=6, waiting=0, kv_usage=0.2, prefix_hit_tokens=0, prefix_query_tokens=120
    )


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
@pytest.mark.parametrize("page", ["", 'python_info{version="3.11"} 1.0\nhttp_requests_total 4\n'])
def test_what_an_engine_does_not_show_is_not_guessed(kind: str, page: str) -> None:
    assert read_load(page, series(kind)) == NOTHING


def test_a_malformed_line_that_is_needed_is_an_error_and_others_are_not_looked_at() -> None:
    assert read_load("nonsense of another {\n", series("vllm")) == NOTHING
    with pytest.raises(ValueError, match="not a Prometheus sample"):
        read_load("vllm:num_requests_running{\n", series("vllm"))
