from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.kinds import Agent, Conversation, Documents, Pause, Rag, Single, SystemPrompts, Turns
from loadgen.workload.laws import Gamma

SYSTEM = SystemPrompts(count=3, tokens=100, zipf=0)


def rng(seed=1):
    return np.random.default_rng(seed)


@given(st.integers(1, 40), st.floats(0, 1), st.integers(0, 1000))
def test_sessions_are_as_long_in_the_mean_as_is_said(most, part, seed):
    mean = 1 + part * (most - 1)
    turns = Turns(mean=mean, most=most).draw(rng(seed), 4000)
    assert 1 <= turns.min() <= turns.max() <= most
    assert turns.mean() == pytest.approx(mean, abs=0.04 * most), "within five deviations"


def test_every_further_turn_is_as_likely_as_the_one_before():
    turns = Counter(Turns(mean=4, most=1000).draw(rng(), 200_000).tolist())
    going_on = [1 - turns[k] / sum(count for n, count in turns.items() if n >= k) for k in (1, 2, 5)]
    assert going_on == pytest.approx([0.75] * 3, abs=0.01)


@pytest.mark.parametrize(("mean", "cv"), [(20.0, 1.0), (3.0, 0.5), (7.0, 0.0), (0.0, 1.0)])
def test_pauses_have_the_mean_and_the_spread_that_is_said(mean, cv):
    pauses = Pause(mean=mean, cv=cv).draw(rng(), 50_000)
    assert pauses.mean() == pytest.approx(mean, rel=0.02)
    assert pauses.std() == pytest.approx(mean * cv, rel=0.03)
    assert pauses.min() >= 0


@pytest.mark.parametrize("zipf", [0.0, 0.8, 1.5])
def test_system_prompts_are_as_popular_as_is_said(zipf):
    kind = Single(
        share=1, system_prompts=SystemPrompts(count=5, tokens=9, zipf=zipf), prompt_tokens=10, output_tokens=2
    )
    (chosen,) = kind.sessions(rng(), 50_000).chosen
    weights = np.arange(1, 6) ** -zipf
    assert np.bincount(chosen) / 50_000 == pytest.approx(weights / weights.sum(), abs=0.01)
    assert kind.known_tokens().tolist() == [9] * 5


def test_a_single_request_has_a_system_prompt_and_text_of_its_own():
    kind = Single(share=1, system_prompts=None, prompt_tokens=10, output_tokens=2)
    drawn = kind.sessions(rng(), 4)
    assert (drawn.chosen, drawn.turns.tolist(), drawn.added_tokens.tolist()) == ([], [1] * 4, [10] * 4)
    assert kind.known_tokens().tolist() == []


def rag(**changes):
    documents = Documents(**({"count": 50, "tokens": 30, "zipf": 1.0, "per_request": 3} | changes))
    return Rag(share=1, system_prompts=SYSTEM, documents=documents, question_tokens=7, output_tokens=2)


def test_a_question_has_different_documents_and_the_popular_ones_most_often():
    drawn = rag().sessions(rng(), 20_000)
    system, *documents = drawn.chosen
    assert set(system.tolist()) == {0, 1, 2}
    found = np.array(documents)
    assert found.min() == 3, "documents are numbered behind the system prompts"
    assert all(len(set(row)) == 3 for row in found.T.tolist())
    weights = np.arange(1, 51) ** -1.0
    assert np.bincount(found[0] - 3) / 20_000 == pytest.approx(weights / weights.sum(), abs=0.015)
    assert set(drawn.added_tokens.tolist()) == {7}


def test_documents_are_drawn_as_by_taking_one_away_after_another():
    """Of 4 documents of weights 1, 1/2, 1/3, 1/4 the second rank has the first one with its known probability."""
    found = np.array(rag(count=4, per_request=2).sessions(rng(), 100_000).chosen[1:]) - 3
    weights = 1 / np.arange(1, 5)
    weights /= weights.sum()
    second = sum(weights[k] * weights[0] / (1 - weights[k]) for k in range(1, 4))
    assert np.mean(found[1] == 0) == pytest.approx(second, abs=0.006)


