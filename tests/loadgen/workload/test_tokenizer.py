import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from loadgen.workload.prompts import WORDS
from loadgen.workload.texts import Texts
from loadgen.workload.tokenizer import counter, vocabulary
from loadgen.workload.vocabulary import read_book


def trained(path, pre_tokenizer, texts, size):
    """A BPE that has learned from texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))
    return path


@pytest.fixture
def small(tmp_path):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return trained(tmp_path / "tokenizer.json", byte_level, ["the river the weir the water"] * 20, 300)


def test_it_counts_as_the_tokenizer_does(small):
    count = counter(small)
    assert count("") == 0
    assert count("the river") < len("the river")
    assert count("xyz") == 3


def test_a_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer\.json"):
        counter(path)


def test_without_the_package_the_remedy_is_told(monkeypatch, small):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"^--tokenizer needs the package.*pip install 'weir-llm\[tokenizers\]'"):
        vocabulary(small)


def test_one_with_too_few_words_is_refused(small):
    with pytest.raises(ValueError, match=r"tokenizer\.json: \d+ words are one token, 128 are needed"):
        vocabulary(small)


PRE_TOKENIZERS = {
    "byte_level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "sentencepiece": pre_tokenizers.Metaspace(),
}


@pytest.mark.parametrize("kind", PRE_TOKENIZERS)
def test_prompts_have_exactly_the_tokens_asked_for(kind, tmp_path):
    """Words at the start are other tokens than after a space for byte-level ones, so both have to be learned."""
    seen = [" ".join(read_book()), *(text for word in WORDS for text in (word, f"{word} {word}"))] * 3
    path = trained(tmp_path / "tokenizer.json", PRE_TOKENIZERS[kind], seen, 4000)
    count, found = counter(path), vocabulary(path)
    assert found.book
    texts = Texts(found)
    for tokens, seed in ((1, 5), (8, 1), (9, 2), (10, 3), (500, 6), (3000, 7)):
        text = texts.text(tokens, seed)
        assert count(text) == tokens
    prompt = texts.prompt(((1, 300), (2, 40), (3, 100)), 420)
    assert count(prompt) == 420
