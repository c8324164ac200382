"""What answers say: length, determinism, stop strings."""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean, median

from hypothesis import given
from hypothesis import strategies as st

from simulator.intake import Generation
from simulator.tokens import encode, pieces
from simulator.writing import MEAN_TOKENS, MEDIAN_TOKENS, write

PLAIN = Generation(
    chat=True,
    model="m",
    request_id=None,
    prompts=((1, 2, 3), (4, 5)),
    n=2,
    max_tokens=(40, 30),
    min_tokens=0,
    ignore_eos=True,
    stop=(),
    seed=None,
    stream=False,
    include_usage=False,
    continuous_usage=False,
)


def test_ignore_eos_fills_max_tokens_with_one_word_a_token() -> None:
    draft = write(PLAIN, "r", 0, 0)
    assert (len(draft.texts), draft.request.finish_reason, draft.stop) == (40, "length", None)
    assert pieces("".join(draft.texts)) == list(draft.texts)
    assert draft.request.output == tuple(encode("".join(draft.texts)))
    assert (draft.request.prompt, draft.request.max_tokens) == ((1, 2, 3), 40)


def test_choices_of_a_prompt_follow_each_other() -> None:
    drafts = [write(PLAIN, f"r{choice}", choice, 0) for choice in range(4)]
    assert [draft.request.prompt for draft in drafts] == [(1, 2, 3), (1, 2, 3), (4, 5), (4, 5)]
    assert [len(draft.texts) for draft in drafts] == [40, 40, 30, 30]
    assert len({draft.texts for draft in drafts}) == 4


def test_the_same_request_gets_the_same_answer_and_only_it() -> None:
    first = write(PLAIN, "a", 0, 0).texts
    assert write(replace(PLAIN, stream=True), "b", 0, 0).texts == first
    assert write(PLAIN, "a", 0, 1).texts != first
    assert write(replace(PLAIN, seed=1), "a", 0, 0).texts != first
    assert write(replace(PLAIN, prompts=((1, 2, 4),)), "a", 0, 0).texts != first


def test_natural_lengths_have_the_stated_median_and_mean() -> None:
    free = replace(PLAIN, ignore_eos=False, max_tokens=(100_000,), n=1)
    lengths = [len(write(replace(free, seed=seed), "r", 0, 0).texts) for seed in range(2000)]
    assert abs(median(lengths) / MEDIAN_TOKENS - 1) < 0.1
    assert abs(fmean(lengths) / MEAN_TOKENS - 1) < 0.1


@given(st.integers(0, 500), st.integers(0, 1000), st.integers(0, 1000))
def test_lengths_obey_their_bounds(seed: int, least: int, more: int) -> None:
    free = replace(PLAIN, ignore_eos=False, seed=seed, min_tokens=least, max_tokens=(least + more,), n=1)
    draft = write(free, "r", 0, 0)
    assert least <= len(draft.texts) <= least + more
    assert draft.request.finish_reason == ("length" if len(draft.texts) == least + more else "stop") or (
        draft.request.finish_reason == "stop" and least == len(draft.texts)
    )


@given(st.integers(0, 200), st.integers(0, 150), st.integers(1, 12), st.integers(0, 40))
def test_a_stop_string_ends_the_text_before_it(seed: int, start: int, size: int, least: int) -> None:
    whole = write(replace(PLAIN, seed=seed), "r", 0, 0)
    text = "".join(whole.texts)
    stop = text[start : start + size]
    draft = write(replace(PLAIN, seed=seed, stop=("nowhere!", stop), min_tokens=least), "r", 0, 0)
    hidden_until = len("".join(whole.texts[:least]))
    at = text.find(stop, hidden_until)
    assert "".join(draft.texts) == (text if at < 0 else text[:at])
    if at >= 0:
        assert (draft.stop, draft.request.finish_reason) == (stop, "stop")
        assert len("".join(whole.texts[: len(draft.texts)])) >= at + len(stop)
        assert len(draft.request.output) == len(draft.texts) >= least
