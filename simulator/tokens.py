"""The stand-in tokenizer: text in, token ids out, with no model files.

It hides how text is cut and numbered. It never loses a character (the pieces of a text, joined, are the
text) and never depends on the process: equal text gives equal ids everywhere, so prefixes are shared
token-exactly between requests, processes and runs. Two different pieces may share an id (a 32-bit hash
folded into the vocabulary), which can lengthen a cached prefix by chance once in about 128,000 pieces.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from random import Random

ORDINARY_TOKENS = 128_000
"""Ids below this are text; the 256 above are special. Source: Llama 3 tokenizer, 128,256 entries in all."""

BEGIN, START_HEADER, END_HEADER, END_OF_TURN = 128_000, 128_006, 128_007, 128_009
"""`<|begin_of_text|>`, `<|start_header_id|>`, `<|end_header_id|>`, `<|eot_id|>` of the Llama 3 tokenizer."""

TEMPLATE_TOKENS_PER_MESSAGE = 5
TEMPLATE_TOKENS_PER_PROMPT = 5
"""What `encode_chat` adds: one begin token and the four of the answer's opening header."""

_PIECE = re.compile(r"\s?\S{1,8}|\s")
_SYLLABLES = [consonant + vowel for consonant, vowel in product("bdfgklmnprstvz", "aeiou")]


def pieces(text: str) -> list[str]:
    """The token texts of `text`: words with the one whitespace before them, at most 8 letters each."""
    return _PIECE.findall(text)


@lru_cache(maxsize=1 << 16)
def token_id(piece: str) -> int:
    """Id of one piece, the same in every process (CRC-32 folded into the text part of the vocabulary)."""
    return zlib.crc32(piece.encode("utf-8", "surrogatepass")) % ORDINARY_TOKENS


def encode(text: str) -> list[int]:
    """Token ids of plain text; no begin token is added."""
    return list(map(token_id, _PIECE.findall(text)))


def encode_chat(messages: Iterable[tuple[str, str]]) -> list[int]:
    """Token ids of (role, content) messages in the Llama 3 chat format, opened for the assistant's answer.

    begin, then per message: start-header, role, end-header, blank line, content, end-of-turn; then the
    header of the assistant. A conversation continued with the generated answer starts with exactly the
    tokens of the earlier prompt and answer, so its whole past is a shared prefix.
    """
    ids = [BEGIN]
    for role, content in messages:
        ids += [*_header(role), *encode(content), END_OF_TURN]
    return ids + _header("assistant")


def _header(role: str) -> list[int]:
    return [START_HEADER, token_id(role), END_HEADER, token_id("\n\n")]


WORDS: Sequence[str] = [" " + "".join(pair) for pair in product(_SYLLABLES, repeat=2)]
"""What completions are made of: 4,900 invented words of four letters, each one token with its space."""


def draw_words(rng: Random, count: int) -> list[str]:
    """`count` words of `WORDS`, each one output token."""
    return rng.choices(WORDS, k=count)
