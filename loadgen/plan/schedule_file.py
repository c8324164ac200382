"""The file of a schedule: Parquet, with the header in its metadata; its SHA-256 is the schedule's identity.

Equal schedules give equal bytes (with one version of pyarrow, which may encode differently from another). Reading
trusts nothing: columns, types, numbering, order and sums are checked. Bytes in, bytes out.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.plan.schedule import Schedule, check
from loadgen.workload.traffic import Ints
from protocol.records import ScheduleHeader

_HEADER = b"weir.schedule"
"""Key of the header, as JSON, in the metadata of the file."""

_SCHEMA = pa.schema(
    [
        pa.field(name, kind, nullable=False)
        for name, kind in (
            ("index", pa.int64()),
            ("at_ns", pa.int64()),
            ("prompt_tokens", pa.int32()),
            ("output_tokens", pa.int32()),
            ("session", pa.int64()),
            ("segment_ids", pa.list_(pa.field("element", pa.int64(), nullable=False))),
            ("segment_tokens", pa.list_(pa.field("element", pa.int32(), nullable=False))),
        )
    ]
)
_FLAT = {"index": "indices", **{name: name for name in _SCHEMA.names[1:5]}}
"""Columns with one value a row, and what they are called in a `Schedule`."""
_LISTS = _SCHEMA.names[5:]
_GROWING = ("index", "at_ns", "segment_ids.list.element")
"""Columns whose values are better told by their differences."""
_GROUP_ROWS = 65_536
"""Rows that are encoded at once, so that memory does not grow with the schedule."""


def encode_schedule(schedule: Schedule) -> bytes:
    """A whole schedule as the bytes of its file. Raises ValueError for a part of one."""
    check(schedule)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        _SCHEMA,
        compression="zstd",
        use_dictionary=False,
        column_encoding=dict.fromkeys(_GROWING, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        store_schema=False,
    ) as writer:
        writer.add_key_value_metadata({_HEADER: msgspec.json.encode(schedule.header)})
        for start in range(0, len(schedule), _GROUP_ROWS):
            writer.write_batch(_batch(schedule, start, min(start + _GROUP_ROWS, len(schedule))))
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _batch(schedule: Schedule, start: int, end: int) -> pa.RecordBatch:
    offsets = schedule.segment_offsets[start : end + 1]
    of_batch = pa.array((offsets - offsets[0]).astype(np.int32))
    columns = [pa.array(getattr(schedule, attribute)[start:end]) for attribute in _FLAT.values()]
    for name in _LISTS:
        values = pa.array(getattr(schedule, name)[offsets[0] : offsets[-1]])
        columns.append(pa.ListArray.from_arrays(of_batch, values, type=_SCHEMA.field(name).type))
    return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def decode_schedule(content: bytes) -> Schedule:
    """The reverse of `encode_schedule`. Raises ValueError for what is not a schedule, saying why."""
    try:
        file = pq.ParquetFile(pa.BufferReader(content))
        header = _header(file)
        if not file.schema_arrow.equals(_SCHEMA):
            raise ValueError(f"a schedule has other columns than these: {_columns(file.schema_arrow)}")
        table = file.read()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"not a schedule: {error}") from error
    flat = {attribute: table.column(name).to_numpy() for name, attribute in _FLAT.items()}
    offsets, ids = _segments(table.column("segment_ids"))
    token_offsets, tokens = _segments(table.column("segment_tokens"))
    if not np.array_equal(offsets, token_offsets):
        raise ValueError("segment_ids and segment_tokens differ in length")
    schedule = Schedule(
        header=header,
        **flat,
        segment_offsets=offsets,
        segment_ids=ids,
        segment_tokens=tokens.astype(np.int32, copy=False),
    )
    check(schedule)
    return schedule


def _header(file: pq.ParquetFile) -> ScheduleHeader:
    text = (file.metadata.metadata or {}).get(_HEADER)
    if text is None:
        raise ValueError(f"not a schedule: its metadata has no {_HEADER.decode()}")
    try:
        return msgspec.json.decode(text, type=ScheduleHeader)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{_HEADER.decode()} in the metadata: {error}") from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _segments(column: pa.ChunkedArray) -> tuple[Ints, Ints]:
    """Offsets and values of a column of lists."""
    lengths = [np.diff(chunk.offsets.to_numpy()) for chunk in column.chunks]
    offsets = np.concatenate(([0], np.cumsum(np.concatenate([[], *lengths]), dtype=np.int64)))
    values = [chunk.flatten().to_numpy() for chunk in column.chunks]
    empty = np.array([], dtype=column.type.value_type.to_pandas_dtype())
    return offsets, np.concatenate([empty, *values])


def read_schedule(path: Path) -> Schedule:
    """Reads a schedule file. Raises ValueError, naming the file, for what is none, and OSError."""
    try:
        return decode_schedule(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
