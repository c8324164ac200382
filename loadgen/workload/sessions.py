"""Sessions become requests: when each comes, and which numbered texts its prompt is made of.

Hides how prompts are put together, as columns: texts that many prompts have come first, then what each request of the
session up to this one has added. Nothing here draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadgen.workload.traffic import Floats, Ints, Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """n sessions of one kind with m requests in all, one session after another."""

    turns: Ints
    """How many requests each session has, at least 1. Shape (n,)."""
    since_s: Floats
    """Seconds since the request before; 0 for the first of a session. Shape (m,)."""
    chosen: list[Ints]
    """For each place at the beginning of a prompt, which of the kind's known texts. Shapes (n,)."""
    added_tokens: Ints
    """What each request adds to the prompt of the one before. Shape (m,)."""
    output_tokens: Ints

    @classmethod
    def of_single_requests(cls, chosen: list[Ints], prompt_tokens: Ints, output_tokens: Ints) -> Sessions:
        count = len(prompt_tokens)
        return cls(
            turns=np.ones(count, dtype=np.int64),
            since_s=np.zeros(count),
            chosen=chosen,
            added_tokens=prompt_tokens,
            output_tokens=output_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """Sessions that begin at known times."""

    sessions: Sessions
    begin_s: Floats
    """Shape (n,)."""
    known_tokens: Ints
    """Lengths of the texts that `sessions.chosen` are numbers of."""

    def __len__(self) -> int:
        """Of requests."""
        return len(self.sessions.added_tokens)

    def of_session(self) -> Ints:
        """The session of each request."""
        return np.repeat(np.arange(len(self.begin_s)), self.sessions.turns)

    def firsts(self) -> Ints:
        """For each request, the first one of its session."""
        turns = self.sessions.turns
        return np.repeat(np.cumsum(turns) - turns, turns)

    def at_s(self) -> Floats:
        since_begin_s = np.cumsum(self.sessions.since_s)
        return self.begin_s[self.of_session()] + since_begin_s - since_begin_s[self.firsts()]

    def session_numbers(self, from_number: int) -> Ints:
        """-1 for the request of a session that has no other."""
        turns = self.sessions.turns
        return np.repeat(np.where(turns > 1, from_number + np.arange(len(turns)), -1), turns)


def requests_of(kinds: Sequence[Begun], start_s: float, end_s: float) -> Requests:
    """Requests of all kinds from `start_s` to before `end_s`, by time, which counts from `start_s` then.

    Known texts have the first numbers, kind after kind; then comes what each request adds, inside or not.
    """
    at_s = np.concatenate([kind.at_s() for kind in kinds])
    inside = np.flatnonzero((at_s >= start_s) & (at_s < end_s))
    rows = inside[np.argsort(at_s[inside], kind="stable")]
    begins = _ends_before([len(kind) for kind in kinds])
    firsts = np.concatenate([kind.firsts() + begin for kind, begin in zip(kinds, begins, strict=True)])[rows]
    places = np.repeat([len(kind.sessions.chosen) for kind in kinds], [len(kind) for kind in kinds])[rows]
    offsets = np.concatenate(([0], np.cumsum(places + 1 + rows - firsts)))
    ids, tokens = _segments(kinds, rows, firsts - places, offsets)
    numbers = _ends_before([len(kind.begin_s) for kind in kinds])
    session = [kind.session_numbers(number) for kind, number in zip(kinds, numbers, strict=True)]
    return Requests(
        at_s=at_s[rows] - start_s,
        prompt_tokens=np.add.reduceat(tokens, offsets[:-1]) if len(rows) else rows,
        output_tokens=np.concatenate([kind.sessions.output_tokens for kind in kinds])[rows],
        session=np.concatenate(session)[rows],
        segment_offsets=offsets,
        segment_ids=ids,
        segment_tokens=tokens,
    )


def _segments(kinds: Sequence[Begun], rows: Ints, leads: Ints, offsets: Ints) -> tuple[Ints, Ints]:
    """Numbers and tokens of all segments; a request's own end with its row, and would begin with its lead."""
    # Behind known texts stand rows of requests, from the first of the session to this one.
    ids = np.repeat(leads - offsets[:-1], np.diff(offsets))
    ids += np.arange(offsets[-1])
    known = _known(kinds, rows, offsets[:-1])
    for text in known:
        ids[text.at] = 0
    tokens = np.concatenate([kind.sessions.added_tokens for kind in kinds])[ids]
    ids += sum(len(kind.known_tokens) for kind in kinds)
    for text in known:
        ids[text.at] = text.numbers
        tokens[text.at] = text.tokens
    return ids, tokens


class _Known(NamedTuple):
    """The known texts at one place of the prompts of one kind."""

    at: Ints
    """Which segments."""
    numbers: Ints
    tokens: Ints


def _known(kinds: Sequence[Begun], rows: Ints, begins: Ints) -> list[_Known]:
    found: list[_Known] = []
    row = number = 0
    for kind in kinds:
        mine = np.flatnonzero((rows >= row) & (rows < row + len(kind)))
        sessions = kind.of_session()[rows[mine] - row]
        for place, chosen in enumerate(kind.sessions.chosen):
            texts = chosen[sessions]
            found.append(_Known(begins[mine] + place, number + texts, kind.known_tokens[texts]))
        row += len(kind)
        number += len(kind.known_tokens)
    return found


def _ends_before(sizes: list[int]) -> list[int]:
    """Where each of some stretches begins that come one after another."""
    return [sum(sizes[:position]) for position in range(len(sizes))]
