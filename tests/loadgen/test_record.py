import subprocess

import pytest

from loadgen import record
from protocol.records import ScheduleHeader, encode_line

HEADER = ScheduleHeader(source="s", source_sha256="0" * 64, seed=1, requests=1, duration_ns=1)


@pytest.fixture
def run(tmp_path, made):
    """A sealed run of two requests: one answered, one refused without a body."""
    writer = record.RunWriter(tmp_path / "run")
    answered, refused = made.request(0), made.failed(1)
    writer.add(answered, made.chunks(answered))
    writer.add(refused, None)
    (writer.path / record.SCHEDULE).write_bytes(encode_line(HEADER))
    writer.close()
    record.seal(writer.path, made.manifest([answered, refused], HEADER, outcomes=dict(writer.outcomes)))
    return writer.path


def test_a_finished_run_is_read_back(run, made):
    assert list(record.read_requests(run)) == [made.request(0), made.failed(1)]
    assert [chunks.index for chunks in record.read_chunks(run)] == [0]
    assert list(record.read_gateway(run)) == []
    sealed = record.read_manifest(run)
    assert sealed.outcomes == {"ok": 1, "error": 1}
    assert sealed.files.keys() == {record.SCHEDULE, record.REQUESTS, record.CHUNKS}
    assert record.verify(run) == []


def test_sha256sum_agrees_and_covers_every_other_file(run):
    checked = subprocess.run(["sha256sum", "-c", record.SUMS], cwd=run, capture_output=True, text=True, check=True)
    named = {line.rsplit(":", 1)[0] for line in checked.stdout.splitlines()}
    assert named == {path.name for path in run.iterdir()} - {record.SUMS}


def test_a_run_never_overwrites_another(run):
    before = record.digest(run / record.REQUESTS)
    with pytest.raises(FileExistsError, match="not empty"):
        record.claim(run)
    with pytest.raises(FileExistsError):
        record.RunWriter(run)
    assert record.digest(run / record.REQUESTS) == before


def test_an_existing_empty_directory_is_taken(tmp_path):
    record.claim(tmp_path)
    record.RunWriter(tmp_path).close()
    assert (tmp_path / record.REQUESTS).exists()


def test_the_records_of_several_workers_are_put_together(tmp_path, made):
    """The second was killed within a line, the third before it made a file."""
    parts = [tmp_path / f"worker-{number}" for number in range(3)]
    for number, part in enumerate(parts[:2]):
        writer = record.RunWriter(part)
        writer.add(made.request(number), made.chunks(made.request(number)))
        writer.close()
    with (parts[1] / record.REQUESTS).open("ab") as file:
        file.write(b'{"schema":"weir.request-rec')
    record.gather(tmp_path, parts)
    assert list(record.read_requests(tmp_path)) == [made.request(0), made.request(1)]
    assert [chunks.index for chunks in record.read_chunks(tmp_path)] == [0, 1]
    assert sorted(path.name for path in tmp_path.iterdir()) == [record.CHUNKS, record.REQUESTS]


def test_a_killed_run_keeps_its_lines_but_is_no_run(tmp_path, made):
    writer = record.RunWriter(tmp_path / "run")
    writer.add(made.request(0), None)
    writer.close()
    assert list(record.read_requests(writer.path)) == [made.request(0)]
    with pytest.raises(ValueError, match="killed before it ended"):
        record.read_manifest(writer.path)
    assert "killed before it ended" in record.verify(writer.path)[0]


def test_lines_are_on_disk_long_before_the_end(tmp_path, made):
    writer = record.RunWriter(tmp_path / "run")
    for index in range(500):
        writer.add(made.request(index), None)
    assert (writer.path / record.REQUESTS).stat().st_size > 64 * 1024
    writer.close()


def test_gateway_records_join_a_sealed_run(run, tmp_path, made):
    kept = made.gateway(made.request(0))
    source = tmp_path / "records.jsonl"
    source.write_bytes(encode_line(kept))
    record.adopt(run, source, record.GATEWAY)
    assert list(record.read_gateway(run)) == [kept]
    assert record.GATEWAY in record.read_manifest(run).files
    assert record.verify(run) == []
    with pytest.raises(FileExistsError, match="never replaced"):
        record.adopt(run, source, record.GATEWAY)


def test_a_manifest_that_is_none_is_named(run):
    (run / record.MANIFEST).write_text("{}")
    with pytest.raises(ValueError, match=r"manifest\.json: not a manifest"):
        record.read_manifest(run)


@pytest.mark.parametrize(
    ("tamper", "problem"),
    [
        (lambda run: (run / record.CHUNKS).unlink(), "chunks.jsonl: listed in SHA256SUMS but missing"),
        (lambda run: (run / "note.txt").write_text("x"), "note.txt: not covered by SHA256SUMS"),
        (lambda run: (run / record.REQUESTS).write_text("x"), "requests.jsonl: content differs from SHA256SUMS"),
        (lambda run: (run / record.SUMS).write_text("rubbish\n"), "not a line of sha256sum"),
        (lambda run: (run / record.SUMS).unlink(), "No such file"),
    ],
)
def test_tampering_is_found(run, tamper, problem):
    tamper(run)
    assert any(problem in found for found in record.verify(run))


def test_sums_that_were_made_to_fit_disagree_with_the_manifest(run):
    old = record.digest(run / record.REQUESTS).sha256
    (run / record.REQUESTS).write_text("forged\n")
    sums = (run / record.SUMS).read_text()
    (run / record.SUMS).write_text(sums.replace(old, record.digest(run / record.REQUESTS).sha256))
    assert record.verify(run) == ["requests.jsonl: SHA256SUMS and manifest.json disagree"]
