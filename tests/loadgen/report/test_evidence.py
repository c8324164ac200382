"""A run directory read into evidence: whole, killed, damaged, and seen from both sides."""

import pytest

from loadgen import record
from loadgen.report.evidence import read_evidence, readable
from protocol.records import encode_line


@pytest.fixture
def requests(made):
    return [made.request(0), made.failed(1, at_ms=10), made.request(2, at_ms=20, arm="b")]


def test_a_whole_run_is_read_as_it_was_written(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    found = read_evidence(run, [])
    header, schedule = made.schedule(requests)
    assert found.header == header
    assert [(s.index, s.at_ns) for s in found.schedule] == [(s.index, s.at_ns) for s in schedule]
    assert found.requests == requests
    assert found.manifest == record.read_manifest(run)
    assert (found.gateway, found.damage) == (None, ())
    assert found.reads.keys() == {0, 2}
    assert found.reads[0].events.sum() == requests[0].output_tokens
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_requests_come_in_order_of_their_index_and_the_first_record_of_each_counts(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests, sealed=False)
    as_they_ended = [requests[2], requests[0], requests[1], made.failed(0)]
    (run / record.REQUESTS).write_bytes(b"".join(map(encode_line, as_they_ended)))
    found = read_evidence(run, [])
    assert found.requests == requests
    assert found.damage == ("requests.jsonl: 1 records repeat an index and are left out",)


def test_what_a_check_of_the_seal_found_stays_first_and_is_not_added_to(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests)
    (run / record.CHUNKS).unlink()
    known = ["chunks.jsonl: listed in SHA256SUMS but missing"]
    found = read_evidence(run, known)
    assert found.damage[0] == known[0]
    assert "No such file" in found.damage[1]
    assert len(known) == 1
    assert (found.reads, found.requests) == ({}, requests)


def test_a_killed_run_is_read_up_to_its_last_whole_line(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests, sealed=False)
    content = (run / record.REQUESTS).read_bytes()
    (run / record.REQUESTS).write_bytes(content[:-9])
    found = read_evidence(run, [])
    assert found.requests == requests[:2]
    assert found.manifest is None
    [damage] = found.damage
    assert damage.startswith(f"{run / record.REQUESTS}:3: not a RequestRecord")


def test_what_the_workers_of_a_killed_run_left_is_read_where_it_lies(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests, sealed=False)
    lines = [(run / name).read_bytes().splitlines(keepends=True) for name in (record.REQUESTS, record.CHUNKS)]
    for number in range(2):
        worker = record.part(run, str(number))
        worker.mkdir()
        for name, of_file in zip((record.REQUESTS, record.CHUNKS), lines, strict=True):
            (worker / name).write_bytes(b"".join(of_file[number::2]))
    for name in (record.REQUESTS, record.CHUNKS):
        (run / name).unlink()
    with (record.part(run, "0") / record.REQUESTS).open("ab") as cut:
        cut.write(b'{"index": 7')
    found = read_evidence(run, [])
    assert (found.requests, found.reads.keys()) == (requests, {0, 2})
    [damage] = found.damage
    assert "worker-0/requests.jsonl:3: not a RequestRecord" in damage


def test_a_manifest_that_cannot_be_read_is_none(made, tmp_path, requests):
    run = made.run_directory(tmp_path, requests)
    (run / record.MANIFEST).write_text("{")
    assert read_evidence(run, []).manifest is None


def test_a_directory_without_a_schedule_is_no_run(made, tmp_path, requests):
    with pytest.raises(ValueError, match=r"is no run directory: schedule\.parquet cannot be read \(No such file"):
        read_evidence(tmp_path, [])
    run = made.run_directory(tmp_path / "run", requests)
    (run / record.SCHEDULE).write_text("nonsense\n")
    with pytest.raises(ValueError, match=rf"^{run / record.SCHEDULE}: "):
        read_evidence(run, [])


def test_the_gateways_view_is_keyed_by_the_requests_it_belongs_to(made, tmp_path):
    requests = [made.request(0), made.failed(1), made.unsent(2), made.request(3)]
    seen = [made.gateway(requests[0]), made.gateway(requests[1], pool="b"), made.gateway(made.request(99))]
    view = read_evidence(made.run_directory(tmp_path, requests, gateway_records=seen), []).gateway
    assert view.pools == {0: "a", 1: "b"}
    assert view.phases_ns[0]["admit"] == 10_000
    assert view.phases_ns.keys() == view.outside_ns.keys() == {0, 1}
    assert view.outside_ns[0] == requests[0].end_ns - requests[0].sent_ns - seen[0].marks_ns["finish"]
    assert (view.counts.pairs, view.counts.unsent) == (2, 1)
    assert (view.counts.requests_without_gateway, view.counts.gateway_without_request) == (1, 1)


def test_what_the_gateway_saw_of_the_warm_up_is_left_out(made, tmp_path):
    requests, before = [made.request(0)], made.request(99)
    run = made.run_directory(tmp_path, requests, gateway_records=[made.gateway(before), made.gateway(requests[0])])
    (run / record.WARM_UP).write_bytes(encode_line(before))
    counts = read_evidence(run, []).gateway.counts
    assert (counts.pairs, counts.gateway_without_request) == (1, 0)


def test_a_gateway_record_without_a_pool_names_none_and_one_without_an_end_has_no_time_outside(made, tmp_path):
    requests = [made.request(0), made.request(1)]
    cut = {name: at for name, at in made.gateway(requests[1]).marks_ns.items() if name not in ("finish", "end")}
    seen = [made.gateway(requests[0], pool=None), made.gateway(requests[1], marks_ns=cut)]
    view = read_evidence(made.run_directory(tmp_path, requests, gateway_records=seen), []).gateway
    assert view.pools == {1: "a"}
    assert view.outside_ns.keys() == {0}


def test_both_sides_are_compared_where_they_can_be(made, tmp_path):
    requests = [made.request(0), made.request(1), made.request(2), made.failed(3)]
    changes = [{}, {"outcome": "truncated", "response_bytes": 1}, {"response_bytes": 1}, {"response_bytes": 1}]
    seen = [made.gateway(request, **change) for request, change in zip(requests, changes, strict=True)]
    counts = read_evidence(made.run_directory(tmp_path, requests, gateway_records=[*seen, seen[0]]), []).gateway.counts
    # A trace id that repeats cannot be joined.
    assert (counts.pairs, counts.duplicate_gateway) == (3, 2)
    assert (counts.outcomes_differ, counts.bodies_differ) == (1, 1)


def test_an_empty_file_of_gateway_records_is_a_view_without_pairs(made, tmp_path, requests):
    found = read_evidence(made.run_directory(tmp_path, requests, gateway_records=[]), [])
    assert found.gateway.counts.pairs == 0
    assert found.gateway.counts.requests_without_gateway == 3


@pytest.mark.parametrize("error", [ValueError("line 3"), OSError("disk")])
def test_items_before_the_first_that_cannot_be_read_are_kept(tmp_path, error):
    def lines(directory):
        yield from (1, 2)
        if directory == tmp_path:
            raise error

    damage = ["known"]
    assert readable(lines, [tmp_path, tmp_path / "other"], damage) == [1, 2, 1, 2]
    assert damage == ["known", str(error)]
