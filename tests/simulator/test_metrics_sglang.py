"""SGLang's /metrics and /v1/loads over known events: names and labels as recorded, values true."""

from __future__ import annotations

import pytest

from simulator.metrics_sglang import SglangMeters
from simulator.profile import load_profile
from simulator.steps import Emitted
from tests.simulator.metered import FINISHED, REQUEST, feed, make, step, values

SCHEDULER = '{engine_type="unified",model_name="tiny",moe_ep_rank="0",pp_rank="0",tp_rank="0"}'
TOKENIZER = '{engine_type="unified",model_name="tiny"}'
STREAM = '{engine_type="unified",is_streaming="true",model_name="tiny"}'


def test_every_event_moves_its_series_and_no_other() -> None:
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
    assert not [name for name in seen if "_created" in name]


def test_an_answer_of_one_token_has_no_time_per_output_token() -> None:
    meters = make(SglangMeters)
    meters.finished(FINISHED._replace(output_tokens=1), REQUEST, True)
    seen = values(meters.render())
    assert seen[f"sglang:request_time_per_output_token_seconds_count{STREAM}"] == 0
    assert seen[f"sglang:e2e_request_latency_seconds_count{STREAM}"] == 1


def test_streams_and_whole_answers_are_counted_apart() -> None:
    meters = make(SglangMeters)
    meters.finished(FINISHED, REQUEST, False)
    seen = values(meters.render())
    whole = STREAM.replace("true", "false")
    assert (seen[f"sglang:num_requests_total{whole}"], seen[f"sglang:num_requests_total{STREAM}"]) == (1, 0)


def test_memory_is_what_the_profile_says() -> None:
    profile = load_profile("h100_llama-3-8b")
    seen = values(make(SglangMeters).render())
    weights_gb = seen[f"sglang:weight_memory_usage_gb{SCHEDULER}"]
    assert weights_gb == pytest.approx(profile.weight_bytes / profile.gpus / 2**30)
    assert seen[f"sglang:num_pages{SCHEDULER}"] == 1000 // 16


def test_throughput_is_over_forty_steps() -> None:
    meters = make(SglangMeters)
    for number in range(41):
        meters.stepped(step(emitted=[Emitted("r", number, 0.01)] * 2), number * 0.01)
    assert meters.loads(10)["gen_throughput"] == pytest.approx(2 * 41 / 0.4)
    assert meters.loads(10)["num_running_reqs"] == 3
    meters.stepped(step(duration_s=None), 1.0)
    assert meters.loads(10)["gen_throughput"] == 0
