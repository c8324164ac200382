"""The exposition, as Prometheus's own parser reads it, against what was observed."""

from __future__ import annotations

import math
from bisect import bisect_right

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gateway.model import EndpointSnapshot, EngineLoad
from gateway.telemetry.metrics import CANCEL_BOUNDS_S, LATENCY_BOUNDS_S, PHASE_BOUNDS_S, GatewayMetrics
from protocol.records import PHASES, GatewayRecord

Series = tuple[str, tuple[tuple[str, str], ...]]
"""Sample name and sorted labels."""

OK = GatewayRecord(
    request_id="r", trace_id="a" * 32, span_id="b" * 16, parent_span_id=None, received_unix_ns=0,
    path="/v1/chat/completions", model="m", stream=True, route="m", pool="p", endpoint="p-0", attempts=1, status=200,
    outcome="ok", error_source=None, error_kind=None, request_bytes=10, response_bytes=500,
    marks_ns={phase: number * 1_000_000 for number, phase in enumerate((*PHASES, "end"))},
    first_token_ns=300_000_000, chunks=7, gap_max_ns=1, events=9, prompt_tokens=20, completion_tokens=5,
    cached_tokens=None, finish_reason="stop",
)  # fmt: skip
REFUSED = msgspec.structs.replace(
    OK, route=None, pool=None, endpoint=None, attempts=0, status=404, outcome="error", error_source="client",
    error_kind="model_not_found", response_bytes=0,
    marks_ns={"receive": 0, "admit": 5_000, "finish": 20_000, "end": 90_000},
    first_token_ns=None, chunks=0, prompt_tokens=None, completion_tokens=None,
)  # fmt: skip
GONE = msgspec.structs.replace(OK, status=None, outcome="client_gone", first_token_ns=None, completion_tokens=None)

ENDPOINTS = [
    EndpointSnapshot(
        pool="p", name=f"p-{number}", url="http://h", engine="vllm", healthy=healthy, draining=False, breaker="closed",
        in_flight=in_flight, last_failure=None, models=[], load=load,
    )
    for number, (healthy, in_flight, load) in enumerate([
        (True, 3, EngineLoad(running=2, waiting=1, kv_usage=0.25, prefix_hit_tokens=30, prefix_query_tokens=None)),
        (False, 0, None),
    ])
]  # fmt: skip


def metrics() -> GatewayMetrics:
    return GatewayMetrics(endpoints=lambda: ENDPOINTS, in_flight=lambda: 4, records_dropped=lambda: 2)


def scrape(gateway: GatewayMetrics) -> dict[Series, float]:
    registry = CollectorRegistry()
    gateway.register(registry)
    samples: dict[Series, float] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation, family.name
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in samples
            samples[key] = sample.value
    return samples


def series(name: str, **labels: str) -> Series:
    return name, tuple(sorted(labels.items()))


def test_requests_errors_and_volumes_are_counted() -> None:
    gateway = metrics()
    for record in (OK, OK, REFUSED, GONE):
        gateway.observe(record)
    gateway.attempt_failed("p", "p-1", "connect_failed")
    gateway.attempt_failed("p", "p-1", "connect_failed")
    got = scrape(gateway)
    requests = {key: value for key, value in got.items() if key[0] == "weir_requests_total"}
    assert requests == {
        series("weir_requests_total", route="m", pool="p", status="200", outcome="ok"): 2,
        series("weir_requests_total", route="none", pool="none", status="404", outcome="error"): 1,
        series("weir_requests_total", route="m", pool="p", status="none", outcome="client_gone"): 1,
    }
    errors = {key: value for key, value in got.items() if key[0] == "weir_errors_total"}
    assert errors == {series("weir_errors_total", source="client", kind="model_not_found"): 1}
    assert got[series("weir_failed_attempts_total", pool="p", endpoint="p-1", kind="connect_failed")] == 2
    assert got[series("weir_relayed_chunks_total", route="m", pool="p")] == 21
    assert got[series("weir_relayed_chunks_total", route="none", pool="none")] == 0
    assert got[series("weir_relayed_bytes_total", route="m", pool="p")] == 1500
    assert got[series("weir_tokens_total", route="m", pool="p", direction="prompt")] == 60
    assert got[series("weir_tokens_total", route="m", pool="p", direction="completion")] == 10


