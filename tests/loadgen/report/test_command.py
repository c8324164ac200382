"""`weir report` on real directories: complete, interrupted, killed, damaged."""

import argparse
import shutil
import subprocess

import msgspec
import pytest

from loadgen import record
from loadgen.analyze.summary import Summary
from loadgen.report.command import add_report_arguments, report, take_gateway_records, write_report
from protocol.records import encode_line


def run(*arguments):
    parser = argparse.ArgumentParser()
    add_report_arguments(parser)
    return report(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def requests(made):
    return [made.request(i, at_ms=10 * i, arm="ab"[i % 2]) for i in range(300)]


@pytest.fixture
def directory(made, tmp_path, requests):
    return made.run_directory(tmp_path / "run", requests)


def kinds(summary):
    return [reason.kind for reason in summary.validity.reasons]


def test_a_report_leaves_a_sealed_directory_with_summary_and_page(directory, capsys):
    assert run(directory) == 0
    output = capsys.readouterr().out
    assert output.splitlines()[-1] == str(directory / "report.html")
    assert "\nVALID\n" in output
    assert record.verify(directory) == []
    found = msgspec.json.decode((directory / "summary.json").read_bytes(), type=Summary)
    assert found.groups[0].latencies.ttft_s.p99.value == 0.2


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="needs coreutils")
def test_the_seal_is_one_that_sha256sum_checks(directory):
    write_report(directory)
    checked = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=directory, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert "report.html: OK" in checked.stdout


def test_a_second_report_is_the_same_as_the_first(directory):
    first = write_report(directory)[1].read_bytes()
    assert write_report(directory)[1].read_bytes() == first
    assert record.verify(directory) == []


def test_raw_records_are_never_changed(directory):
    before = {p.name: p.read_bytes() for p in directory.glob("*.jsonl")}
    write_report(directory)
    assert {p.name: p.read_bytes() for p in directory.glob("*.jsonl")} == before


def test_changed_evidence_is_reported_and_not_sealed_again(directory, made):
    with (directory / record.REQUESTS).open("ab") as file:
        file.write(encode_line(made.request(0)))
    summary, _ = write_report(directory)
    assert summary.validity.verdict == "INVALID"
    damage = summary.validity.reasons[0].text
    assert "requests.jsonl: content differs" in damage
    assert "1 records repeat an index" in damage
    assert summary.groups[0].scheduled == 300
    assert any("requests.jsonl" in problem for problem in record.verify(directory))


def test_a_report_that_was_stopped_midway_is_made_again(directory):
    (directory / "summary.json").write_text("{")
    (directory / "report.html.partial").write_text("<")
    summary, _ = write_report(directory)
    assert summary.validity.verdict == "VALID"
    assert record.verify(directory) == []


def test_an_unreadable_manifest_is_damage(directory):
    (directory / record.MANIFEST).write_text("{")
    summary, _ = write_report(directory)
    assert kinds(summary) == ["damaged_files", "interrupted"]
    assert "manifest.json: not a manifest" in summary.validity.reasons[0].text
    assert (directory / record.MANIFEST).read_text() == "{"


def test_the_page_can_go_elsewhere_as_well(directory, tmp_path, capsys):
    assert run(directory, "-o", tmp_path / "copy.html") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "copy.html")
    assert (tmp_path / "copy.html").read_bytes() == (directory / "report.html").read_bytes()


def test_gateway_records_of_this_run_are_copied_and_joined(directory, requests, made, tmp_path, capsys):
    other = made.gateway(made.request(5000))
    lines = [encode_line(made.gateway(r)) for r in requests] + [encode_line(other)]
    source = tmp_path / "records.jsonl"
    source.write_bytes(b"".join(lines) + b'{"trace_id": "unfin')
    assert run(directory, "--gateway-records", source) == 0
    assert (directory / record.GATEWAY).read_bytes() == b"".join(lines[:-1])
    assert record.verify(directory) == []
    phases = msgspec.json.decode((directory / "summary.json").read_bytes(), type=Summary).phases
    assert phases.counts.pairs == 300
    assert phases.counts.gateway_without_request == 0
    assert phases.to_engine["a"].p50.value == 50e-6
    assert phases.outside["a"].max == 20e-6
    assert "300 requests joined" in capsys.readouterr().out


def test_gateway_records_are_never_replaced(directory, requests, made, tmp_path, capsys):
    source = tmp_path / "records.jsonl"
    source.write_bytes(encode_line(made.gateway(requests[0])))
    assert take_gateway_records(directory, source) == 1
    assert run(directory, "--gateway-records", source) == 2
    assert "leave out --gateway-records" in capsys.readouterr().err


