from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.prompts import WORDS, prompt

seeds = st.integers(0, 2**63 - 1)


def test_the_list_has_a_word_for_every_byte():
    assert len(set(WORDS)) == len(WORDS) == 256
    assert all(word.isalpha() and word.islower() and word.isascii() and len(word) <= 8 for word in WORDS)


@given(st.integers(1, 2000), seeds)
def test_a_prompt_has_exactly_the_words_asked_for(words, seed):
    text = prompt(words, seed)
    found = text.split(" ")
    assert len(found) == words
    assert set(found) <= set(WORDS)
    assert prompt(words, seed) == text


@given(seeds, st.integers(1, 50), st.integers(1, 50))
def test_a_longer_prompt_of_a_seed_continues_the_shorter(seed, words, more):
    assert prompt(words + more, seed).startswith(prompt(words, seed) + " ")


def test_the_text_never_changes():
    assert prompt(8, 1) == "winter worker too policy person light control down"


def test_prompts_share_no_prefix_beyond_chance():
    """Of n prompts, about n²/2/256^k pairs share their first k words: none of 3000 share four."""
    texts = [prompt(4, seed) for seed in range(3000)]
    assert len(set(texts)) == len(texts)
