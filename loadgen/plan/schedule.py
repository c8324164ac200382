"""The schedule: every request of a run with its time, its lengths and the text its prompt shares, as columns.

Hides how requests are numbered and how their text gets its identity. A schedule is a sequence of
`ScheduledRequest`, made one by one when they are asked for, so that a million of them fit in little memory.
Nothing here draws, reads a clock or opens a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.workload.traffic import Ints, Requests
from protocol.records import ScheduledRequest, ScheduleHeader

Int32s = npt.NDArray[np.int32]

_NS_PER_S = 1_000_000_000
_BLOCK = 4096
_CHUNK = 1 << 20
"""Segments that are worked on at once, so that temporary columns stay small."""
_UNIQUE = 1 << 62
"""Set in the id of text that nothing else has, so that it never meets an id that is shared."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule(Sequence[ScheduledRequest]):
    """n requests in order of time.

    `schedule[i]` is one request; `schedule[a:b:step]` is a schedule of some of them with the same header and their
    own numbers, so worker k of w takes `schedule[k::w]`.
    """

    header: ScheduleHeader
    indices: Ints
    """Position in the whole schedule, ascending. Shape (n,), as all columns of requests."""
    at_ns: Ints
    prompt_tokens: Int32s
    output_tokens: Int32s
    session: Ints
    segment_offsets: Ints
    """The i-th prompt is the segments from `segment_offsets[i]` to before `segment_offsets[i + 1]`. Shape (n + 1,)."""
    segment_ids: Ints
    segment_tokens: Int32s

    def __len__(self) -> int:
        return len(self.indices)

    def request(self, position: int) -> ScheduledRequest:
        """The request at a position of this schedule, counted from its end when below 0."""
        row = range(len(self))[position]
        begin, end = self.segment_offsets[row : row + 2].tolist()
        ids, tokens = self.segment_ids[begin:end].tolist(), self.segment_tokens[begin:end].tolist()
        return ScheduledRequest(
            index=int(self.indices[row]),
            at_ns=int(self.at_ns[row]),
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            session=int(self.session[row]),
            segments=tuple(zip(ids, tokens, strict=True)),
        )

    @overload
    def __getitem__(self, position: int) -> ScheduledRequest: ...
    @overload
    def __getitem__(self, position: slice) -> Schedule: ...
    def __getitem__(self, position: int | slice) -> ScheduledRequest | Schedule:
        if not isinstance(position, slice):
            return self.request(position)
        rows = np.arange(len(self))[position]
        counts = np.diff(self.segment_offsets)[rows]
        offsets = np.concatenate(([0], np.cumsum(counts)))
        segments = np.repeat(self.segment_offsets[rows] - offsets[:-1], counts) + np.arange(offsets[-1])
        return Schedule(
            header=self.header,
            indices=self.indices[rows],
            at_ns=self.at_ns[rows],
            prompt_tokens=self.prompt_tokens[rows],
            output_tokens=self.output_tokens[rows],
            session=self.session[rows],
            segment_offsets=offsets,
            segment_ids=self.segment_ids[segments],
            segment_tokens=self.segment_tokens[segments],
        )

    def __iter__(self) -> Iterator[ScheduledRequest]:
        for start in range(0, len(self), _BLOCK):
            yield from self._block(start, min(start + _BLOCK, len(self)))

    def _block(self, start: int, end: int) -> Iterator[ScheduledRequest]:
        """A column turned into a list at once costs a tenth of what its elements cost one by one."""
        first, *offsets = self.segment_offsets[start : end + 1].tolist()
        ids = self.segment_ids[first : offsets[-1]].tolist()
        tokens = self.segment_tokens[first : offsets[-1]].tolist()
        columns = (self.indices, self.at_ns, self.prompt_tokens, self.output_tokens, self.session)
        begin = 0
        for offset, *row in zip(offsets, *(column[start:end].tolist() for column in columns), strict=True):
            index, at_ns, prompt_tokens, output_tokens, session = row
            until = offset - first
            yield ScheduledRequest(
                index=index,
                at_ns=at_ns,
                prompt_tokens=prompt_tokens,
                output_tokens=output_tokens,
                session=session,
                segments=tuple(zip(ids[begin:until], tokens[begin:until], strict=True)),
            )
            begin = until


