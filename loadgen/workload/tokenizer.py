"""A model's own tokenizer, from the `tokenizer.json` that comes with it. Needs the package `tokenizers`, an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from loadgen.workload.texts import Vocabulary
from loadgen.workload.vocabulary import answer, find, read_book


def counter(path: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without those that a template or the model adds.

    Raises ValueError when the file is no tokenizer, or nothing here can read one.
    """
    encode = _encoder(path)
    return lambda text: len(encode(text))


def vocabulary(path: Path) -> Vocabulary:
    """What prompts are made of for the model of this tokenizer.

    Raises ValueError as `counter` does, and for a tokenizer that has too few words of one token.
    """
    encode = _encoder(path)
    try:
        return answer(find(read_book()), encode)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _encoder(path: Path) -> Callable[[str], list[int]]:
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError("--tokenizer needs the package tokenizers: pip install 'weir-llm[tokenizers]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from error

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode
