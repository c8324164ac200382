"""A model's own tokenizer, from the `tokenizer.json` that comes with it. Needs the package `tokenizers`, an extra."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.workload.prompts import WORDS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_WORD = re.compile("[a-z]{2,12}")
_SPACES = "\u0120\u2581"
"""How byte-level and SentencePiece vocabularies write the space before a word."""


def counter(path: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without those that a template or the model adds.

    Raises ValueError when the file is no tokenizer, or nothing here can read one.
    """
    tokenizer = _load(path)
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def one_token_words(path: Path) -> tuple[str, ...]:
    """256 words that are one token each, at the start of a text and after a space: of the usual list, then of others.

    Raises ValueError as `counter` does, and for a tokenizer that has fewer.
    """
    tokenizer = _load(path)

    def is_one(word: str) -> bool:
        texts = (word, f"{word} {word} {word}")
        return [len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts] == [1, 3]

    by_id = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    found = dict.fromkeys(word for word in WORDS if is_one(word))
    for word in (token.lstrip(_SPACES) for token, _ in by_id):
        if len(found) == len(WORDS):
            break
        if word not in found and _WORD.fullmatch(word) and is_one(word):
            found[word] = None
    if len(found) < len(WORDS):
        raise ValueError(f"{path} has {len(found)} words of one token, {len(WORDS)} are needed: leave --tokenizer out")
    return tuple(found)


def _load(path: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError("--tokenizer needs the package tokenizers: pip install 'weir-llm[tokenizers]'") from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from error
