"""Which text prompts share: a common beginning, and requests that begin as an earlier one did and go on from there.

A model of prefix reuse in a few figures: conversations, documents and agents all look like this to a prefix cache. Text
is counted in blocks, as caches do; a prompt is its blocks, one after another, the last one a part of one.
"""

from __future__ import annotations

from array import array

import msgspec
import numpy as np

from loadgen.workload.traffic import Floats, Ints, Requests

_LOOKED_AT = 64
"""Earlier requests around the wanted time, of which the one whose length fits best is gone on from."""


class SharingFit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Share of prompt tokens that a cache without bounds would have had: in the log, and in traffic drawn from this."""

    trace_hit_ratio: float
    model_hit_ratio: float
    verdict: str


class Sharing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tables are values at even steps of the share of requests, straight lines between them."""

    block_tokens: int
    common_blocks: int
    """How long the beginning is that most requests have in common, a system prompt say."""
    common_share: float
    """Of requests that have it, among those that begin nothing earlier anew."""
    continue_share: list[float]
    """Of requests that begin as an earlier one did, beyond what is common: from the shortest prompts to the longest."""
    reused: list[float]
    """Which part of its prompt such a request has from the earlier one, from the least to the most."""
    delay_s: list[float]
    """How long ago the earlier one came, from the shortest to the longest."""
    fit: SharingFit | None

    def __post_init__(self) -> None:
        if self.block_tokens < 1 or self.common_blocks < 0:
            raise ValueError(
                f"block_tokens is {self.block_tokens}, common_blocks {self.common_blocks}: need 1 and 0 at least"
            )
        for name, shares in (("common_share", [self.common_share]), ("continue_share", self.continue_share)):
            if not shares or not all(0 <= share <= 1 for share in shares):
                raise ValueError(f"{name} is {shares}: give shares from 0 to 1")
        for name in ("reused", "delay_s"):
            table: list[float] = getattr(self, name)
            if len(table) < 2 or sorted(table) != table or table[0] < 0:
                raise ValueError(f"{name} is {table}: expected two or more numbers of at least 0 that never fall")
        if self.reused[-1] > 1:
            raise ValueError(f"reused ends at {self.reused[-1]}: a part of a prompt is at most 1")

    def draw(self, rng: np.random.Generator, at_s: Floats, prompt_tokens: Ints, output_tokens: Ints) -> Requests:
        """Requests of these times, ascending, and lengths, with prompts made of blocks that some of them share."""
        uniforms = rng.random((len(at_s), 3))
        reused = _table(self.reused, uniforms[:, 1]) * prompt_tokens
        since_s = at_s - _table(self.delay_s, uniforms[:, 2])
        continues = uniforms[:, 0] < _table(self.continue_share, _ranks(prompt_tokens))
        has_common = uniforms[:, 1] < self.common_share
        sizes, whole = -(-prompt_tokens // self.block_tokens), (prompt_tokens // self.block_tokens).tolist()
        around = np.searchsorted(at_s, since_s)
        begins = _Begins(self.common_blocks)
        for number, size in enumerate(sizes.tolist()):
            wanted = round(float(reused[number]) / self.block_tokens)
            if continues[number] and number:
                begins.go_on(int(around[number]), min(wanted, whole[number]), size, whole[number])
            else:
                begins.anew(size, whole[number], common=bool(has_common[number]))
        return self._requests(at_s, prompt_tokens, output_tokens, sizes, begins.blocks)

    def _requests(
        self, at_s: Floats, prompt_tokens: Ints, output_tokens: Ints, sizes: Ints, blocks: array[int]
    ) -> Requests:
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        tokens = np.full(int(offsets[-1]), self.block_tokens, dtype=np.int64)
        tokens[offsets[1:] - 1] = prompt_tokens - (sizes - 1) * self.block_tokens
        return Requests(
            at_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            session=np.full(len(at_s), -1, dtype=np.int64),
            segment_offsets=offsets,
            segment_ids=np.asarray(blocks, dtype=np.int64),
            segment_tokens=tokens,
        )


class _Begins:
    """The blocks of all prompts so far, one prompt after another. Only whole ones are equal text in two prompts."""

    def __init__(self, common_blocks: int) -> None:
        self.blocks = array("q")
        self._offsets = array("q", [0])
        self._whole = array("q")
        self._gone_on = array("b")
        self._common = common_blocks
        self._new = common_blocks
        """Ids from here on have not been used."""

    def anew(self, size: int, whole: int, *, common: bool) -> None:
        """A prompt that has at most the common beginning from others."""
        known = min(self._common, whole) if common else 0
        self._append(range(known), size, whole)

    def go_on(self, around: int, wanted: int, size: int, whole: int) -> None:
        """A prompt that begins with `wanted` blocks of an earlier one, of about the `around`-th."""
        parent = self._parent(around, wanted)
        self._gone_on[parent] = 1
        begin = self._offsets[parent]
        self._append(self.blocks[begin : begin + min(wanted, self._whole[parent])], size, whole)

    def _parent(self, around: int, wanted: int) -> int:
        """Of those near by, the one whose length is nearest: a conversation goes on from all that was said.

        One that nobody has gone on from yet comes before others.
        """
        last = len(self._whole) - 1
        begin = max(0, min(around, last) - _LOOKED_AT // 2)
        end = min(last + 1, begin + _LOOKED_AT)

        def misfit(at: int) -> tuple[bool, bool, int]:
            spare = self._whole[at] - wanted
            return (spare < 0, bool(self._gone_on[at]), abs(spare))

        return min(range(begin, end), key=misfit)

    def _append(self, known: range | array[int], size: int, whole: int) -> None:
        self.blocks.extend(known)
        fresh = size - len(known)
        self.blocks.extend(range(self._new, self._new + fresh))
        self._new += fresh
        self._offsets.append(len(self.blocks))
        self._whole.append(whole)
        self._gone_on.append(0)


def _table(values: list[float], uniforms: Floats) -> Floats:
    return np.interp(uniforms, np.linspace(0, 1, len(values)), values)


def _ranks(prompt_tokens: Ints) -> Floats:
    """Where each prompt stands among all by its length, from 0 to 1; of equal ones, the earlier is lower."""
    ranks = np.empty(len(prompt_tokens))
    ranks[np.argsort(prompt_tokens, kind="stable")] = np.arange(len(prompt_tokens)) / max(1, len(prompt_tokens) - 1)
    return ranks


def reuse(requests: Requests) -> tuple[Ints, Floats]:
    """Of each request: prompt tokens that a cache without bounds has already, and how long ago they were last used.

    A prefix counts as far as every one of its segments has been there before. The time is NaN where nothing is reused.
    """
    last_s: dict[tuple[int, int], float] = {}
    shared, since_s = np.zeros(len(requests), dtype=np.int64), np.full(len(requests), np.nan)
    offsets, ids, tokens = requests.segment_offsets.tolist(), requests.segment_ids, requests.segment_tokens
    for number, at_s in enumerate(requests.at_s.tolist()):
        part = slice(offsets[number], offsets[number + 1])
        known = True
        for identity, length in zip(ids[part].tolist(), tokens[part].tolist(), strict=True):
            if identity < 0:
                break
            text = (identity, length)
            if known and (before := last_s.get(text)) is not None:
                shared[number] += length
                since_s[number] = at_s - before
            else:
                known = False
            last_s[text] = at_s
    return shared, since_s


def hit_ratio(requests: Requests) -> float:
    """Share of all prompt tokens that a cache without bounds would have had."""
    shared, _ = reuse(requests)
    return float(shared.sum() / max(1, requests.prompt_tokens.sum()))
