"""What prompts for a model are made of, found by asking its tokenizer: a file, or an engine's `/tokenize`.

Sans-io: `find` yields texts and is sent their token ids, without those that a template or the model adds. Nothing is
taken on trust: every word is seen to be one token, and every part of the book to have the tokens of its words.

The book is corpus.txt, two plays in the public domain without their punctuation; its first lines say where it is from.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from pathlib import Path

from loadgen.workload.prompts import WORDS
from loadgen.workload.texts import Vocabulary

Finding = Generator[str, list[int], Vocabulary]

_CANDIDATES = 1024
"""Most words of the book that are tried in place of usual ones."""
_FEWEST = len(WORDS) // 2
_WORD = re.compile("[a-z]{2,12}")
_TOGETHER = 100
"""Words in one question: some hundred tokens, less than any model's context."""


def read_book() -> tuple[str, ...]:
    """The words of the book, in order."""
    lines = Path(__file__).with_name("corpus.txt").read_text(encoding="ascii").splitlines()
    return tuple(word for line in lines if not line.startswith("#") for word in line.split())


def find(book: Sequence[str]) -> Finding:
    """A vocabulary of this book; without one when the tokens of its words do not add up to those of its text.

    Raises ValueError when fewer than 128 words are one token.
    """
    words = yield from _one_token_words(book)
    sizes = yield from _sizes(book, words)
    ids, adds_up = list[int](), bool(sizes)
    for begin in range(0, len(book), _TOGETHER):
        # One word more than a part has, so that no border between two words is left out.
        part = book[begin : begin + _TOGETHER + 1]
        found = (yield " ".join((words[0], *part)))[1:]
        adds_up = adds_up and len(found) == sum(sizes[word] for word in part)
        ids += found
    return Vocabulary(
        words=tuple(words),
        book=tuple(book) if adds_up else (),
        book_tokens=bytes(sizes[word] for word in book) if adds_up else b"",
        book_ids=tuple(ids),
    )


def answer(finding: Finding, encode: Callable[[str], list[int]]) -> Vocabulary:
    """The vocabulary, with every text encoded by `encode`."""
    try:
        text = next(finding)
        while True:
            text = finding.send(encode(text))
    except StopIteration as end:
        found: Vocabulary = end.value
        return found


def _one_token_words(book: Sequence[str]) -> Generator[str, list[int], list[str]]:
    """256 words, of the usual ones and then of the book's most frequent; some of them twice when there are fewer."""
    candidates, found = _candidates(book), list[str]()
    while len(found) < len(WORDS) and (group := list(islice(candidates, _TOGETHER))):
        found += yield from _single(group)
    if len(found) < _FEWEST:
        raise ValueError(f"{len(found)} words are one token, {_FEWEST} are needed: leave the tokenizer out")
    return (found * 2)[: len(WORDS)]


def _candidates(book: Sequence[str]) -> Iterator[str]:
    common = (word for word, _ in Counter(book).most_common() if _WORD.fullmatch(word))
    return iter(dict.fromkeys((*WORDS, *islice(common, _CANDIDATES))))


def _single(group: list[str]) -> Generator[str, list[int], list[str]]:
    """Those that are one token, at the start of a text and after a space."""
    # After a line break a word is what it is at the start; where it is not, halves come down to single words.
    questions = {" ".join((group[-1], *group)): len(group) + 1, "\n".join(group): 2 * len(group) - 1}
    for text, expected in questions.items():
        if len((yield text)) != expected:
            break
    else:
        return group
    if len(group) == 1:
        return []
    half = len(group) // 2
    first = yield from _single(group[:half])
    second = yield from _single(group[half:])
    return first + second


def _goes_on(beginning: str, word: str) -> bool:
    """Whether a word may have the token of another one within it."""
    return word != beginning and word.startswith(beginning)


def _sizes(book: Sequence[str], words: list[str]) -> Generator[str, list[int], dict[str, int]]:
    """Tokens of each different word of the book after a space; none when one has no size of its own."""
    different = sorted(set(book))
    mark = next((word for word in words if not any(map(partial(_goes_on, word), different))), None)
    if mark is None:
        return {}
    mark_id = (yield f"{mark} {mark}")[-1]
    found = {mark: 1}
    different = [word for word in different if word != mark]
    for begin in range(0, len(different), _TOGETHER):
        group = different[begin : begin + _TOGETHER]
        ids = yield f"{mark} {mark} " + f" {mark} ".join(group) + f" {mark}"
        marks = [place for place, token in enumerate(ids) if token == mark_id and place]
        sizes = [after - before - 1 for before, after in pairwise(marks)]
        if len(sizes) != len(group) or not all(0 < size < 256 for size in sizes):
            return {}
        found.update(zip(group, sizes, strict=True))
    return found
