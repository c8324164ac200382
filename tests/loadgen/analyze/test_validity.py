"""Each reason to distrust a run appears exactly when its cause is there."""

import msgspec
import pytest

from loadgen.analyze.validity import GatewayView, JoinCounts, judge
from protocol.records import Calibration, ClientHealth, Manifest, WorkerReport

SECOND = 1_000_000_000


@pytest.fixture
def good(made):
    return [made.request(i, at_ms=10 * i) for i in range(300)]


def kinds(evidence):
    return {reason.kind: reason.severity for reason in judge(evidence).reasons}


def test_a_good_run_is_valid_without_any_reason(made, good):
    found = judge(made.evidence(good))
    assert (found.verdict, found.reasons) == ("VALID", [])


def test_damaged_files_make_it_invalid_and_are_quoted(made, good):
    found = judge(made.evidence(good, damage=("a is bad", "b is worse")))
    assert found.verdict == "INVALID"
    assert found.reasons[0].text == "a is bad; b is worse"


def test_interrupted_and_killed_runs_are_told_apart(made, good):
    header, _ = made.schedule(good)
    interrupted: Manifest = made.manifest(good, header, status="interrupted")
    assert (
        "was interrupted: 300 of 300 scheduled requests succeeded"
        in judge(made.evidence(good, manifest=interrupted)).reasons[0].text
    )
    assert "killed" in judge(made.evidence(good, manifest=None)).reasons[0].text


def test_records_must_be_those_of_the_schedule(made, good):
    header, entries = made.schedule(good)
    moved = [made.request(0, at_ms=1), *good[1:]]
    found = judge(made.evidence(moved, header=header, schedule=entries))
    assert [reason.kind for reason in found.reasons] == ["not_as_scheduled"]
    assert "1 records differ" in found.reasons[0].text
    assert "index 0" in found.reasons[0].text


def test_a_closed_loop_has_no_times_to_keep(made, good):
    header, entries = made.schedule([made.request(r.index) for r in good])
    closed = msgspec.structs.replace(header, arrivals="closed", concurrency=4, duration_ns=0)
    assert "not_as_scheduled" not in kinds(made.evidence(good, header=closed, schedule=entries))
    other = [made.request(0, tokens=7), *good[1:]]
    assert "not_as_scheduled" in kinds(made.evidence(other, header=closed, schedule=entries))


def test_unsent_and_unrecorded_requests_make_it_invalid(made, good):
    assert kinds(made.evidence([*good, made.unsent(300)])) == {"not_all_sent": "error"}
    header, entries = made.schedule(good)
    assert "not_all_sent" in kinds(made.evidence(good[:299], header=header, schedule=entries))


@pytest.mark.parametrize(("late", "expected"), [(3, {}), (4, {"late_sends": "error"})])
def test_more_than_one_late_send_in_a_hundred_makes_it_invalid(made, good, late, expected):
    requests = [made.request(i, at_ms=10 * i, late_ms=6 if i < late else 0) for i in range(300)]
    assert kinds(made.evidence(requests)) == expected


def test_late_sends_are_told_with_their_numbers(made):
    requests = [made.request(i, at_ms=10 * i, late_ms=20 if i < 10 else 0) for i in range(300)]
    (reason,) = judge(made.evidence(requests)).reasons
    assert "20.0 ms" in reason.text
    assert "10 of 300" in reason.text


def test_marks_that_run_backwards_make_it_invalid(made, good):
    early = made.request(0, late_ms=-1)
    assert "marks_out_of_order" in kinds(made.evidence([early, *good[1:]]))


@pytest.mark.parametrize(("extra", "expected"), [(1, {}), (2, {"prompt_tokens_differ": "error"})])
def test_prompt_lengths_may_miss_by_half_a_percent(made, extra, expected):
    """200 planned tokens a request: one more is 0.5 %, two are too many."""
    requests = [made.request(i, at_ms=10 * i, prompt_tokens_planned=200, prompt_tokens=200 + extra) for i in range(300)]
    assert kinds(made.evidence(requests)) == expected


def test_longer_and_shorter_answers_do_not_cancel_out(made):
    requests = [made.request(i, at_ms=10 * i, tokens=100, output_tokens=101 if i % 2 else 99) for i in range(300)]
    (reason,) = judge(made.evidence(requests)).reasons
    assert reason.kind == "output_tokens_differ"
    assert "300 of 300" in reason.text
    assert "300 of 30,000 tokens" in reason.text


@pytest.mark.parametrize(("missing", "severity"), [(1, "warning"), (2, "error")])
def test_missing_usage_is_an_error_beyond_half_a_percent(made, missing, severity):
    requests = [made.request(i, at_ms=10 * i, output_tokens=None if i < missing else 11) for i in range(300)]
    assert kinds(made.evidence(requests)) == {"missing_usage": severity}


def test_missing_prompt_usage_counts_too(made, good):
    assert "missing_usage" in kinds(made.evidence([made.request(0, prompt_tokens=None), *good[1:]]))


def test_a_failing_system_is_a_warning_and_not_an_invalid_run(made, good):
    half = [made.failed(i, at_ms=10 * i) if i % 2 else r for i, r in enumerate(good)]
    more = [made.request(i, at_ms=10 * i) for i in range(300, 600)]
    found = judge(made.evidence(half + more))
    assert found.verdict == "VALID"
    (reason,) = found.reasons
    assert "150 of 600" in reason.text
    assert "25.00%" in reason.text


def test_truncated_streams_are_told(made, good):
    requests = [made.request(0, outcome="truncated"), *good[1:]]
    assert kinds(made.evidence(requests)) == {"truncated_streams": "warning"}


