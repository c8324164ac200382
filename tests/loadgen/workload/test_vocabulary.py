import re
from collections import Counter

import pytest

from loadgen.workload.prompts import WORDS
from loadgen.workload.texts import USUAL, Texts
from loadgen.workload.vocabulary import answer, find, read_book

BOOK = read_book()


class Tokenizer:
    """Single tokens are the words it knows, with the space before them or at the start; others are letters."""

    def __init__(self, known, *, joins=()):
        self.known = set(known)
        self.joins = joins
        self.asked = []
        self._ids = {}

    def __call__(self, text):
        self.asked.append(text)
        return [self._ids.setdefault(token, len(self._ids)) for token in self._tokens(text)]

    def _tokens(self, text):
        for pair in self.joins:
            text = text.replace(pair, pair.replace(" ", "_"))
        for piece in re.findall(r" ?\S+|\s", text):
            if piece.strip().replace("_", "") in self.known:
                yield piece
            else:
                yield from piece.replace(" ", "")


def test_the_book_is_plain_text_of_many_words():
    assert len(BOOK) > 30_000
    assert len(set(BOOK)) > 5_000
    assert all(re.fullmatch("[A-Za-z]+", word) for word in BOOK)
    assert "SCENE The sea with a Ship" in " ".join(BOOK)


def test_the_usual_words_are_taken_when_each_is_one_token():
    tokenizer = Tokenizer({*WORDS, "the"})
    found = answer(find(BOOK), tokenizer)
    assert set(found.words) == set(WORDS)
    assert found.book == BOOK
    # Each part of a hundred words but the last has the first word of the next one too.
    assert len(found.book_ids) == sum(found.book_tokens) + sum(found.book_tokens[100::100])
    assert len(tokenizer.asked) < 600


def test_what_it_makes_is_exact():
    tokenizer = Tokenizer({*WORDS, *(word for word, _ in Counter(BOOK).most_common(300))})
    texts = Texts(answer(find(BOOK), tokenizer))
    for tokens in (1, 8, 9, 200, 5000):
        assert len(tokenizer(texts.text(tokens, tokens))) == tokens


def test_words_of_several_tokens_give_way_to_frequent_ones_of_the_book():
    frequent = [word for word, _ in Counter(BOOK).most_common(250) if re.fullmatch("[a-z]{2,12}", word)]
    known = {*WORDS[::2], *frequent}
    found = answer(find(BOOK), Tokenizer(known))
    assert set(found.words) <= known
    assert len(found.words) == 256


def test_a_poor_tokenizer_has_some_words_twice():
    found = answer(find(BOOK), Tokenizer(WORDS[:200]))
    assert Counter(found.words).keys() == set(WORDS[:200])
    assert len(found.words) == 256


def test_one_that_has_too_few_is_refused():
    with pytest.raises(ValueError, match="100 words are one token, 128 are needed: leave the tokenizer out"):
        answer(find(BOOK), Tokenizer(WORDS[:100]))


def test_a_word_that_is_one_token_only_at_the_start_is_none():
    class Starting(Tokenizer):
        def _tokens(self, text):
            yield from super()._tokens(text.replace(" baby", " b y"))

    assert "baby" not in answer(find(BOOK), Starting(WORDS)).words


def test_a_word_that_is_one_token_only_after_a_space_is_none():
    class Spaced(Tokenizer):
        def _tokens(self, text):
            yield from super()._tokens(re.sub(r"(^|\n)baby", r"\1b y", text))

    assert "baby" not in answer(find(BOOK), Spaced(WORDS)).words


def test_a_book_whose_words_do_not_add_up_is_left_out():
    tokenizer = Tokenizer({*WORDS, "aShipmasterand"}, joins=("a Shipmaster and",))
    assert "a Shipmaster and" in " ".join(BOOK[:300])
    found = answer(find(BOOK[:300]), tokenizer)
    assert (found.book, found.book_tokens) == ((), b"")
    assert set(found.book_ids) <= set(tokenizer(" ".join(("at", *BOOK[:300]))))
    assert len(found.book_ids) > 300
    assert Texts(found).text(50, 3) == Texts(USUAL).text(50, 3)


def test_a_book_may_have_all_of_the_words():
    assert answer(find((*WORDS, "baby", "Boatswain")), Tokenizer(WORDS)).book_tokens == bytes([1] * 257 + [9])


def test_a_book_with_a_word_of_no_known_length_is_left_out():
    class Losing(Tokenizer):
        def _tokens(self, text):
            yield from super()._tokens(text.replace(" Boatswain", ""))

    assert answer(find(BOOK[:200]), Losing(WORDS)).book == ()


@pytest.mark.parametrize("book", [(), tuple(f"{word}s" for word in WORDS)])
def test_without_a_word_to_count_with_there_is_no_book(book):
    assert answer(find(book), Tokenizer(WORDS)).book == ()
