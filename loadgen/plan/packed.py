"""A schedule as plain bytes, for a process that has no use for the library that reads its file.

The sender has read and checked the file; nothing is checked again. It never reaches a disk.
"""

from __future__ import annotations

import msgspec
import numpy as np

from loadgen.plan.schedule import Schedule
from protocol.records import ScheduleHeader

_COLUMNS = {
    "indices": np.int64,
    "at_ns": np.int64,
    "prompt_tokens": np.int32,
    "output_tokens": np.int32,
    "session": np.int64,
    "segment_offsets": np.int64,
    "segment_ids": np.int64,
    "segment_tokens": np.int32,
}


class _Packed(msgspec.Struct):
    header: ScheduleHeader
    columns: dict[str, bytes]


def pack(schedule: Schedule) -> bytes:
    """Some 50 bytes a request."""
    columns = {name: getattr(schedule, name).astype(kind).tobytes() for name, kind in _COLUMNS.items()}
    return msgspec.msgpack.encode(_Packed(header=schedule.header, columns=columns))


def unpack(content: bytes) -> Schedule:
    """What `pack` was given."""
    packed = msgspec.msgpack.decode(content, type=_Packed)
    columns = {name: np.frombuffer(packed.columns[name], dtype=kind) for name, kind in _COLUMNS.items()}
    return Schedule(header=packed.header, **columns)
