import argparse
import subprocess
import sys

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from loadgen.plan import apart
from loadgen.plan.command import add_traffic_arguments, schedule_of
from loadgen.workload.prompts import WORDS
from loadgen.workload.texts import USUAL
from loadgen.workload.vocabulary import read_book


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_traffic_arguments(parser)
    return parser.parse_args(words)


def test_the_schedule_is_the_one_that_would_have_been_planned_here():
    asked = arguments("--lengths", "50-60:7", "--arrivals", "gamma:rate=20,cv=2", "--duration", "20", "--seed", "4")
    asked.verb = print
    content, schedule, vocabulary = apart.result(apart.start(asked))
    here_content, here = schedule_of(asked)
    assert content == here_content
    assert (schedule.header, list(schedule), vocabulary) == (here.header, list(here), USUAL)


def test_a_tokenizer_says_what_prompts_are_made_of(tmp_path):
    """Of one that splits at spaces and knows every word of the book."""
    known = sorted({*read_book(), *WORDS})
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(known)}))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    asked = arguments("--lengths", "50:7", "--arrivals", "constant:rate=1", "--tokenizer", f"{tmp_path}/tokenizer.json")
    vocabulary = apart.result(apart.start(asked)).vocabulary
    assert set(vocabulary.book_tokens) == {1}
    assert vocabulary.book == read_book()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--lengths", "7"), "expected PROMPT:OUTPUT"),
        (("--schedule", "/nowhere/at.all"), "No such file or directory: '/nowhere/at.all'"),
    ],
)
def test_what_cannot_be_planned_is_told_as_ever(words, why):
    with pytest.raises(ValueError, match=why):
        apart.result(apart.start(arguments(*words)))


def test_a_planner_that_dies_is_no_schedule():
    dead = subprocess.Popen([sys.executable, "-c", "import sys; sys.exit(3)"], stdout=subprocess.PIPE)
    with pytest.raises(ValueError, match="planning ended with status 3"):
        apart.result(dead)


def test_what_sends_has_not_loaded_what_plans():
    """pyarrow and scipy alone are more than the memory that a run may take."""
    code = "import sys, loadgen.commands; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "loadgen.drive.share" in loaded
    assert not {"pyarrow", "scipy", "rich", "httpx", "pydantic"} & set(loaded)
