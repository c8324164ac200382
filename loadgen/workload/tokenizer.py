"""A model's own tokenizer, from the `tokenizer.json` that comes with it. Needs the package `tokenizers`, an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def counter(path: Path) -> Callable[[str], int]:
    """Counts the tokens of a text, without those that a template or the model adds.

    Raises ValueError when the file is no tokenizer, or nothing here can read one.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise ValueError("--tokenizer needs the package tokenizers: pip install 'weir-llm[tokenizers]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path}: not a tokenizer.json: {error}") from error
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