def test_known_texts_are_the_same_in_every_draw():
    kind = rag(tokens=Gamma(shape=2.0, scale=100.0, min_tokens=10, max_tokens=900))
    assert kind.known_tokens().tolist() == kind.known_tokens().tolist()
    assert kind.known_tokens()[:3].tolist() == [100] * 3
    assert len(set(kind.known_tokens()[3:].tolist())) > 30


def conversation(**changes):
    values = {
        "share": 1,
        "system_prompts": SYSTEM,
        "turns": Turns(mean=3, most=8),
        "think_s": Pause(mean=10, cv=1),
        "user_tokens": 20,
        "output_tokens": 50,
    }
    return Conversation(**(values | changes))


def test_a_conversation_grows_by_the_answer_and_the_next_question():
    drawn = conversation().sessions(rng(), 5000)
    firsts = np.cumsum(drawn.turns) - drawn.turns
    later = np.setdiff1d(np.arange(len(drawn.added_tokens)), firsts)
    assert set(drawn.added_tokens[firsts].tolist()) == {20}
    assert set(drawn.added_tokens[later].tolist()) == {70}
    assert set(drawn.since_s[firsts].tolist()) == {0}
    assert drawn.since_s[later].mean() == pytest.approx(10, rel=0.05)
    assert len(drawn.output_tokens) == drawn.turns.sum()


def test_an_agent_grows_by_its_own_words_and_what_tools_say():
    kind = Agent(
        share=1,
        system_prompts=None,
        steps=Turns(mean=5, most=5),
        tool_s=Pause(mean=2, cv=0),
        task_tokens=300,
        tool_output_tokens=1000,
        output_tokens=40,
    )
    drawn = kind.sessions(rng(), 3)
    assert drawn.added_tokens.tolist() == [300, 1040, 1040, 1040, 1040] * 3
    assert drawn.since_s.tolist() == [0, 2, 2, 2, 2] * 3


def test_no_session_is_no_request():
    assert len(conversation().sessions(rng(), 0).added_tokens) == 0


def test_equal_generators_give_equal_sessions():
    one, other = (conversation().sessions(rng(7), 100) for _ in range(2))
    assert one.since_s.tolist() == other.since_s.tolist()
    assert one.turns.tolist() == other.turns.tolist()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Turns(mean=0.5, most=3), "mean is 0.5, most is 3: need 1 <= mean <= most"),
        (lambda: Turns(mean=4, most=3), "mean is 4, most is 3"),
        (lambda: Turns(mean=4, most=1001), "most is 1001: at most 1000"),
        (lambda: Pause(mean=-1, cv=1), "mean is -1: give a number of at least 0"),
        (lambda: Pause(mean=1, cv=float("nan")), "cv is nan"),
        (lambda: SystemPrompts(count=0, tokens=5, zipf=0), "count is 0: give at least 1"),
        (lambda: SystemPrompts(count=5, tokens=0, zipf=0), "tokens is 0: give at least 1, or a law"),
        (lambda: SystemPrompts(count=5, tokens=5, zipf=3), "zipf is 3: give an exponent from 0"),
        (lambda: rag(per_request=26), "per_request is 26 of 50 documents: at least 1, and at most half of them"),
        (lambda: rag(per_request=0), "per_request is 0 of 50"),
        (lambda: conversation(share=0), "share is 0: give a number above 0"),
        (lambda: conversation(user_tokens=0), "user_tokens is 0: give at least 1, or a law"),
        (lambda: conversation(output_tokens=-3), "output_tokens is -3"),
    ],
)
def test_what_makes_no_sense_is_named(make, why):
    with pytest.raises(ValueError, match=f"^{why}"):
        make()
