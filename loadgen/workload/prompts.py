"""Prompt text of an exact number of tokens, from words that are one token each.

Every word of the list is one token, at the start of a text and after a space, in the vocabularies of GPT-2, cl100k_base
and o200k_base (checked with all three; Llama 3 and Qwen extend cl100k_base, by their reports), and has at most eight
letters, which the stand-in engines count as one token. The text never repeats a prefix by accident: it is
drawn from a hash of its seed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_WORDS = """
able action activity after allow also any area ask baby back below between big blue body book business
buy call car case center central change child class clean clear cold college company consider control
cost could course court cut dark day done door down draw dry each east effect even every eye face fact
fall family far father few field figure film final find follow foot form free fresh friend from full
game general girl give going good great green half hand hard head health heart heavy here high history
home hour image interest into job keep kind know last law lead leave left less level life light like
line live look low machine major make market matter may meet member mind model money most mother move
must name near need network never news night not now off offer official old once open other our over own
paper parent part party pass patient pay person physical place plan point policy power practice price
private problem process project public pull question quick reach ready real reason red research result
river road room run safe same see send service short simple since single small social soft some son
source south special stand star stay still stop story street strong student study support system take
talk tax team than that the these they those too town tree true type up upon value very view voice wait
walk wall watch water week well were west when while who why wide wife will window winter woman work
worker yet you young
"""

WORDS = tuple(_WORDS.split())
"""256 of them, so that a random byte picks one."""


def prompt(words: int, seed: int, vocabulary: Sequence[str] = WORDS) -> str:
    """Text of `words` words: equal arguments give equal texts, for ever and on every machine.

    A longer prompt of the same seed continues the shorter one. Two seeds share a prefix of k words with
    probability 256^-k. `seed` is from 0 to 2^64 - 1; `vocabulary` has 256 words, each of them one token to the model
    (`loadgen.workload.tokenizer`). Cost is about 25 ns per word.
    """
    choice = hashlib.shake_128(seed.to_bytes(8, "big")).digest(words)
    return " ".join(map(vocabulary.__getitem__, choice))