def test_a_run_without_success_is_invalid(made):
    assert kinds(made.evidence([made.failed(i) for i in range(3)])) == {"no_success": "error"}


def test_an_empty_schedule_is_no_failure(made):
    assert kinds(made.evidence([])) == {}


def test_few_samples_are_told(made, good):
    assert kinds(made.evidence(good[:298])) == {"few_samples": "warning"}


def test_littles_law_finds_requests_that_were_lost(made, good):
    lost = [made.request(i, at_ms=10 * i, end_ns=None) if i < 5 else r for i, r in enumerate(good)]
    found = judge(made.evidence(lost))
    (reason,) = [r for r in found.reasons if r.kind == "littles_law"]
    assert "5 sent requests have no end" in reason.text
    assert found.verdict == "INVALID"


def test_errors_come_before_warnings(made, good):
    found = judge(made.evidence([made.failed(0), *good[1:299], made.unsent(299)]))
    assert [r.severity for r in found.reasons] == ["error", "warning", "warning"]


def test_a_body_that_changed_on_the_way_makes_it_invalid(made, good):
    counts = dict.fromkeys(JoinCounts.__struct_fields__, 0) | {"pairs": 300, "bodies_differ": 2}
    view = GatewayView(counts=JoinCounts(**counts), pools={}, phases_ns={}, outside_ns={})
    assert kinds(made.evidence(good, gateway=view)) == {"bodies_differ": "error"}


@pytest.mark.parametrize(
    ("changes", "complete"),
    [
        ({}, True),
        ({"unsent": 3}, True),
        ({"requests_without_gateway": 2}, False),
        ({"gateway_without_request": 1}, False),
        ({"duplicate_requests": 1}, False),
        ({"duplicate_gateway": 2}, False),
        ({"outcomes_differ": 1}, False),
    ],
)
def test_an_incomplete_join_is_told(made, good, changes, complete):
    counts = dict.fromkeys(JoinCounts.__struct_fields__, 0) | {"pairs": 300} | changes
    view = GatewayView(counts=JoinCounts(**counts), pools={}, phases_ns={}, outside_ns={})
    assert kinds(made.evidence(good, gateway=view)) == ({} if complete else {"join_incomplete": "warning"})


def health(**changes):
    """A client that had little to do and did it in time, for 10 s."""
    values = {
        "wall_s": 10.0,
        "cpu_s": 3.0,
        "run_delay_s": 0.1,
        "other_cpu_s": 2.0,
        "loop_lag_p99_ns": 300_000,
        "loop_lag_max_ns": 2_000_000,
        "stalls": 0,
        "stalled_s": 0.0,
        "gc_pauses": 5,
        "gc_total_ns": 2_000_000,
        "gc_max_ns": 800_000,
        "peak_rss_bytes": 45_000_000,
    }
    return ClientHealth(**(values | changes))


def worker(name="0", **changes):
    values = {"name": name, "requests": 300, "outcomes": {"ok": 300}, "scheduling": "ordinary", "health": health()}
    return WorkerReport(**(values | changes))


def judged(made, requests, **manifest_changes):
    header, _ = made.schedule(requests)
    return judge(made.evidence(requests, manifest=made.manifest(requests, header, **manifest_changes))).reasons


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, None),
        ({"cpu_s": 9.1}, "worker 1 was busy for 91% of the time"),
        ({"loop_lag_p99_ns": 5_100_000}, "worker 1 came 5.1 ms late to its reads at P99"),
        ({"stalls": 1, "stalled_s": 0.2}, "worker 1 was away from its event loop 1 times, for 0.20 of 10 s"),
        ({"stalls": 3, "stalled_s": 0.05}, None),
    ],
    ids=["well", "busy", "late", "blocked for 200 ms", "disturbed a little"],
)
def test_a_client_that_was_the_bottleneck_makes_it_invalid(made, good, changes, told):
    reasons = judged(made, good, workers=[worker("0"), worker("1", health=health(**changes))])
    saturated = [reason for reason in reasons if reason.kind == "client_saturated"]
    assert [reason.severity for reason in saturated] == (["error"] if told else [])
    assert told is None or told in saturated[0].text


def test_requests_that_were_under_way_in_a_stall_are_counted(made, good):
    held = [made.request(i, at_ms=10 * i, client_stall_ns=8_000_000 if i < 3 else 0) for i in range(300)]
    (reason,) = judged(made, held, workers=[worker()])
    assert (reason.kind, reason.severity) == ("client_stalls", "warning")
    assert "3 of 300 requests" in reason.text
    assert "8 ms at worst" in reason.text


def test_a_lag_that_shows_in_the_figures_is_told(made, good):
    (reason,) = judged(made, good, workers=[worker(health=health(loop_lag_p99_ns=1_200_000))])
    assert (reason.kind, reason.severity) == ("client_stalls", "warning")
    assert "1.2 ms at P99" in reason.text


def test_a_lost_worker_makes_it_invalid_and_says_why(made, good):
    gone = worker("7", health=None, lost="its process ended with status -9")
    reasons = {reason.kind: reason for reason in judged(made, good, workers=[worker(), gone])}
    assert reasons["lost_worker"].severity == "error"
    assert "worker 7, with 300 requests: its process ended with status -9" in reasons["lost_worker"].text


@pytest.mark.parametrize(("busiest", "warned"), [(50.0, False), (51.0, True)])
def test_more_than_half_of_what_the_client_can_do_is_a_warning(made, good, busiest, warned):
    calibration = Calibration(requests=32, chunks=20, cpu_s=0.1, capacity_per_s=100.0, busiest_per_s=busiest)
    kinds_found = {reason.kind: reason.severity for reason in judged(made, good, calibration=calibration)}
    assert kinds_found == ({"near_capacity": "warning"} if warned else {})
