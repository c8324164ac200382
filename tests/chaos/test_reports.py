"""Which test holds us to which report against a peer: every case of the list has its tests, and they exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LEAVING = "tests/chaos/test_leaving_clients.py"
INTACT = "tests/chaos/test_streams_intact.py"
BROKEN = "tests/chaos/test_broken_streams.py"
FAILING = "tests/chaos/test_failing_engines.py"
PROCESSES = "tests/chaos/test_processes.py"
NGINX = "tests/chaos/test_nginx.py"
BREAKER = "tests/gateway/policy/test_breaker.py"

REPORTS: dict[str, tuple[str, ...]] = {
    "1 smg PR#2136": (
        f"{LEAVING}::test_the_engine_hears_of_it_at_once",
        f"{LEAVING}::test_a_connect_that_hangs_is_given_up",
    ),
    "2 litellm#37140": (
        f"{LEAVING}::test_the_engine_hears_of_it_at_once",
        f"{LEAVING}::test_nothing_is_retried_for_a_client_that_left",
    ),
    "3 litellm PR#31499": (f"{LEAVING}::test_the_engine_hears_of_it_at_once",),
    "4 litellm#36123": (f"{LEAVING}::test_every_endpoint_cancels_alike",),
    "5 production-stack PR#1040": (f"{LEAVING}::test_the_ledgers_return_to_zero",),
    "6 vllm-router PR#215": (f"{LEAVING}::test_the_ledgers_return_to_zero",),
    "7 sglang-omni PR#931": (
        f"{LEAVING}::test_the_ledgers_return_to_zero",
        f"{LEAVING}::test_a_close_that_fails_still_gives_the_place_back",
    ),
    "9 dynamo#10923": (
        f"{LEAVING}::test_what_a_cancelled_stream_cost_is_recorded",
        f"{PROCESSES}::test_a_client_is_killed_in_the_middle_of_a_stream",
    ),
    "11 Portkey#1797": (
        f"{BROKEN}::test_a_stream_that_stops_too_early_says_so_in_its_own_family",
        f"{PROCESSES}::test_an_engine_is_killed_in_the_middle_of_a_stream",
    ),
    "12 litellm#25492": (
        f"{BROKEN}::test_an_error_as_first_event_gets_its_real_status",
        "tests/protocol/test_first_event.py::test_an_error_is_known_as_soon_as_its_event_is_complete",
    ),
    "13 litellm PR#40243": ("tests/gateway/test_proxy.py::test_a_broken_responses_stream_fails_with_the_next_number",),
    "14 envoy ai-gateway#2463": (
        f"{INTACT}::test_bytes_pass_untouched_and_usage_is_found",
        "tests/protocol/test_sse.py::test_any_cut_of_any_stream_gives_the_events_of_the_rules",
    ),
    "15 higress#4146": (
        f"{INTACT}::test_bytes_pass_untouched_and_usage_is_found",
        "tests/protocol/test_stream.py::test_any_split_of_any_stream_is_seen_as_the_exact_parser_sees_it",
        "tests/protocol/test_usage.py::test_any_split_of_any_stream_lacks_exactly_the_usage_events",
    ),
    "16 litellm#18842": (f"{INTACT}::test_bytes_pass_untouched_and_usage_is_found",),
    "17 ferro-labs ai-gateway#129": (
        f"{INTACT}::test_bytes_pass_untouched_and_usage_is_found",
        "tests/protocol/test_stream.py::test_an_oversized_event_is_counted_but_not_read",
    ),
    "18 vm0#8884": (
        f"{INTACT}::test_no_encoding_is_asked_for_and_one_that_comes_passes",
        f"{INTACT}::test_a_compressed_request_reaches_the_engine_as_it_is",
    ),
    "19 llmgateway PR#2334": (f"{INTACT}::test_the_openai_client_is_not_disturbed_by_keep_alives",),
    "20 litellm#34374": (f"{INTACT}::test_an_error_after_a_keep_alive_is_told_inside_the_stream",),
    "21 llama-swap#236": (
        f"{NGINX}::test_events_pass_nginx_one_by_one",
        "tests/gateway/test_headers.py::test_a_stream_is_neither_cached_nor_buffered_on_its_way",
    ),
    "22 bifrost#1422": (
        f"{INTACT}::test_events_are_not_held_back",
        f"{INTACT}::test_nagle_is_off_towards_the_engine",
        "tests/gateway/test_server.py::test_nagle_is_off",
    ),
    "23 bifrost#1305": (
        "tests/gateway/upstream/test_pool.py::test_one_that_was_idle_for_too_long_is_not_taken_but_handed_back",
        "tests/gateway/upstream/test_client.py::test_a_reused_connection_that_dies_without_a_byte_may_be_tried_again",
        f"{FAILING}::test_idle_connections_are_given_up_before_the_engine_does",
    ),
    "24 shenyu#6647": (
        f"{BROKEN}::test_nothing_is_sent_again_after_the_first_token",
        f"{BROKEN}::test_every_attempt_carries_the_same_bytes",
    ),
    "25 sglang#25811": (
        f"{FAILING}::test_two_bad_requests_do_not_close_a_pool",
        f"{FAILING}::test_client_errors_do_not_open_a_circuit",
        f"{FAILING}::test_the_last_engines_are_never_left_out",
        f"{BREAKER}::test_a_share_of_failures_opens_only_from_the_minimum_volume_on",
    ),
    "26 sglang#31206": (
        f"{FAILING}::test_an_outage_ends_within_one_rest",
        f"{BREAKER}::test_whatever_happened_one_good_probe_closes_within_one_rest_or_one_lost_probe",
    ),
    "27 vllm-router#179": ("tests/chaos/test_balance.py::test_uniform_load_is_spread_evenly",),
    "28 llm-d-router PR#2515": (f"{FAILING}::test_a_burst_of_equal_prompts_spreads",),
    "29 production-stack#749": (
        f"{FAILING}::test_one_engine_that_hangs_holds_up_nobody_else",
        f"{FAILING}::test_two_thousand_streams_at_once",
        "tests/gateway/test_fleet.py::test_engines_that_hang_do_not_hold_up_the_checks_of_the_others",
    ),
    "30 litellm#14334": (
        f"{PROCESSES}::test_sigterm_lets_open_streams_finish",
        f"{PROCESSES}::test_what_outlasts_the_drain_is_told_so",
        "tests/gateway/test_server.py::test_sigterm_lets_streams_finish_and_takes_nothing_new",
        "tests/gateway/test_server.py::test_what_outlasts_the_drain_ends_in_an_in_band_error",
    ),
    "31 litellm#35666": (f"{FAILING}::test_names_from_outside_are_no_labels",),
    "34 claude-code-proxy PR#114": ("tests/gateway/test_asgi.py::test_a_client_that_leaves_frees_the_engine",),
    "36 vllm-router#161": (f"{INTACT}::test_a_request_body_is_sent_as_it_was_written",),
    "38 vllm-router": (f"{BROKEN}::test_an_error_response_to_a_stream_stays_json",),
}
"""By the number of the case and one of its reports. 29's removal of probes at a reload has no test: nothing reloads."""

