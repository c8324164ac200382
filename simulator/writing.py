"""Decides what an answer says: how many tokens, which words, and where a stop string cuts it.

It hides the random draws. An answer depends on the engine's seed, the prompt, the choice's number and the
request's own seed, never on time or load, so the same request gets the same answer again, as with greedy
sampling. Pure functions.
"""

from __future__ import annotations

import math
import zlib
from array import array
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from simulator import tokens
from simulator.intake import Generation
from simulator.steps import FinishReason, Request

MEDIAN_TOKENS, MEAN_TOKENS = 129, 211
"""Natural length of an answer: output tokens of the Azure LLM inference trace 2023, conversation part."""
_SIGMA = math.sqrt(2 * math.log(MEAN_TOKENS / MEDIAN_TOKENS))
"""Of the log-normal with that median and mean: mean = median · exp(sigma² / 2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One answer before it is generated."""

    request: Request
    texts: tuple[str, ...]
    """Visible text of each output token; empty for tokens that a stop string hides."""
    stop: str | None
    """The stop string that ends it."""


def write(generation: Generation, request_id: str, choice: int, engine_seed: int) -> Draft:
    """The answer number `choice` of a request; choices of one prompt follow each other."""
    prompt_number = choice // generation.n
    prompt = generation.prompts[prompt_number]
    rng = Random(f"{engine_seed}:{generation.seed}:{choice}:{zlib.crc32(array('q', prompt).tobytes())}")
    length, reason = _length(generation, generation.max_tokens[prompt_number], rng)
    words = tokens.draw_words(rng, length)
    texts, stop = _cut_at_stop(words, generation)
    return Draft(
        request=Request(
            request_id=request_id,
            prompt=prompt,
            output=tuple(map(tokens.token_id, words[: len(texts)])),
            finish_reason=reason if stop is None else "stop",
            max_tokens=generation.max_tokens[prompt_number],
        ),
        texts=tuple(texts),
        stop=stop,
    )


def _length(generation: Generation, max_tokens: int, rng: Random) -> tuple[int, FinishReason]:
    natural = max(1, round(MEDIAN_TOKENS * math.exp(rng.gauss(0, _SIGMA))))
    if generation.ignore_eos or natural >= max_tokens:
        return max_tokens, "length"
    return max(natural, generation.min_tokens), "stop"


def _cut_at_stop(words: list[str], generation: Generation) -> tuple[list[str], str | None]:
    """Words up to the first stop string that is complete after `min_tokens`, its own text removed."""
    text = "".join(words)
    found = [
        (at + len(stop), at, stop)
        for stop in generation.stop
        if (at := text.find(stop, len("".join(words[: generation.min_tokens])))) >= 0
    ]
    if not found:
        return words, None
    end, cut, stop = min(found)
    starts = accumulate(map(len, words), initial=0)
    kept = [word[: max(0, cut - start)] for word, start in zip(words, starts, strict=False) if start < end]
    return kept, stop
