"""What is kept of a run is what its report says."""

import dataclasses
import math

import msgspec
import pytest

from loadgen.analyze.run_figures import METRICS, run_figures
from loadgen.analyze.summary import summarise
from protocol.records import FileDigest


@pytest.fixture
def requests(made):
    good = [
        made.request(i, at_ms=10 * i, ttft_ms=100 + i, prompt_tokens_planned=100 + 600 * (i % 2)) for i in range(599)
    ]
    return [*good, made.failed(599, at_ms=5990)]


def test_values_are_those_of_the_report(made, requests):
    evidence = made.evidence(requests)
    found, report = run_figures("r", evidence), summarise(evidence).groups[0]
    assert found.values == {
        "ttft_p50": report.latencies.ttft_s.p50.value,
        "ttft_p99": report.latencies.ttft_s.p99.value,
        "gap_p99": report.latencies.chunk_gap_s.p99.value,
        "e2e_p99": report.latencies.e2e_s.p99.value,
        "output_tokens_per_s": report.rates.output_tokens_per_s,
        "error_rate": pytest.approx(1 / 600),
    }
    assert set(found.values) == {metric.name for metric in METRICS}


def test_arrays_follow_the_schedule_with_nan_for_what_is_missing(made, requests):
    found = run_figures("r", made.evidence(requests))
    assert len(found.ttft_s) == len(found.e2e_s) == 600
    assert found.ttft_s[:2] == pytest.approx([0.1, 0.101])
    assert math.isnan(found.ttft_s[599])
    assert math.isnan(found.e2e_s[599])


def test_records_beyond_the_schedule_are_left_to_the_verdict(made, requests):
    header, entries = made.schedule(requests[:-2])
    found = run_figures("r", made.evidence(requests, header=header, schedule=entries))
    assert len(found.ttft_s) == 598
    assert found.validity.verdict == "INVALID"


def test_buckets_split_by_planned_length_and_refuse_what_is_too_few(made, requests):
    found = run_figures("r", made.evidence(requests))
    assert list(found.buckets) == ["≤ 128", "513–1024"]
    assert found.buckets["≤ 128"]["ttft_p99"] == pytest.approx(0.692)
    fewer = run_figures("r", made.evidence(requests[:300]))
    assert fewer.buckets["≤ 128"]["ttft_p99"] is None
    assert fewer.buckets["≤ 128"]["ttft_p50"] is not None


def test_an_empty_schedule_has_no_error_rate(made):
    assert run_figures("r", made.evidence([])).values["error_rate"] is None


def test_the_fingerprint_names_target_host_versions_and_load(made, requests):
    header, _ = made.schedule(requests)
    manifest = msgspec.structs.replace(
        made.manifest(requests, header), files={"schedule.parquet": FileDigest(sha256="ab", bytes=1)}
    )
    found = run_figures("r", made.evidence(requests, manifest=manifest))
    assert found.schedule_sha256 == "ab"
    assert found.fingerprint["url"] == "http://127.0.0.1:8000"
    assert found.fingerprint["host.cpu"] == "two cores"
    assert found.fingerprint["version.weir"] == "0.1.0"
    assert found.fingerprint["schedule.requests"] == "600"


def test_a_killed_run_has_no_figures(made, requests):
    with pytest.raises(ValueError, match="r has no manifest"):
        run_figures("r", dataclasses.replace(made.evidence(requests), manifest=None))