def test_taking_gateway_records_does_not_launder_changed_evidence(directory, requests, made, tmp_path):
    (directory / record.CHUNKS).write_bytes(b"")
    source = tmp_path / "records.jsonl"
    source.write_bytes(encode_line(made.gateway(requests[0])))
    take_gateway_records(directory, source)
    assert "chunks.jsonl: content differs from SHA256SUMS" in record.verify(directory)


def test_a_bad_gateway_line_is_named(directory, tmp_path, capsys):
    source = tmp_path / "records.jsonl"
    source.write_bytes(b"{}\n")
    assert run(directory, "--gateway-records", source) == 2
    assert f"{source}:1: not a gateway record" in capsys.readouterr().err
    assert not (directory / record.GATEWAY).exists()


def test_outcomes_that_differ_between_the_two_sides_are_counted(made, tmp_path, requests):
    seen = [made.gateway(r, **({"outcome": "truncated"} if r.index == 7 else {})) for r in requests]
    summary, _ = write_report(made.run_directory(tmp_path / "run", requests, gateway_records=seen))
    assert summary.phases.counts.outcomes_differ == 1
    assert kinds(summary) == ["join_incomplete"]


def test_bodies_are_compared_where_both_sides_succeeded(made, tmp_path, requests):
    requests = [*requests, made.failed(300, at_ms=3000)]
    seen = [made.gateway(r, **({"response_bytes": 1} if r.index in (7, 300) else {})) for r in requests]
    summary, _ = write_report(made.run_directory(tmp_path / "run", requests, gateway_records=seen))
    assert summary.phases.counts.bodies_differ == 1
    assert kinds(summary) == ["bodies_differ", "failures"]


def test_the_gateway_names_arms_that_responses_did_not(made, tmp_path):
    requests = [made.request(0), made.failed(1)]
    seen = [made.gateway(requests[0]), made.gateway(requests[1], pool="b")]
    summary, _ = write_report(made.run_directory(tmp_path / "run", requests, gateway_records=seen))
    assert summary.arms == ["a", "b"]


def test_an_interrupted_run(made, tmp_path, requests):
    path = made.run_directory(tmp_path / "run", [*requests, made.unsent(300, at_ms=3000)], status="interrupted")
    summary, _ = write_report(path)
    assert kinds(summary) == ["interrupted", "not_all_sent"]
    assert record.verify(path) == []


def test_a_killed_run_is_read_as_far_as_it_goes(made, tmp_path, requests):
    path = made.run_directory(tmp_path / "run", requests, sealed=False)
    content = (path / record.REQUESTS).read_bytes()
    (path / record.REQUESTS).write_bytes(content[: len(content) // 2])
    (path / record.CHUNKS).unlink()
    summary, page = write_report(path)
    assert "interrupted" in kinds(summary)
    assert summary.groups[0].outcomes["ok"] in (149, 150)
    assert "requests.jsonl:15" in summary.validity.reasons[0].text
    assert "chunks.jsonl" in summary.validity.reasons[0].text
    assert page.exists()
    assert not (path / record.MANIFEST).exists()


def test_gateway_records_join_a_killed_run(made, tmp_path, requests):
    path = made.run_directory(tmp_path / "run", requests, sealed=False)
    content = (path / record.REQUESTS).read_bytes()
    (path / record.REQUESTS).write_bytes(content[:-50])
    source = tmp_path / "records.jsonl"
    source.write_bytes(b"".join(encode_line(made.gateway(r)) for r in requests))
    assert take_gateway_records(path, source) == 299
    assert write_report(path)[0].phases.counts.pairs == 299


@pytest.mark.parametrize("kind", ["empty", "all failed"])
def test_runs_without_data(made, tmp_path, kind, capsys):
    requests = [made.failed(i, at_ms=i) for i in range(3)] if kind == "all failed" else []
    assert run(made.run_directory(tmp_path / "run", requests)) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("report.html")


def test_what_is_no_run_is_one_line_and_exit_2(tmp_path, capsys):
    assert run(tmp_path) == 2
    assert run(tmp_path / "nowhere") == 2
    (tmp_path / record.SCHEDULE).write_bytes(b"{}\n")
    assert run(tmp_path) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("weir report: ") for line in lines)
    assert "is no run directory" in lines[0]
    assert f"{tmp_path / record.SCHEDULE}: " in lines[2]
    assert list(tmp_path.iterdir()) == [tmp_path / record.SCHEDULE]
