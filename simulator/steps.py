"""What goes into an engine and what comes out of it: limits, requests, and the events of a step.

Values only. Times are those the caller passed as `now`, in seconds on whatever clock it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from simulator.cache import CacheUsage

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine allows, and the scheduling choices in which the kinds differ."""

    max_model_tokens: int
    """Prompt and output of one request together."""
    max_running: int
    max_step_tokens: int
    """Tokens computed in one step (vLLM) or in one prefill step (SGLang)."""
    max_queued: int | None = None
    queued_counts_running: bool = True
    """vLLM's cap counts waiting and running requests, SGLang's only waiting ones."""
    prefill_first: bool = False
    """SGLang: a step either prefills or decodes, prefill first. vLLM: one step mixes both."""
    victim: Literal["latest", "least_output"] = "latest"
    """Who gives up its KV when there is no room: vLLM the latest admitted, SGLang the least produced."""
    reserves_output: bool = False
    """SGLang admits only what leaves room for the output it expects (`simulator/reserve.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sequence: what it reads and, decided beforehand, every token it will produce."""

    request_id: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    finish_reason: FinishReason
    max_tokens: int
    """What the client allowed; the output may be shorter. All the engine knows in advance."""


class Admitted(NamedTuple):
    """A request begins to run in the new step."""

    request_id: str
    known_tokens: int
    """Prompt, and what it had produced before a preemption."""
    cached_tokens: int
    resumed: bool
    """It ran before and was preempted."""


class Emitted(NamedTuple):
    """A request's next token exists now."""

    request_id: str
    position: int
    """Of the token in the output, from 0."""
    since_s: float
    """Since the token before it, or since arrival for the first."""


class Finished(NamedTuple):
    """A request has all its tokens and its memory is given back."""

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    """Found in the cache at first admission."""
    output_tokens: int
    preemptions: int
    arrived_s: float
    admitted_s: float
    first_token_s: float
    """When the first token existed; equal to `finished_s` for an output of none."""
    finished_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What the step that ended `now` produced, and what the step that begins `now` will do."""

    emitted: list[Emitted]
    finished: list[Finished]
    admitted: list[Admitted]
    preempted: list[str]
    new_tokens: int
    """Tokens the new step computes; 0 without one."""
    duration_s: float | None
    """Of the new step; None when there is nothing to do until the next `add`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """State of an engine between two calls."""

    running: int
    waiting: int
    kv: CacheUsage
