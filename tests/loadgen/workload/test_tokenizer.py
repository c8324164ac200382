import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from loadgen.workload.prompts import WORDS, prompt
from loadgen.workload.tokenizer import counter, one_token_words


@pytest.fixture
def file(tmp_path):
    """A byte-level BPE of a few merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(["the river the weir the water"] * 20, trainer)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_it_counts_as_the_tokenizer_does(file):
    count = counter(file)
    assert count("") == 0
    assert count("the river") < len("the river")
    assert count("xyz") == 3


def test_a_file_that_is_none_is_named(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: not a tokenizer\.json"):
        counter(path)


def test_without_the_package_the_remedy_is_told(monkeypatch, file):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match=r"pip install 'weir-llm\[tokenizers\]'"):
        counter(file)


@pytest.fixture
def rich(tmp_path):
    """One that has learned half of the usual words, and some others."""
    words = [*WORDS[:128], *(f"{a}{b}{c}" for a in "bdfg" for b in "aeiou" for c in "klmnprst")]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=6000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([" ".join(words)] * 20, trainer)
    path = tmp_path / "rich.json"
    tokenizer.save(str(path))
    return path


def test_prompts_of_its_words_have_exactly_the_tokens_asked_for(rich):
    words, count = one_token_words(rich), counter(rich)
    assert len(set(words)) == 256
    assert set(WORDS[:128]) <= set(words)
    for tokens, seed in ((1, 5), (17, 6), (3000, 7)):
        assert count(prompt(tokens, seed, words)) == tokens


def test_one_with_too_few_words_is_refused(file):
    with pytest.raises(ValueError, match=r"words of one token, 256 are needed: leave --tokenizer out"):
        one_token_words(file)
