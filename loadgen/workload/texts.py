"""Prompt text of an exact number of tokens for a given model: real text once its tokenizer is known, else words.

Every text opens with words drawn at random, so no two texts have a prefix in common by accident; stretches of a book
follow, each from a place of its own, and words fill what is left. Prefix caches see texts that have nothing in
common; the stretches themselves may come again, further in.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from struct import unpack

import msgspec

from loadgen.workload.prompts import WORDS, prompt

Segments = tuple[tuple[int, int], ...]
"""(seed, tokens) of each part of a prompt, in order."""

_OPENING_WORDS = 8
"""Two of a million texts open alike with a probability of 3e-8: 256 words, eight times. Ids are more than words."""
_STRETCH_TOKENS = 1024

OUTSIDE_RUNS = 1 << 63
"""Numbers of texts from here on are in no schedule (`loadgen.plan.schedule`): they are for what is sent before one."""
_OF_RUNS = 0.8
"""Part of the book that is for numbers below `OUTSIDE_RUNS`. The others have the rest, so that both share nothing."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What the texts of one model are made of."""

    words: tuple[str, ...] = WORDS
    """256, each one token, at the start of a text and after a space; of a poor tokenizer some come twice."""
    book: tuple[str, ...] = ()
    """A text, cut at its spaces; none when it is not known how many tokens its words are."""
    book_tokens: bytes = b""
    """Of each word of the book, after a space."""
    book_ids: tuple[int, ...] = ()
    """What a tokenizer makes of the whole book, in order, some words of it twice; none when none was asked."""


USUAL = Vocabulary()
"""For most models."""


class Texts:
    """Equal arguments give equal texts, for ever and on every machine."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._words = vocabulary.words
        self._book = " ".join(vocabulary.book)
        self._places = list(accumulate((len(word) + 1 for word in vocabulary.book), initial=0))
        """Where each word of the book begins, and one past the end of the last."""
        self._tokens = list(accumulate(vocabulary.book_tokens, initial=0))
        """Tokens of the book up to each word."""
        self._book_ids = vocabulary.book_ids
        self._known_ids = sorted(set(vocabulary.book_ids))
        self._begins = _begins(self._tokens, _STRETCH_TOKENS)
        self._ids_at_once = max(1, min(_STRETCH_TOKENS, len(self._book_ids) // 10))
        self._id_begins = _begins(range(len(self._book_ids) + 1), self._ids_at_once)

    def words(self, count: int, seed: int) -> str:
        """Nothing but words, which is exact for most models even when the vocabulary was made for none."""
        return prompt(count, seed, self._words)

    def text(self, tokens: int, seed: int) -> str:
        """Text of so many tokens, at least 1; `seed` is from 0 to 2^64 - 1.

        A longer text of the same seed begins like the shorter one, but for a few words at the end of that: a prompt
        that lost its end still shares its beginning.
        """
        if not self._book or tokens <= _OPENING_WORDS:
            return self.words(tokens, seed)
        parts = [self.words(_OPENING_WORDS, seed)]
        left = tokens - _OPENING_WORDS
        for begin in _drawn(seed, left // _STRETCH_TOKENS + 1, self._begins[seed >= OUTSIDE_RUNS], b"book"):
            stretch, found = self._stretch(begin, min(left, _STRETCH_TOKENS))
            if found:
                parts.append(stretch)
                left -= found
        if left:
            parts.append(self.words(_OPENING_WORDS + left, seed).split(" ", _OPENING_WORDS)[-1])
        return " ".join(parts)

    def prompt(self, segments: Segments, tokens: int) -> str:
        """The texts of (seed, tokens) one after another, without what exceeds `tokens` at the end; at least 1 token."""
        return " ".join(self.text(taken, seed) for seed, taken in _cut(segments, tokens))

    def prompt_ids(self, segments: Segments, tokens: int) -> list[int]:
        """As `prompt`, in token ids, of a vocabulary that has some."""
        ids: list[int] = []
        for seed, taken in _cut(segments, tokens):
            ids += self._ids(taken, seed)
        return ids

    def _ids(self, tokens: int, seed: int) -> list[int]:
        """Some ids drawn from all that are known, then stretches of the book; a longer one begins with a shorter."""
        ids = _drawn(seed, min(tokens, _OPENING_WORDS), self._known_ids, b"ids")
        draws = -(-(tokens - len(ids)) // self._ids_at_once)
        for begin in _drawn(seed, draws, self._id_begins[seed >= OUTSIDE_RUNS], b"book"):
            ids += self._book_ids[begin : begin + self._ids_at_once]
        return ids[:tokens]

    def _stretch(self, begin: int, tokens: int) -> tuple[str, int]:
        """As many whole words of the book as fit into `tokens`, from a word on; and their tokens."""
        end = bisect_right(self._tokens, self._tokens[begin] + tokens) - 1
        return self._book[self._places[begin] : self._places[end] - 1], self._tokens[end] - self._tokens[begin]


def _cut(segments: Segments, tokens: int) -> Iterator[tuple[int, int]]:
    """The segments up to `tokens` in all, at least 1: the last of them shorter."""
    left = max(1, tokens)
    for seed, length in segments:
        if not left:
            return
        yield seed, min(length, left)
        left -= min(length, left)


def _begins(tokens: Sequence[int], stretch: int) -> tuple[range, range]:
    """Places of a book where a stretch of so many tokens may begin, for runs and for what comes before: in its part.

    `tokens` are those of the book up to each place, up to its end. In a book that is too short there is one at least.
    """
    border = bisect_right(tokens, _OF_RUNS * tokens[-1]) - 1
    last_of_runs, last = (bisect_right(tokens, tokens[end] - stretch) for end in (border, -1))
    return range(max(1, last_of_runs)), range(border, max(border + 1, last))


def _drawn(seed: int, count: int, of: Sequence[int], purpose: bytes) -> list[int]:
    """So many of some numbers; more of the same seed begin with fewer."""
    digest = hashlib.shake_128(purpose + seed.to_bytes(8, "big")).digest(4 * count)
    return [of[number % len(of)] for number in unpack(f">{count}I", digest)]