PROBES: dict[str, tuple[str, ...]] = {
    "client drops mid-stream, tokens flowing": (f"{LEAVING}::test_the_engine_hears_of_it_at_once",),
    "client drops before first byte": (f"{LEAVING}::test_the_engine_hears_of_it_at_once",),
    "client drops, non-streaming": (f"{LEAVING}::test_nothing_is_retried_for_a_client_that_left",),
    "client drops after headers, before the first token": (f"{LEAVING}::test_the_engine_hears_of_it_at_once",),
    "client drops while the stream is silent": (f"{LEAVING}::test_the_engine_hears_of_it_at_once",),
    "400 JSON to a stream keeps its type": (f"{BROKEN}::test_an_error_response_to_a_stream_stays_json",),
    "500 attempts": (f"{FAILING}::test_attempts_are_few_and_the_last_answer_is_told",),
    "503 attempts": (f"{FAILING}::test_a_retry_after_is_waited_for_or_passed_on",),
    "429 attempts": (f"{FAILING}::test_a_retry_after_is_waited_for_or_passed_on",),
    "two bad requests, then good traffic": (f"{FAILING}::test_two_bad_requests_do_not_close_a_pool",),
    "RST before headers": (f"{FAILING}::test_attempts_are_few_and_the_last_answer_is_told",),
    "stream RST mid-way": (
        f"{BROKEN}::test_a_stream_that_stops_too_early_says_so_in_its_own_family",
        f"{BROKEN}::test_a_broken_connection_ends_the_clients_response_properly",
    ),
    "clean end without finish_reason": (f"{BROKEN}::test_a_stream_that_stops_too_early_says_so_in_its_own_family",),
    "in-band error in a 200": (f"{BROKEN}::test_an_error_as_first_event_gets_its_real_status",),
    "exotic SSE": (f"{INTACT}::test_bytes_pass_untouched_and_usage_is_found",),
    "slow client": ("tests/gateway/test_proxy_leaving.py::test_a_slow_reader_pauses_the_engine_and_loses_nothing",),
    "X-Accel-Buffering and Cache-Control": (f"{NGINX}::test_events_pass_nginx_one_by_one",),
    "unknown body field": (f"{INTACT}::test_a_request_body_is_sent_as_it_was_written",),
    "traceparent and own headers": (f"{INTACT}::test_what_clients_send_along_reaches_the_engine",),
    "include_usage injected": (f"{INTACT}::test_usage_is_injected_and_hidden_again",),
}
"""By the row of the probe of five peers. Its last four rows are costs, which `benchmarks/` measures."""


@pytest.mark.parametrize("case", [*REPORTS, *PROBES])
def test_every_report_is_held_by_tests_that_exist(case: str) -> None:
    for name in (REPORTS | PROBES)[case]:
        file, _, function = name.partition("::")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in functions, name
