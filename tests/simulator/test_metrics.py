"""Both kinds' /metrics over the same events: names and labels as recorded, values true."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simulator.cache import CacheUsage
from simulator.metrics_sglang import SglangMeters
from simulator.metrics_vllm import VllmMeters
from simulator.profile import load_profile
from simulator.steps import Admitted, Emitted, Finished, Request, Snapshot, StepResult

SNAPSHOT = Snapshot(
    running=3,
    waiting=2,
    kv=CacheUsage(capacity_tokens=1000, free_tokens=500, cached_tokens=300, used_tokens=200),
)
REQUEST = Request(request_id="r", prompt=(1,) * 100, output=(1,) * 5, finish_reason="stop", max_tokens=50)
FINISHED = Finished("r", "stop", 100, 60, 5, 1, 10.0, 10.5, 11.0, 13.0)
VLLM = '{engine="0",model_name="tiny"}'
SCHEDULER = '{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
TOKENIZER = '{engine_type="unified",model_name="tiny"}'
STREAM = '{engine_type="unified",is_streaming="true",model_name="tiny"}'


def step(**changes: Any) -> StepResult:
    empty: dict[str, Any] = {"emitted": [], "finished": [], "admitted": [], "preempted": [], "new_tokens": 0}
    return StepResult(**(empty | {"duration_s": 0.01} | changes))


def feed(meters: VllmMeters | SglangMeters) -> None:
    admitted = Admitted("r", 100, 60, False)
    meters.admitted(admitted)
    meters.admitted(Admitted("r", 103, 96, True))
    meters.first_token(True, 1.0)
    for _ in range(4):
        meters.next_token(0.5)
    meters.finished(FINISHED, REQUEST, True)
    meters.aborted(True, 2.0)
    meters.refused()
    meters.stepped(step(admitted=[admitted], new_tokens=40), 1.0)
    meters.stepped(step(preempted=["r"], duration_s=None), 2.0)


def values(text: bytes) -> dict[str, float]:
    lines = (line for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def make(kind: type[Any]) -> Any:
    return kind(
        model="tiny",
        profile=load_profile("h100_llama-3-8b"),
        page_tokens=16,
        max_model_tokens=8192,
        snapshot=lambda: SNAPSHOT,
    )


def test_vllm() -> None:
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
    assert {name: seen[f"vllm:{name}{VLLM}"] for name in expected} == expected
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


def test_sglang() -> None:
    meters = make(SglangMeters)
    feed(meters)
    seen = values(meters.render())
    expected = {
        f"num_running_reqs{SCHEDULER}": 3,
        f"num_queue_reqs{SCHEDULER}": 2,
        f"token_usage{SCHEDULER}": 0.2,
        f"kv_available_tokens{SCHEDULER}": 500,
        f"kv_evictable_tokens{SCHEDULER}": 300,
        f"kv_used_tokens{SCHEDULER}": 200,
        f"cache_hit_rate{SCHEDULER}": 0.6,
        f"gen_throughput{SCHEDULER}": 0,
        f"max_total_num_tokens{SCHEDULER}": 1000,
        f"num_retracted_requests_total{SCHEDULER}": 1,
        f"queue_time_seconds_sum{SCHEDULER}": 0.5,
        f"num_aborted_requests_total{TOKENIZER}": 1,
        f"inter_token_latency_seconds_count{TOKENIZER}": 4,
        f"num_requests_total{STREAM}": 2,
        f"prompt_tokens_total{STREAM}": 100,
        f"generation_tokens_total{STREAM}": 5,
        f"time_to_first_token_seconds_sum{STREAM}": 1.0,
        f"request_time_per_output_token_seconds_sum{STREAM}": 0.5,
        f"e2e_request_latency_seconds_sum{STREAM}": 5.0,
    }
    assert {name: seen[f"sglang:{name}"] for name in expected} == expected
    cached = 'sglang:cached_tokens_total{cache_source="device",engine_type="unified",model_name="tiny"}'
    assert seen[cached] == 60
    assert not [name for name in seen if re.search("_created", name)]


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    short = FINISHED._replace(output_tokens=1)
    for kind, name in ((VllmMeters, f"vllm:request_time_per_output_token_seconds_count{VLLM}"),):
        meters = make(kind)
        meters.finished(short, REQUEST, True)
        assert values(meters.render())[name] == 0
    meters = make(SglangMeters)
    meters.finished(short, REQUEST, True)
    assert values(meters.render())[f"sglang:request_time_per_output_token_seconds_count{STREAM}"] == 0


def test_sglang_throughput_is_over_forty_steps() -> None:
    meters = make(SglangMeters)
    for number in range(41):
        meters.stepped(step(emitted=[Emitted("r", number, 0.01)] * 2), number * 0.01)
    assert meters.loads(10)["gen_throughput"] == pytest.approx(2 * 41 / 0.4)
    assert meters.loads(10)["num_running_reqs"] == 3
    meters.stepped(step(duration_s=None), 1.0)
    assert meters.loads(10)["gen_throughput"] == 0
