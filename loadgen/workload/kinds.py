"""Kinds of use, in the words of a workload written by hand: single requests, conversations, RAG, agent loops.

Each kind says what its prompts are made of and how a session of it goes on; `sessions` draws many at once, as columns.
The text itself is made later: two parts of a prompt are the same text where `loadgen.workload.sessions` gives them the
same number. What is drawn depends on the generator alone; pools of system prompts and documents are the same in every
draw.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np
from scipy import optimize

from loadgen.workload.laws import Law
from loadgen.workload.sessions import Sessions
from loadgen.workload.traffic import Floats, Ints

_STEEPEST = 2.0
"""Exponent of popularity beyond which next to all requests would have the same few."""


_MOST_TURNS = 1000


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each check of a part names the field, its value and the remedy."""


Tokens = int | Law
"""A number of tokens, or the law that it is drawn from."""


class Turns(_Part, frozen=True, kw_only=True):
    """How many requests a session has: after each but the last possible one, it ends with the same probability."""

    mean: float
    most: int

    def __post_init__(self) -> None:
        if not 1 <= self.mean <= self.most:
            raise ValueError(f"mean is {self.mean:g}, most is {self.most}: need 1 <= mean <= most")
        if self.most > _MOST_TURNS:
            raise ValueError(f"most is {self.most}: at most {_MOST_TURNS}, since every prompt has all those before it")

    def draw(self, rng: np.random.Generator, count: int) -> Ints:
        # Of a session that goes on with probability q, min(turns, most) has the mean 1 + q + ... + q^(most - 1).
        powers = np.arange(self.most)
        going_on = optimize.brentq(lambda q: np.sum(q**powers) - self.mean, 0.0, 1.0)
        return 1 + np.searchsorted(1 - going_on ** powers[1:], rng.random(count), side="right")


class Pause(_Part, frozen=True, kw_only=True):
    """Seconds from one request of a session to its next, gamma distributed."""

    mean: float
    cv: float
    """Coefficient of variation: 0 is always the mean, 1 is exponential."""

    def __post_init__(self) -> None:
        _at_least_0("mean", self.mean)
        _at_least_0("cv", self.cv)

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        if self.cv == 0:
            return np.full(count, self.mean)
        return rng.gamma(self.cv**-2, self.mean * self.cv**2, count)


class SystemPrompts(_Part, frozen=True, kw_only=True):
    """Texts of which every prompt of a kind begins with one, the same throughout a session."""

    count: int
    tokens: Tokens
    zipf: float
    """The n-th is chosen in proportion to n^-zipf; 0: all are as popular."""

    def __post_init__(self) -> None:
        _check_pool(self.count, self.zipf)
        _check_tokens("tokens", self.tokens)


class Documents(_Part, frozen=True, kw_only=True):
    """Texts of which every prompt has some, all different, in the order in which they were found."""

    count: int
    tokens: Tokens
    zipf: float
    per_request: int

    def __post_init__(self) -> None:
        _check_pool(self.count, self.zipf)
        _check_tokens("tokens", self.tokens)
        if not 1 <= self.per_request <= self.count / 2:
            raise ValueError(
                f"per_request is {self.per_request} of {self.count} documents: at least 1, and at most half of them"
            )


class _Kind(_Part, frozen=True, kw_only=True, tag_field="kind"):
    """`share` is that of sessions, in proportion to the other kinds'."""

    share: float
    system_prompts: SystemPrompts | None
    output_tokens: Tokens

    alone: ClassVar[bool] = True
    """Each request is a session, so that none comes because of another one."""

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise ValueError(f"share is {self.share}: give a number above 0")
        for name in self.__struct_fields__:
            if name.endswith("_tokens"):
                _check_tokens(name, getattr(self, name))

    def known_tokens(self) -> Ints:
        """Lengths of the texts that prompts choose from: always the same, so that all repeats find the same texts."""
        system = self.system_prompts
        return np.empty(0, dtype=np.int64) if system is None else _pool(system.count, system.tokens)

    def _system(self, rng: np.random.Generator, count: int) -> list[Ints]:
        system = self.system_prompts
        return [] if system is None else [_popular(rng, system.count, system.zipf, count)]


class Single(_Kind, frozen=True, kw_only=True, tag="single"):
    """A request of its own."""

    prompt_tokens: Tokens
    """Without the system prompt."""

    def sessions(self, rng: np.random.Generator, count: int) -> Sessions:
        """So many requests."""
        chosen, own = rng.spawn(2)
        prompt, output = _drawn(own, self.prompt_tokens, count), _drawn(own, self.output_tokens, count)
        return Sessions.of_single_requests(self._system(chosen, count), prompt, output)


