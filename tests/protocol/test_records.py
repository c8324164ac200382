"""Records through their files: round trips, unknown fields, and lines that are not records."""

from __future__ import annotations

import typing
from pathlib import Path

import msgspec
import pytest

from protocol.records import (
    PHASES,
    ChunkRecord,
    FileDigest,
    GatewayRecord,
    Manifest,
    RequestRecord,
    ScheduledRequest,
    ScheduleHeader,
    StreamRecord,
    encode_line,
    read_lines,
)

GATEWAY = GatewayRecord(
    request_id="r1", trace_id="0" * 31 + "1", span_id="0" * 15 + "2", parent_span_id=None,
    received_unix_ns=1_796_082_118_000_000_001, path="/v1/chat/completions", model="tiny", stream=True,
    route="tiny", pool="a", endpoint="http://127.0.0.1:1", attempts=1, status=200, outcome="ok",
    error_source=None, error_kind=None, request_bytes=10, response_bytes=20,
    marks_ns={phase: at for at, phase in enumerate((*PHASES, "end"))}, first_token_ns=5, chunks=3, gap_max_ns=None,
    events=3, prompt_tokens=13, completion_tokens=4, cached_tokens=None, finish_reason="length",
)  # fmt: skip
REQUEST = RequestRecord(
    index=0, request_id="r1", trace_id="t", arm=None, intended_ns=0, sent_ns=1, headers_ns=2, first_token_ns=3,
    last_token_ns=4, end_ns=5, status=200, outcome="ok", error=None, prompt_tokens_planned=13,
    output_tokens_planned=4, prompt_tokens=13, output_tokens=4, cached_tokens=0, finish_reason="stop \u2028 é",
    new_connection=True, events=6, response_bytes=9, body_sha256=None,
)  # fmt: skip
HEADER = ScheduleHeader(source="azure", source_sha256="ab", seed=1, requests=2, duration_ns=3)
SCHEDULED = ScheduledRequest(index=0, at_ns=1, prompt_tokens=2, output_tokens=3, segments=((2**63 - 1, 2),))
CHUNKS = ChunkRecord(index=0, t_ns=[1, 2], bytes=[3, 4], content_events=[0, 1])
STREAM = StreamRecord(
    trace_id="t", request_id=None, path="/v1/completions", status=400, bytes=9, sha256="ab", completed=True
)
MANIFEST = Manifest(
    run_id="x", status="complete", command=["weir", "run"], url="http://h", model="tiny", started_unix_ns=1,
    duration_ns=2, schedule=HEADER, template_tokens=11, scheduled=2, outcomes={"ok": 2}, host={}, versions={},
    files={"requests.jsonl": FileDigest(sha256="ab", bytes=7)},
)  # fmt: skip
RECORDS = [GATEWAY, REQUEST, HEADER, SCHEDULED, CHUNKS, STREAM, MANIFEST]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_is_one_line_and_comes_back_equal(record: msgspec.Struct, tmp_path: Path) -> None:
    line = encode_line(record)
    assert line.count(b"\n") == 1
    file = tmp_path / "records.jsonl"
    file.write_bytes(line * 3)
    assert list(read_lines(file, type(record))) == [record] * 3


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_reader_ignores_fields_it_does_not_know(record: msgspec.Struct, tmp_path: Path) -> None:
    fields = msgspec.json.decode(encode_line(record))
    file = tmp_path / "records.jsonl"
    file.write_bytes(msgspec.json.encode({"from_the_future": [1], **fields}) + b"\n")
    assert list(read_lines(file, type(record))) == [record]


def test_the_schema_is_written_and_another_one_refused(tmp_path: Path) -> None:
    assert msgspec.json.decode(encode_line(REQUEST))["schema"] == "weir.request-record/1"
    file = tmp_path / "records.jsonl"
    file.write_bytes(encode_line(REQUEST).replace(b"request-record/1", b"request-record/2"))
    with pytest.raises(ValueError, match="schema"):
        list(read_lines(file, RequestRecord))


def test_a_line_that_is_no_record_is_named_and_the_ones_before_are_read(tmp_path: Path) -> None:
    file = tmp_path / "chunks.jsonl"
    line = encode_line(CHUNKS)
    file.write_bytes(line + line + line[: len(line) // 2])
    records = read_lines(file, ChunkRecord)
    assert [next(records), next(records)] == [CHUNKS, CHUNKS]
    with pytest.raises(ValueError, match=rf"{file}:3: not a ChunkRecord"):
        next(records)


def test_a_blank_line_or_another_kind_of_record_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    for content in (b"\n", encode_line(HEADER)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=":1: not a ScheduledRequest"):
            list(read_lines(file, ScheduledRequest))
    file.write_bytes(b"")
    assert list(read_lines(file, ScheduledRequest)) == []


def test_records_are_values() -> None:
    with pytest.raises(AttributeError):
        typing.cast("typing.Any", REQUEST).index = 5
