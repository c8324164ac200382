"""vLLM's /metrics over known events: names, labels and buckets as recorded, values true."""

from __future__ import annotations

from simulator.metrics_vllm import VllmMeters
from tests.simulator.metered import FINISHED, REQUEST, feed, make, step, values

LABELS = '{engine="0",model_name="tiny"}'


def test_every_event_moves_its_series_and_no_other() -> None:
    meters = make(VllmMeters)
    feed(meters)
    seen = values(meters.render())
    expected = {
        "num_requests_running": 3,
        "num_requests_waiting": 2,
        "kv_cache_usage_perc": 0.2,
        "prefix_cache_queries_total": 100,
        "prefix_cache_hits_total": 60,
        "prompt_tokens_total": 100,
        "generation_tokens_total": 5,
        "num_preemptions_total": 1,
        "time_to_first_token_seconds_sum": 1.0,
        "inter_token_latency_seconds_sum": 2.0,
        "inter_token_latency_seconds_count": 4,
        "request_time_per_output_token_seconds_sum": 0.5,
        "e2e_request_latency_seconds_sum": 3.0,
        "request_queue_time_seconds_sum": 0.5,
        "request_prefill_time_seconds_sum": 0.5,
        "request_decode_time_seconds_sum": 2.0,
        "request_inference_time_seconds_sum": 2.5,
        "request_num_preemptions_sum": 1,
        "request_prefill_kv_computed_tokens_sum": 40,
        "request_params_max_tokens_sum": 50,
        "iteration_tokens_total_count": 1,
        "iteration_tokens_total_sum": 40,
    }
    assert {name: seen[f"vllm:{name}{LABELS}"] for name in expected} == expected
    by_label = {
        'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"}': 1,
        'vllm:request_success_total{engine="0",finished_reason="abort",model_name="tiny"}': 0,
        'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}': 1,
        'vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_compute"}': 40,
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}': 2,
        'vllm:request_prompt_tokens_bucket{engine="0",le="5000.0",model_name="tiny"}': 1,
    }
    assert {name: seen[name] for name in by_label} == by_label
    assert 'vllm:request_prompt_tokens_bucket{engine="0",le="10000.0",model_name="tiny"}' not in seen


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    meters = make(VllmMeters)
    meters.finished(FINISHED._replace(output_tokens=1), REQUEST, True)
    seen = values(meters.render())
    assert seen[f"vllm:request_time_per_output_token_seconds_count{LABELS}"] == 0
    assert seen[f"vllm:e2e_request_latency_seconds_count{LABELS}"] == 1


def test_a_step_without_tokens_is_no_iteration() -> None:
    meters = make(VllmMeters)
    meters.stepped(step(duration_s=None), 1.0)
    assert values(meters.render())[f"vllm:iteration_tokens_total_count{LABELS}"] == 0


def test_the_configuration_of_the_cache_is_told() -> None:
    text = make(VllmMeters).render().decode()
    [line] = [line for line in text.splitlines() if line.startswith("vllm:cache_config_info{")]
    assert 'block_size="16"' in line
    assert f'num_gpu_blocks="{1000 // 16}"' in line
    assert line.endswith(" 1.0")