def materialise(requests: Requests, header: ScheduleHeader) -> Schedule:
    """Requests as a schedule; `requests` and `raised` of the header are filled in here.

    Times are rounded to nanoseconds. Text that nothing shares gets an id made from `seed`, shared text one made from
    its own id and `text_seed`: two schedules have no text in common unless their text seeds are equal, and then what
    each of them shares within itself. No engine takes an empty prompt or `max_tokens: 0`, so zeros become 1 and are
    counted: the load stays. Raises ValueError as `check` does.
    """
    full = _without_empty_prompts(requests)
    raised = np.count_nonzero((requests.prompt_tokens == 0) | (requests.output_tokens == 0))
    schedule = Schedule(
        header=msgspec.structs.replace(header, requests=len(requests), raised=int(raised)),
        indices=np.arange(len(requests), dtype=np.int64),
        at_ns=np.rint(requests.at_s * _NS_PER_S).astype(np.int64),
        prompt_tokens=_int32("prompt_tokens", full.prompt_tokens),
        output_tokens=_int32("output_tokens", np.where(requests.output_tokens == 0, 1, requests.output_tokens)),
        session=full.session,
        segment_offsets=full.segment_offsets,
        segment_ids=_identities(full.segment_ids, seed=header.seed, text_seed=header.text_seed),
        segment_tokens=_int32("segment_tokens", full.segment_tokens),
    )
    check(schedule)
    return schedule


def _int32(name: str, column: Ints) -> Int32s:
    if len(column) and column.max() > np.iinfo(np.int32).max:
        raise ValueError(f"{name} has {column.max()}: a schedule holds up to {np.iinfo(np.int32).max}")
    return column.astype(np.int32)


def _without_empty_prompts(requests: Requests) -> Requests:
    """Segments without a token are dropped, and a prompt without any segment gets one of 1 token."""
    some = requests.segment_tokens != 0
    if some.all() and np.diff(requests.segment_offsets).all():
        return requests
    offsets = np.concatenate(([0], np.cumsum(some)))[requests.segment_offsets]
    empty = np.diff(offsets) == 0
    at = offsets[:-1][empty]
    return Requests(
        at_s=requests.at_s,
        prompt_tokens=np.where(empty & (requests.prompt_tokens == 0), 1, requests.prompt_tokens),
        output_tokens=requests.output_tokens,
        session=requests.session,
        segment_offsets=offsets + np.concatenate(([0], np.cumsum(empty))),
        segment_ids=np.insert(requests.segment_ids[some], at, -1),
        segment_tokens=np.insert(requests.segment_tokens[some], at, 1),
    )


def _identities(ids: Ints, *, seed: int, text_seed: int) -> Ints:
    """Ids of at least 0: equal exactly where equal ids of at least 0 were given (below 2^62).

    Those of two seeds are two stretches somewhere below 2^62: a million requests meet another million by chance with
    a probability of 10^-12. Ids that follow one another still do, which keeps files small.
    """
    shared, unique = _key(text_seed, "shared"), _key(seed, "unique")
    made = np.empty_like(ids)
    for start in range(0, len(ids), _CHUNK):
        part = ids[start : start + _CHUNK]
        position = np.arange(start, start + len(part))
        made[start : start + _CHUNK] = np.where(
            part >= 0, (part + shared) & (_UNIQUE - 1), ((position + unique) & (_UNIQUE - 1)) | _UNIQUE
        )
    return made


def _key(seed: int, purpose: str) -> int:
    """A number below 2^62 that says nothing about other seeds or purposes."""
    entropy = np.random.SeedSequence([seed, *purpose.encode()])
    return int(entropy.generate_state(1, np.uint64)[0]) >> 2


def check(schedule: Schedule) -> None:
    """What every reader of a whole schedule relies on. Raises ValueError with the first request that breaks it."""
    count = len(schedule)
    if schedule.header.requests != count:
        raise ValueError(f"the header promises {schedule.header.requests} requests, there are {count}")
    numbered = schedule.indices == np.arange(count)
    _each(numbered, "says it is {}: number requests from 0, in order", schedule.indices)
    _each(schedule.at_ns >= 0, "at_ns is {}, before the start of the run", schedule.at_ns)
    _each(np.diff(schedule.at_ns, prepend=0) >= 0, "at_ns goes back, to {}", schedule.at_ns)
    for name in ("prompt_tokens", "output_tokens"):
        _each(getattr(schedule, name) >= 1, name + " is {}: at least 1", getattr(schedule, name))
    _each(schedule.session >= -1, "session is {}: at least 0, or -1 for none", schedule.session)
    _check_segments(schedule)


def _check_segments(schedule: Schedule) -> None:
    if schedule.segment_ids.min(initial=0) < 0:
        raise ValueError(f"a segment has the id {schedule.segment_ids.min()}: ids are at least 0")
    if schedule.segment_tokens.min(initial=1) < 1:
        raise ValueError(f"a segment has {schedule.segment_tokens.min()} tokens: at least 1")
    counts = np.diff(schedule.segment_offsets)
    _each(counts >= 1, "has {} segments: at least 1", counts)
    if len(schedule):
        sums = np.add.reduceat(schedule.segment_tokens, schedule.segment_offsets[:-1], dtype=np.int64)
        _each(sums == schedule.prompt_tokens, "has segments of {} tokens in all, not its prompt_tokens", sums)


def _each(good: npt.NDArray[np.bool_], complaint: str, column: Ints | Int32s) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"request {row}: " + complaint.format(column[row]))