class Rag(_Kind, frozen=True, kw_only=True, tag="rag"):
    """A question behind the documents that were found for it."""

    documents: Documents
    question_tokens: Tokens

    def known_tokens(self) -> Ints:
        return np.concatenate((super().known_tokens(), _pool(self.documents.count, self.documents.tokens)))

    def sessions(self, rng: np.random.Generator, count: int) -> Sessions:
        """So many questions."""
        chosen, found, own = rng.spawn(3)
        question, output = _drawn(own, self.question_tokens, count), _drawn(own, self.output_tokens, count)
        after = 0 if self.system_prompts is None else self.system_prompts.count
        documents = [after + column for column in _found(found, self.documents, count)]
        return Sessions.of_single_requests([*self._system(chosen, count), *documents], question, output)


class _Growth(NamedTuple):
    """What makes a session of several requests grow."""

    turns: Turns
    pause: Pause
    first_tokens: Tokens
    later_tokens: Tokens


class _Growing(_Kind, frozen=True, kw_only=True):
    """A session whose every request repeats the one before, with its answer and something new behind."""

    alone: ClassVar[bool] = False

    def _grown(self, growth: _Growth, rng: np.random.Generator, count: int) -> Sessions:
        chosen, how_many, when, own = rng.spawn(4)
        turns = growth.turns.draw(how_many, count)
        requests = int(turns.sum())
        output = _drawn(own, self.output_tokens, requests)
        added = _drawn(own, growth.later_tokens, requests)
        firsts = np.cumsum(turns) - turns
        added[1:] += output[:-1]
        added[firsts] = _drawn(own, growth.first_tokens, count)
        pauses = growth.pause.draw(when, requests)
        pauses[firsts] = 0
        return Sessions(
            turns=turns, since_s=pauses, chosen=self._system(chosen, count), added_tokens=added, output_tokens=output
        )


class Conversation(_Growing, frozen=True, kw_only=True, tag="conversation"):
    """A person who reads the answer, thinks and asks again; every prompt has all that was said before."""

    turns: Turns
    think_s: Pause
    """From one question to the next, the answer's time included."""
    user_tokens: Tokens

    def sessions(self, rng: np.random.Generator, count: int) -> Sessions:
        """So many conversations."""
        return self._grown(_Growth(self.turns, self.think_s, self.user_tokens, self.user_tokens), rng, count)


class Agent(_Growing, frozen=True, kw_only=True, tag="agent"):
    """A model that calls tools in a loop; every prompt has the task and all steps before, with what the tools said."""

    steps: Turns
    tool_s: Pause
    """From one call of the model to the next, the answer's time included."""
    task_tokens: Tokens
    tool_output_tokens: Tokens

    def sessions(self, rng: np.random.Generator, count: int) -> Sessions:
        """So many tasks."""
        return self._grown(_Growth(self.steps, self.tool_s, self.task_tokens, self.tool_output_tokens), rng, count)


Kind = Single | Conversation | Rag | Agent


def _drawn(rng: np.random.Generator, tokens: Tokens, count: int) -> Ints:
    uniforms = rng.random(count)
    return np.full(count, tokens, dtype=np.int64) if isinstance(tokens, int) else tokens.draw(uniforms)


def _pool(count: int, tokens: Tokens) -> Ints:
    return _drawn(np.random.default_rng(0), tokens, count)


def _popular(rng: np.random.Generator, count: int, zipf: float, draws: int) -> Ints:
    """Numbers below `count`, the n-th in proportion to n^-zipf."""
    ends = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -zipf)
    found: Ints = np.searchsorted(ends, rng.random(draws) * ends[-1], side="right").clip(max=count - 1)
    return found


def _found(rng: np.random.Generator, documents: Documents, draws: int) -> list[Ints]:
    """For each rank, the document of every request: drawn one after another, without those it has already."""
    found: list[Ints] = []
    for _ in range(documents.per_request):
        column, left = np.empty(draws, dtype=np.int64), np.arange(draws)
        while len(left):
            column[left] = _popular(rng, documents.count, documents.zipf, len(left))
            known = np.zeros(len(left), dtype=np.bool_)
            for other in found:
                known |= column[left] == other[left]
            left = left[known]
        found.append(column)
    return found


def _check_pool(count: int, zipf: float) -> None:
    if count < 1:
        raise ValueError(f"count is {count}: give at least 1")
    if not 0 <= zipf <= _STEEPEST:
        raise ValueError(f"zipf is {zipf}: give an exponent from 0, where all are as popular, to {_STEEPEST:g}")


def _check_tokens(name: str, tokens: Tokens) -> None:
    if isinstance(tokens, int) and tokens < 1:
        raise ValueError(f"{name} is {tokens}: give at least 1, or a law")


def _at_least_0(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value}: give a number of at least 0")
