"""The stand-in tokenizer loses nothing and numbers equal text equally."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from simulator import tokens


@given(st.text())
def test_pieces_joined_are_the_text(text: str) -> None:
    parts = tokens.pieces(text)
    assert "".join(parts) == text
    assert all(1 <= len(part) <= 9 for part in parts)


@given(st.text())
def test_ids_are_ordinary_tokens_one_a_piece(text: str) -> None:
    ids = tokens.encode(text)
    assert len(ids) == len(tokens.pieces(text))
    assert all(0 <= each < tokens.ORDINARY_TOKENS for each in ids)


def test_ids_do_not_depend_on_the_process() -> None:
    assert tokens.encode("hello world") == [52870, 85707]


def test_long_words_and_runs_of_space_are_cut() -> None:
    assert tokens.pieces("a  bcdefghijklm\n\nx ") == ["a", " ", " bcdefghi", "jklm", "\n", "\nx", " "]


@given(st.integers(0, 300), st.integers(0, 2**32))
def test_every_output_word_is_one_token_wherever_it_stands(count: int, seed: int) -> None:
    words = tokens.draw_words(Random(seed), count)
    assert tokens.pieces("".join(words)) == words
    assert tokens.encode("".join(words)) == [tokens.token_id(word) for word in words]


@given(st.lists(st.tuples(st.sampled_from(["system", "user"]), st.text()), max_size=5))
def test_the_template_adds_a_fixed_number_of_tokens(messages: list[tuple[str, str]]) -> None:
    text_tokens = sum(len(tokens.encode(content)) for _, content in messages)
    overhead = tokens.TEMPLATE_TOKENS_PER_PROMPT + tokens.TEMPLATE_TOKENS_PER_MESSAGE * len(messages)
    assert len(tokens.encode_chat(messages)) == text_tokens + overhead


def test_a_continued_conversation_starts_with_the_tokens_of_its_past() -> None:
    answer = "".join(tokens.draw_words(Random(3), 40))
    asked = tokens.encode_chat([("user", "What is a weir?")])
    past = asked + tokens.encode(answer)
    continued = tokens.encode_chat([("user", "What is a weir?"), ("assistant", answer), ("user", "Why?")])
    assert continued[: len(past)] == past
