import hashlib

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given

from loadgen.plan.schedule import materialise
from loadgen.plan.schedule_file import decode_schedule, encode_schedule, read_schedule
from loadgen.workload.traffic import Requests
from protocol.records import ArrivalCheck, ScheduleHeader
from tests.loadgen.plan.test_schedule import HEADER, PROMPTS, requests

COLUMNS = ("index", "at_ns", "prompt_tokens", "output_tokens", "session", "segment_ids", "segment_tokens")


@given(PROMPTS)
def test_a_schedule_survives_its_file(prompts):
    schedule = materialise(requests(prompts), HEADER)
    again = decode_schedule(encode_schedule(schedule))
    assert (again.header, list(again)) == (schedule.header, list(schedule))
    assert again.segment_tokens.dtype == np.int32


def test_a_file_of_many_row_groups_is_read_whole():
    many = Requests.unshared(np.arange(140_000) / 10, np.arange(1, 140_001), np.full(140_000, 3))
    schedule = materialise(many, HEADER)
    content = encode_schedule(schedule)
    assert pq.ParquetFile(pa.BufferReader(content)).metadata.num_row_groups == 3
    again = decode_schedule(content)
    assert np.array_equal(again.segment_ids, schedule.segment_ids)
    assert again.request(139_999) == schedule.request(139_999)


def test_equal_schedules_are_equal_bytes_and_another_seed_makes_others():
    def identity(seed):
        header = msgspec.structs.replace(HEADER, seed=seed)
        return hashlib.sha256(encode_schedule(materialise(requests([[(1, 4), (-1, 3)]]), header))).hexdigest()

    assert identity(5) == identity(5)
    assert len({identity(seed) for seed in range(10)}) == 10


def test_any_reader_of_parquet_sees_the_columns_and_the_header():
    check = ArrivalCheck(name="count", value=1.0, low=0.0, high=2.0, judged=True)
    header = msgspec.structs.replace(HEADER, self_test=(check,))
    file = pq.ParquetFile(pa.BufferReader(encode_schedule(materialise(requests([[(1, 4)]]), header))))
    assert tuple(file.schema_arrow.names) == COLUMNS
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"
    found = msgspec.json.decode(file.metadata.metadata[b"weir.schedule"], type=ScheduleHeader)
    assert found == msgspec.structs.replace(header, requests=1)
    assert file.read().column("segment_tokens").to_pylist() == [[4]]


def test_a_part_of_a_schedule_has_no_file():
    schedule = materialise(requests([[(1, 2)]] * 4), HEADER)
    with pytest.raises(ValueError, match="the header promises 4 requests, there are 2"):
        encode_schedule(schedule[::2])


def parquet(columns=COLUMNS, metadata=None, **changes):
    """A schedule's file, with other columns or another header."""
    whole = pq.read_table(pa.BufferReader(encode_schedule(materialise(requests([[(1, 2)], [(1, 2)]]), HEADER))))
    header = msgspec.structs.replace(HEADER, requests=2)
    table = whole.select(columns)
    for name, column in changes.items():
        at = table.schema.get_field_index(name)
        table = table.set_column(at, table.schema.field(at), pa.array(column, type=table.schema.field(at).type))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({"weir.schedule": msgspec.json.encode(header)} if metadata is None else metadata)
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_another_writer_of_the_same_format_is_read():
    assert len(decode_schedule(parquet())) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a schedule: .*"),
        (b"nonsense", "not a schedule: .*"),
        (parquet()[:-200], "not a schedule: .*"),
        (parquet(metadata={"other": "x"}), "not a schedule: its metadata has no weir.schedule"),
        (parquet(metadata={"weir.schedule": '{"schema":"weir.schedule/9"}'}), "in the metadata: Invalid enum value"),
        (parquet(columns=COLUMNS[:4]), "other columns than these: index int64, at_ns int64"),
        (parquet(at_ns=[5, 4]), "request 1: at_ns goes back, to 4"),
        (parquet(segment_ids=[[1, 2], [3]]), "segment_ids and segment_tokens differ in length"),
        (parquet(segment_ids=[[1], [-1]]), "a segment has the id -1"),
        (parquet(segment_ids=[[1], []], segment_tokens=[[2], []]), "request 1: has 0 segments: at least 1"),
    ],
)
def test_a_file_that_is_no_schedule_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        decode_schedule(content)


def test_the_name_of_a_bad_file_is_told(tmp_path):
    (tmp_path / "s.parquet").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=rf"^{tmp_path / 's.parquet'}: not a schedule"):
        read_schedule(tmp_path / "s.parquet")
    (tmp_path / "s.parquet").write_bytes(parquet())
    assert len(read_schedule(tmp_path / "s.parquet")) == 2
