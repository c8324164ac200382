"""Prompts of exact length and with nothing in common but what is planned, seen from the engine's side."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from loadgen import record
from loadgen.plan.schedule import Schedule
from loadgen.plan.schedule_file import read_schedule
from loadgen.workload.prompts import WORDS
from loadgen.workload.vocabulary import read_book
from protocol.records import RequestRecord
from simulator.tokens import pieces
from tests.integration.conftest import weir
from tests.simulator.conftest import Running, started

KINDS = {"vllm": "--enable-prompt-tokens-details", "sglang": "--enable-cache-report"}


@pytest.fixture(scope="module", params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    # Pages of 16 tokens: what a chat template puts before every prompt is shorter and is cached by neither.
    with started(request.param, KINDS[request.param], "--page-size", "16") as running:
        yield running


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json that cuts a text as the stand-in engines do: words with their space, eight letters at most."""
    words = sorted({piece for word in (*read_book(), *WORDS) for piece in pieces(f" {word}")})
    vocabulary = {piece: number for number, piece in enumerate(["?", *words])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s?\S{1,8}|\s"), "isolated")
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


UNSHARED = ("--lengths", "20-400:3", "--arrivals", "constant:rate=100", "--duration", "0.2")
"""Some twenty requests."""


def sent(engine: Running, directory: Path, *arguments: str, traffic: Sequence[str] = UNSHARED) -> list[RequestRecord]:
    """The records of a run; each test has seeds of its own, so that the engine never knows its text before."""
    run = weir("run", "--url", engine.url, "--model", "tiny", "--out", str(directory), *traffic, *arguments)
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    records = list(record.read_requests(directory))
    assert {request.outcome for request in records} == {"ok"}
    return records


@pytest.mark.parametrize(("made_of", "seed"), [("words", "1"), ("tokenizer", "2"), ("tokenize", "3"), ("ids", "4")])
def test_prompts_have_exactly_the_tokens_that_were_planned(
    engine: Running, tmp_path: Path, made_of: str, seed: str, tokenizer: Path
) -> None:
    """By what the engine says of its own count, and of text as of ids."""
    arguments = {
        "words": [],
        "tokenizer": ["--tokenizer", str(tokenizer)],
        "tokenize": ["--tokenize", engine.url],
        "ids": ["--tokenize", engine.url, "--token-ids"],
    }[made_of]
    records = sent(engine, tmp_path / "run", "--seed", seed, *arguments)
    assert [request.prompt_tokens for request in records] == [request.prompt_tokens_planned for request in records]
    assert [request.output_tokens for request in records] == [3] * len(records)
    template_tokens = record.read_manifest(tmp_path / "run").template_tokens
    assert (template_tokens == 0) == (made_of == "ids")
    assert sum(request.cached_tokens or 0 for request in records) == 0
    content = {chunks.index: sum(chunks.content_events) for chunks in record.read_chunks(tmp_path / "run")}
    for request in records:
        assert 1 <= content[request.index] <= 3
        assert request.sent_ns is not None
        assert request.first_token_ns is not None
        assert request.last_token_ns is not None
        assert request.sent_ns < request.first_token_ns <= request.last_token_ns
        assert request.first_answer_ns == request.first_token_ns
        assert request.finish_reason == "length"


CONVERSATIONS = """
schema: weir.workload/2
name: talk
arrivals:
  duration_s: 2
  rates: [{start_s: 0, per_s: 20}]
  residual: {process: gamma, cv: 1}
  fit: null
kinds:
- kind: conversation
  share: 1
  system_prompts: {count: 2, tokens: 200, zipf: 0}
  turns: {mean: 4, most: 6}
  think_s: {mean: 0.3, cv: 0}
  user_tokens: 90
  output_tokens: 3
"""


@pytest.mark.parametrize(("made_of", "seed"), [([], "5"), (["--token-ids"], "6")], ids=["text", "ids"])
def test_engines_find_what_conversations_share(engine: Running, tmp_path: Path, made_of: list[str], seed: str) -> None:
    path = tmp_path / "talk.yaml"
    path.write_text(CONVERSATIONS)
    talk = ["--workload", str(path), "--duration", "2", "--seed", seed]
    records = sent(engine, tmp_path / "run", "--tokenize", engine.url, *made_of, traffic=talk)
    planned = int(shared_tokens(read_schedule(tmp_path / "run" / record.SCHEDULE)))
    found = sum(request.cached_tokens or 0 for request in records)
    assert planned > 5000
    # Caches keep whole pages of 16 tokens, and the template takes some of what would be the next prompt's beginning.
    assert planned - 35 * len(records) < found < planned + 16 * len(records)


def shared_tokens(schedule: Schedule) -> int:
    """Prompt tokens of which the same text came before at the same place."""
    seen, shared = set[tuple[tuple[int, int], ...]](), 0
    for request in schedule:
        for place, (_, tokens) in enumerate(request.segments):
            begin = request.segments[: place + 1]
            shared += tokens if begin in seen else 0
            seen.add(begin)
    return shared


def test_a_warm_up_leaves_nothing_in_the_cache_that_the_run_could_use(engine: Running, tmp_path: Path) -> None:
    first = sent(engine, tmp_path / "first", "--warm-up", "12", "--seed", "7")
    assert record.read_manifest(tmp_path / "first").warm_up == {"ok": 12}
    assert [request.cached_tokens or 0 for request in first] == [0] * len(first)
    again = sent(engine, tmp_path / "again", "--warm-up", "12", "--seed", "7")
    assert [request.cached_tokens or 0 for request in record.read_warm_up(tmp_path / "again")] == [0] * 12
    # The same schedule's text is known by now.
    assert sum(request.cached_tokens or 0 for request in again) > 0.8 * sum(
        request.prompt_tokens or 0 for request in again
    )