def test_durations_are_of_the_right_requests_and_phases() -> None:
    gateway = metrics()
    for record in (OK, REFUSED, GONE):
        gateway.observe(record)
    got = scrape(gateway)
    assert got[series("weir_request_duration_seconds_count", route="m", pool="p")] == 2
    assert got[series("weir_request_duration_seconds_sum", route="m", pool="p")] == pytest.approx(0.016)
    assert got[series("weir_request_duration_seconds_sum", route="none", pool="none")] == pytest.approx(90e-6)
    assert got[series("weir_time_to_first_token_seconds_count", route="m", pool="p")] == 1
    assert got[series("weir_time_to_first_token_seconds_sum", route="m", pool="p")] == pytest.approx(0.3)
    assert series("weir_time_to_first_token_seconds_count", route="none", pool="none") not in got
    for phase in PHASES:
        assert got[series("weir_phase_duration_seconds_count", route="m", pool="p", phase=phase)] == 2
        assert got[series("weir_phase_duration_seconds_sum", route="m", pool="p", phase=phase)] == pytest.approx(0.002)
    refused = {
        dict(labels)["phase"]: value
        for (name, labels), value in got.items()
        if name == "weir_phase_duration_seconds_sum" and ("pool", "none") in labels
    }
    assert refused == pytest.approx({"receive": 5e-6, "admit": 15e-6, "finish": 70e-6})


def test_the_state_of_the_fleet_is_read_at_the_scrape() -> None:
    got = scrape(metrics())
    buckets = {key for key in got if key[0] == "weir_cancel_propagation_seconds_bucket"}
    assert len(buckets) == len(CANCEL_BOUNDS_S) + 1
    assert {key: value for key, value in got.items() if key not in buckets} == {
        series("weir_cancel_propagation_seconds_count"): 0,
        series("weir_cancel_propagation_seconds_sum"): 0,
        series("weir_in_flight_requests"): 4,
        series("weir_records_dropped_total"): 2,
        series("weir_endpoint_up", pool="p", endpoint="p-0"): 1,
        series("weir_endpoint_up", pool="p", endpoint="p-1"): 0,
        series("weir_endpoint_in_flight_requests", pool="p", endpoint="p-0"): 3,
        series("weir_endpoint_in_flight_requests", pool="p", endpoint="p-1"): 0,
        series("weir_engine_running_requests", pool="p", endpoint="p-0"): 2,
        series("weir_engine_waiting_requests", pool="p", endpoint="p-0"): 1,
        series("weir_engine_kv_usage_ratio", pool="p", endpoint="p-0"): 0.25,
        series("weir_engine_prefix_hit_tokens_total", pool="p", endpoint="p-0"): 30,
    }


def test_what_clients_who_left_cost_and_spared_is_told() -> None:
    gateway = metrics()
    for seconds in (0.00005, 0.0005, 3.0):
        gateway.cancelled(seconds)
    gateway.observe(GONE, saved_tokens=40)
    gateway.observe(GONE, saved_tokens=2)
    got = scrape(gateway)
    cancel = "weir_cancel_propagation_seconds"
    assert [got[series(f"{cancel}_bucket", le=le)] for le in ("0.0001", "0.001", "1.0", "+Inf")] == [1, 2, 2, 3]
    assert got[series(f"{cancel}_sum")] == pytest.approx(3.00055)
    assert got[series("weir_tokens_not_generated_estimate_total", route="m", pool="p")] == 42


def test_nothing_that_a_client_makes_up_becomes_a_label() -> None:
    gateway = metrics()
    gateway.observe(OK)
    gateway.observe(REFUSED)
    before = scrape(gateway).keys()
    for number in range(50):
        made_up = {"request_id": f"r{number}", "path": f"/v1/{number}", "model": f"m{number}", "finish_reason": "x"}
        gateway.observe(msgspec.structs.replace(OK, **made_up))
        gateway.observe(msgspec.structs.replace(REFUSED, **made_up))
    assert scrape(gateway).keys() == before


@given(seconds=st.lists(st.floats(0, 1000) | st.sampled_from(LATENCY_BOUNDS_S), min_size=1, max_size=30))
def test_buckets_are_cumulative_and_hold_what_is_not_longer_than_their_bound(seconds: list[float]) -> None:
    gateway = metrics()
    ends_ns = [round(second * 1e9) for second in seconds]
    for end_ns in ends_ns:
        gateway.observe(msgspec.structs.replace(OK, marks_ns={"receive": 0, "end": end_ns}))
    got = scrape(gateway)
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in got.items()
        if name == "weir_request_duration_seconds_bucket"
    }
    assert list(buckets) == sorted(buckets) == [*LATENCY_BOUNDS_S, math.inf]
    ordered = sorted(end_ns * 1e-9 for end_ns in ends_ns)
    assert list(buckets.values()) == [bisect_right(ordered, bound) for bound in buckets]
    assert got[series("weir_request_duration_seconds_count", route="m", pool="p")] == len(seconds)
    assert got[series("weir_request_duration_seconds_sum", route="m", pool="p")] == pytest.approx(sum(ordered))


def test_bounds_ascend() -> None:
    for bounds in (LATENCY_BOUNDS_S, PHASE_BOUNDS_S, CANCEL_BOUNDS_S):
        assert list(bounds) == sorted(set(bounds))
