"""The summary: who is counted where, and that nothing is lost or counted twice."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.summary import (
    ALL,
    BUCKETS,
    MAX_ARMS,
    MAX_FAILURE_KINDS,
    NO_ARM,
    OTHER_ARMS,
    Summary,
    bucket_of,
    summarise,
)
from loadgen.analyze.validity import GatewayView, JoinCounts

MS = 1_000_000


def view(**changes):
    counts = JoinCounts(**dict.fromkeys(JoinCounts.__struct_fields__, 0))
    return GatewayView(**({"counts": counts, "pools": {}, "phases_ns": {}, "outside_ns": {}} | changes))


def test_bucket_edges_belong_to_the_bucket_below():
    assert BUCKETS == ("≤ 128", "129–512", "513–1024", "1025–2048", "2049–4096", "> 4096")
    assert [bucket_of(n) for n in (1, 128, 129, 512, 513, 4096, 4097)] == [BUCKETS[i] for i in (0, 0, 1, 1, 2, 4, 5)]


def test_requests_split_by_arm_and_planned_prompt_length(made):
    requests = [
        made.request(i, at_ms=i, arm="ab"[i % 2], prompt_tokens_planned=100 if i < 6 else 600) for i in range(10)
    ]
    found = summarise(made.evidence(requests))
    assert (found.arms, found.buckets) == (["a", "b"], ["≤ 128", "513–1024"])
    sizes = {(g.arm, g.bucket): g.scheduled for g in found.groups}
    assert sizes == {
        (None, None): 10,
        ("a", None): 5,
        ("b", None): 5,
        (None, "≤ 128"): 6,
        (None, "513–1024"): 4,
        ("a", "≤ 128"): 3,
        ("a", "513–1024"): 2,
        ("b", "≤ 128"): 3,
        ("b", "513–1024"): 2,
    }
    assert found.group("b", "513–1024").latencies.ttft_s.n == 2
    assert found.group("c") is None


arm_choices = st.lists(st.sampled_from(["a", "b", None]), min_size=1, max_size=30)


@given(arm_choices)
def test_every_scheduled_request_is_in_exactly_one_arm_and_one_bucket(made, arms):
    requests = [made.request(i, at_ms=i, arm=arm, prompt_tokens_planned=40 * i + 1) for i, arm in enumerate(arms)]
    header, entries = made.schedule(requests)
    found = summarise(made.evidence(requests[:-1], header=header, schedule=entries))
    assert sum(found.group(arm).scheduled for arm in found.arms) == len(arms)
    assert sum(found.group(None, bucket).scheduled for bucket in found.buckets) == len(arms)
    assert found.groups[0].outcomes.get("no record") == 1


def test_the_gateway_names_the_arm_where_the_response_did_not(made):
    requests = [made.request(0), made.failed(1), made.failed(2)]
    found = summarise(made.evidence(requests, gateway=view(pools={1: "b"})))
    assert found.arms == ["a", "b", NO_ARM]
    assert found.group("b").outcomes == {"error": 1}


def test_without_any_arm_all_requests_are_one(made):
    assert summarise(made.evidence([made.request(0, arm=None)])).arms == [ALL]


def test_arms_beyond_the_bound_share_one_name(made):
    requests = [made.request(i, at_ms=i, arm=f"arm{i % 12:02}") for i in range(30)]
    found = summarise(made.evidence(requests))
    assert len(found.arms) == MAX_ARMS + 1
    assert found.arms[-1] == OTHER_ARMS
    assert found.group("arm00").scheduled == 3
    assert sum(found.group(arm).scheduled for arm in found.arms) == 30


def test_tokens_of_successful_requests_are_summed(made):
    requests = [made.request(0, cached_tokens=40), made.request(1, cached_tokens=None), made.failed(2)]
    group = summarise(made.evidence(requests)).groups[0]
    assert (group.prompt_tokens, group.output_tokens, group.cached_tokens) == (200, 22, 40)
    assert (group.scheduled, group.sent) == (3, 3)


def test_failures_are_shares_of_all_scheduled_requests(made):
    requests = [made.request(0), made.failed(1), made.failed(2), made.failed(3, outcome="timeout", status=None)]
    header, entries = made.schedule([*requests, made.request(4)])
    found = summarise(made.evidence(requests, header=header, schedule=entries))
    assert [(f.outcome, f.status, f.error, f.count, f.share) for f in found.failures] == [
        ("error", 503, "no endpoint", 2, 0.4),
        ("timeout", None, "no endpoint", 1, 0.2),
        ("no record", None, None, 1, 0.2),
    ]


def test_many_kinds_of_failure_are_bounded_and_none_is_lost(made):
    requests = [made.failed(i, error=f"kind {i}" + "x" * 500) for i in range(MAX_FAILURE_KINDS + 3)]
    found = summarise(made.evidence(requests)).failures
    assert len(found) == MAX_FAILURE_KINDS + 1
    assert (found[-1].outcome, found[-1].error, found[-1].count) == ("various", "3 other kinds", 3)
    assert max(len(f.error) for f in found) == 200


def test_a_failure_without_text_has_none(made):
    assert summarise(made.evidence([made.failed(0, error="")])).failures[0].error is None


def test_load_figures_of_a_run(made):
    requests = [made.request(i, at_ms=100 * i) for i in range(11)]
    found = summarise(made.evidence(requests))
    assert found.scheduled_per_s == pytest.approx(11 / 2)
    assert found.sent_per_s == pytest.approx(10)
    assert found.in_flight_mean == pytest.approx(11 * 0.301 / 1.301)
    assert found.in_flight_max == 4
    assert found.run_s == pytest.approx(1.301)


def test_phases_and_their_sums_per_arm(made):
    requests = [made.request(0), made.request(1, arm="b"), made.request(2)]
    phases = {"receive": 1 * MS, "send": 2 * MS, "first_byte": 100 * MS}
    found = summarise(
        made.evidence(requests, gateway=view(phases_ns={0: phases, 1: {"receive": 5 * MS}}, outside_ns={0: 3 * MS}))
    ).phases
    assert found.arms["a"]["send"].mean == 0.002
    assert (found.arms["a"]["send"].n, found.arms["b"]["send"].n) == (1, 0)
    assert found.to_engine["a"].max == 0.003
    assert found.to_engine["b"].max == 0.005
    assert (found.outside["a"].max, found.outside["b"].n) == (0.003, 0)


def test_an_empty_run_has_a_summary(made):
    found = summarise(made.evidence([], manifest=None))
    assert (found.status, found.run_s, found.in_flight_mean, found.in_flight_max) == ("no manifest", 0, None, 0)
    assert found.groups[0].scheduled == 0
    assert found.arms == []


def test_a_schedule_without_length_has_no_rate(made):
    header, entries = made.schedule([])
    header = msgspec.structs.replace(header, duration_ns=0)
    assert summarise(made.evidence([], header=header, schedule=entries)).scheduled_per_s is None


def test_the_summary_survives_its_file(made):
    requests = [made.request(i, at_ms=i, arm="ab"[i % 2]) for i in range(20)]
    found = summarise(made.evidence(requests, gateway=view(phases_ns={0: {"receive": 1}})))
    assert msgspec.json.decode(msgspec.json.encode(found), type=Summary) == found
