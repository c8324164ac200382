from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.prompts import WORDS, prompt
from loadgen.workload.texts import OUTSIDE_RUNS, USUAL, Texts, Vocabulary
from loadgen.workload.vocabulary import read_book

BOOK = read_book()


def pieces(word):
    """A tokenizer of our own: pieces of three letters."""
    return -(-len(word) // 3)


TOKENS = bytes(pieces(word) for word in BOOK)
WITH_BOOK = Vocabulary(words=tuple(word[:3] for word in WORDS), book=BOOK, book_tokens=TOKENS)
TEXTS = Texts(WITH_BOOK)
seeds = st.integers(0, 2**64 - 1)


def windows(words):
    return {tuple(words[place : place + 16]) for place in range(len(words) - 15)}


def count(text):
    return sum(map(pieces, text.split(" ")))


@given(st.integers(1, 5000), seeds)
def test_a_text_has_exactly_the_tokens_asked_for(tokens, seed):
    text = TEXTS.text(tokens, seed)
    assert count(text) == tokens
    assert Texts(WITH_BOOK).text(tokens, seed) == text


@given(st.integers(1, 4000), st.integers(1, 4000), seeds)
def test_a_longer_text_begins_like_a_shorter_one(one, other, seed):
    """Up to words that fill what is too short for a word of the book, at the end of each of up to four stretches."""
    shorter, longer = (TEXTS.text(tokens, seed).split(" ") for tokens in sorted((one, other)))
    agree = next((n for n, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    assert sum(map(pieces, shorter[agree:])) <= 4 * max(TOKENS)


def test_a_text_opens_with_words_and_goes_on_with_the_book():
    text = TEXTS.text(600, 3).split(" ")
    assert text[:8] == prompt(8, 3, WITH_BOOK.words).split(" ")
    told = " ".join(text[8:])
    assert told in " ".join(BOOK) or " ".join(told.split(" ")[:-2]) in " ".join(BOOK)


def test_a_long_text_takes_stretches_from_many_places():
    inside = set(pairwise(BOOK))
    words = TEXTS.text(50_000, 1).split(" ")[8:]
    borders = sum(pair not in inside for pair in pairwise(words))
    assert 20 < borders < 150
    assert len(set(words)) > 3000


def test_words_come_as_often_as_in_the_book():
    words = TEXTS.text(50_000, 2).split(" ")
    for word in ("the", "and", "I"):
        assert words.count(word) / len(words) == pytest.approx(BOOK.count(word) / len(BOOK), rel=0.25)


def test_a_book_shorter_than_the_text_comes_again():
    texts = Texts(Vocabulary(words=WITH_BOOK.words, book=("Full", "fathom", "five"), book_tokens=bytes((2, 2, 2))))
    assert "Full fathom five" in texts.text(20, 1)
    for tokens in (9, 10, 11, 20, 5000):
        assert count(texts.text(tokens, 1)) == tokens


def test_without_a_book_texts_are_words():
    assert Texts(USUAL).text(50, 7) == prompt(50, 7) == Texts(USUAL).words(50, 7)


@pytest.mark.parametrize("texts", [TEXTS, Texts(USUAL)])
def test_no_two_texts_have_a_beginning_in_common(texts):
    assert len({texts.text(4, seed) for seed in range(3000)}) == 3000


@pytest.mark.parametrize("texts", [TEXTS, Texts(USUAL)])
def test_the_calibrations_text_has_nothing_of_any_request(texts):
    """It is sent before, so a window of 16 words that came again could be in a cache already."""

    calibration = windows(texts.words(64, 0).split(" "))
    assert len(calibration) == 49
    assert all(calibration.isdisjoint(windows(texts.text(4000, seed).split(" "))) for seed in range(1, 60))


def test_text_before_a_run_has_nothing_of_any_text_of_runs():
    """No 16 words in a row of the one are in the other, wherever they stand; nor ids, which all differ here."""
    runs = [set(windows(TEXTS.text(9000, seed).split(" "))) for seed in (0, 5, OUTSIDE_RUNS - 1)]
    before = [set(windows(TEXTS.text(9000, seed).split(" "))) for seed in (OUTSIDE_RUNS, 2**64 - 1)]
    assert all(one.isdisjoint(other) for one in runs for other in before)
    assert runs[0] & runs[1], "stretches of the book come again in long texts of the same part"
    ids = Texts(Vocabulary(book_ids=tuple(range(50_000))))
    of_runs, of_others = (set(ids.prompt_ids(((seed, 90_000),), 90_000)[8:]) for seed in (3, OUTSIDE_RUNS + 3))
    assert of_runs.isdisjoint(of_others)
    assert max(of_runs) < 40_000 <= min(of_others)


def test_words_of_two_seeds_have_no_window_in_common():
    texts = [windows(Texts(USUAL).text(2000, seed).split(" ")) for seed in range(20)]
    assert all(one.isdisjoint(other) for one, other in combinations(texts, 2))


IDS = Texts(Vocabulary(book_ids=tuple(range(100, 9000)) * 3))


@given(st.integers(1, 5000), st.integers(1, 5000), seeds)
def test_ids_are_exactly_as_many_and_begin_alike(one, other, seed):
    shorter, longer = (IDS.prompt_ids(((seed, tokens),), tokens) for tokens in sorted((one, other)))
    assert (len(shorter), len(longer)) == tuple(sorted((one, other)))
    assert longer[: len(shorter)] == shorter
    assert set(longer) <= set(range(100, 9000))


def test_ids_open_by_chance_and_go_on_with_the_book():
    ids = IDS.prompt_ids(((3, 500),), 500)
    assert ids[8:] == list(range(ids[8], ids[8] + 492))
    assert len({tuple(IDS.prompt_ids(((seed, 4),), 4)) for seed in range(3000)}) == 3000


def test_a_book_of_few_ids_comes_again():
    few = Texts(Vocabulary(book_ids=(7, 8, 9)))
    for seed in (1, OUTSIDE_RUNS):
        assert [len(few.prompt_ids(((seed, tokens),), tokens)) for tokens in (1, 8, 9, 2000)] == [1, 8, 9, 2000]


def test_ids_have_the_same_structure_as_text():
    ids = IDS.prompt_ids(((3, 40), (4, 30), (5, 20)), 75)
    assert ids == [
        token for seed, length in ((3, 40), (4, 30), (5, 5)) for token in IDS.prompt_ids(((seed, length),), length)
    ]
    assert IDS.prompt_ids(((3, 40),), 0) == IDS.prompt_ids(((3, 40),), 1)


SEGMENTS = ((3, 40), (4, 30), (5, 20))


@pytest.mark.parametrize(("tokens", "kept"), [(90, (40, 30, 20)), (75, (40, 30, 5)), (70, (40, 30)), (1, (1,))])
def test_a_prompt_is_its_segments_without_their_end(tokens, kept):
    expected = " ".join(TEXTS.text(length, seed) for (seed, _), length in zip(SEGMENTS, kept, strict=False))
    assert TEXTS.prompt(SEGMENTS, tokens) == expected
    assert count(expected) == tokens


@pytest.mark.parametrize("tokens", [0, -30])
def test_a_prompt_has_a_token_at_least(tokens):
    assert TEXTS.prompt(SEGMENTS, tokens) == TEXTS.text(1, 3)
