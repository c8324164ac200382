"""Continuous batching without I/O: requests in, steps out, each step with its duration.

It hides queues, the token budget, chunked prefill, KV room and preemption. It never sleeps, reads a clock
or knows HTTP: `now` and the random source are arguments, so a server drives it in real time and a
simulation as fast as it can. Modelled on vLLM's v1/core/sched/scheduler.py and SGLang's
managers/scheduler.py; where they differ, `Limits` says so as data.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Generic

from simulator.cache import KvCache, LeaseT
from simulator.profile import Profile, StepLoad
from simulator.reserve import OutputReserve
from simulator.steps import Admitted, Emitted, Finished, Limits, Request, Snapshot, StepResult


@dataclass(slots=True, kw_only=True)
class _Sequence(Generic[LeaseT]):
    request: Request
    arrived_s: float
    last_token_s: float
    lease: LeaseT | None = None
    computed: int = 0
    """Tokens whose KV exists."""
    produced: int = 0
    step_tokens: int = 0
    """Tokens that the step in progress computes."""
    decoding: bool = False
    preemptions: int = 0
    cached_tokens: int | None = None
    admitted_s: float = 0.0
    first_token_s: float = 0.0

    @property
    def known(self) -> int:
        """Tokens that exist, prompt and output: the next step must have computed them all to emit."""
        return len(self.request.prompt) + self.produced

    @property
    def remaining(self) -> int:
        """Tokens the client still allows."""
        return self.request.max_tokens - self.produced

    def tokens(self, length: int) -> Sequence[int]:
        prompt = self.request.prompt
        if length <= len(prompt):
            return prompt[:length]
        return prompt + self.request.output[: length - len(prompt)]


@dataclass(slots=True)
class _Load:
    new_tokens: int = 0
    attended_pairs: int = 0
    kv_tokens: int = 0

    def add(self, new_tokens: int, earlier_tokens: int) -> None:
        self.new_tokens += new_tokens
        self.attended_pairs += new_tokens * earlier_tokens + new_tokens * (new_tokens + 1) // 2
        self.kv_tokens += earlier_tokens + new_tokens


@dataclass(slots=True)
class _Plan:
    """The step being put together."""

    budget: int
    load: _Load = field(default_factory=_Load)
    admitted: list[Admitted] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)


class Engine(Generic[LeaseT]):
    """One engine. Call `step` when the step it announced is over, and after `add` when it was idle.

    Tokens of a step exist when it ends: `step(now)` first hands out what the step that ended produced,
    then begins the next. A preempted request goes to the head of the queue, keeps what it produced, and
    computes its KV again when it is readmitted.
    """

    def __init__(self, profile: Profile, cache: KvCache[LeaseT], limits: Limits, rng: Random) -> None:
        capacity_tokens = cache.usage().capacity_tokens
        if limits.max_model_tokens > capacity_tokens:
            raise ValueError(
                f"max_model_tokens={limits.max_model_tokens} exceeds the KV capacity of {capacity_tokens} "
                "tokens: one request could never finish; lower it or give the cache more memory"
            )
        self._profile = profile
        self._cache = cache
        self._limits = limits
        self._rng = rng
        self._waiting: OrderedDict[str, _Sequence[LeaseT]] = OrderedDict()
        self._running: dict[str, _Sequence[LeaseT]] = {}
        self._reserve = OutputReserve()

    def has_room(self, count: int) -> bool:
        """Whether the queue takes `count` more requests."""
        if self._limits.max_queued is None:
            return True
        queued = len(self._waiting) + (len(self._running) if self._limits.queued_counts_running else 0)
        return queued + count <= self._limits.max_queued

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises ValueError for one that can never run or an id that is in use."""
        limit = self._limits.max_model_tokens
        if not request.prompt or len(request.prompt) + request.max_tokens > limit:
            raise ValueError(
                f"{request.request_id}: a prompt of {len(request.prompt)} and an output of up to "
                f"{request.max_tokens} tokens do not fit 1..{limit}"
            )
        if request.request_id in self:
            raise ValueError(f"{request.request_id}: already in the engine")
        self._waiting[request.request_id] = _Sequence(request=request, arrived_s=now, last_token_s=now)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting or request_id in self._running

    def abort(self, request_id: str) -> bool:
        """Drop a request, queued or running, at once; False when it is not here (any more)."""
        if self._waiting.pop(request_id, None) is not None:
            return True
        sequence = self._running.pop(request_id, None)
        if sequence is None:
            return False
        self._release(sequence)
        return True

    def step(self, now: float) -> StepResult:
        """End the step in progress and begin the next."""
        emitted: list[Emitted] = []
        finished: list[Finished] = []
        for sequence in list(self._running.values()):
            self._settle(sequence, now, emitted, finished)
        plan = _Plan(budget=self._limits.max_step_tokens)
        if self._limits.prefill_first:
            self._plan_prefill_or_decode(plan, now)
        else:
            self._plan_mixed(plan, now)
        return StepResult(
            emitted=emitted,
            finished=finished,
            admitted=plan.admitted,
            preempted=plan.preempted,
            new_tokens=plan.load.new_tokens,
            duration_s=self._duration_s(plan.load),
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(
            running=len(self._running),
            waiting=len(self._waiting),
            kv=self._cache.usage(),
        )

    def reset_cache(self) -> bool:
        """Forget cached prefixes; False while any request holds memory."""
        return self._cache.reset()

    def _duration_s(self, load: _Load) -> float | None:
        if not load.new_tokens:
            return None
        work = StepLoad(load.new_tokens, load.attended_pairs, load.kv_tokens)
        return self._profile.step_time_s(work) * self._profile.noise(self._rng)

    def _settle(
        self, sequence: _Sequence[LeaseT], now: float, emitted: list[Emitted], finished: list[Finished]
    ) -> None:
        """Account for what the ended step computed of one sequence."""
        if not sequence.step_tokens:
            return
        sequence.computed += sequence.step_tokens
        sequence.step_tokens = 0
        if not sequence.decoding:
            assert sequence.lease is not None
            self._cache.publish(sequence.lease, sequence.tokens(sequence.computed))
        if sequence.computed < sequence.known:
            return
        sequence.decoding = True
        request = sequence.request
        if sequence.produced < len(request.output):
            if sequence.produced == 0:
                sequence.first_token_s = now
            emitted.append(Emitted(request.request_id, sequence.produced, now - sequence.last_token_s))
            sequence.produced += 1
            sequence.last_token_s = now
        if sequence.produced == len(request.output):
            del self._running[request.request_id]
            self._release(sequence)
            finished.append(_finished(sequence, now))

    def _plan_mixed(self, plan: _Plan, now: float) -> None:
        """vLLM: running sequences first, in order, then as many waiting ones as the budget allows."""
        self._make_room(plan)
        for sequence in self._running.values():
            self._schedule(sequence, plan)
        if not plan.preempted:
            self._admit(plan, now)

    def _plan_prefill_or_decode(self, plan: _Plan, now: float) -> None:
        """SGLang: a prefill step as long as there is a prompt to compute, else every sequence decodes."""
        for sequence in self._running.values():
            if not sequence.decoding:
                self._schedule(sequence, plan)
        self._admit(plan, now)
        if plan.load.new_tokens:
            return
        self._make_room(plan)
        plan.budget = len(self._running)
        for sequence in self._running.values():
            self._schedule(sequence, plan)
        self._correct_reserve(plan)

    def _schedule(self, sequence: _Sequence[LeaseT], plan: _Plan) -> None:
        new_tokens = sequence.step_tokens = min(sequence.known - sequence.computed, plan.budget)
        plan.budget -= new_tokens
        plan.load.add(new_tokens, sequence.computed)

    def _make_room(self, plan: _Plan) -> None:
        """Room for all known tokens of every running sequence, at the cost of those that must go.

        It ends: a sequence alone always fits, because no request is longer than the cache.
        """
        for request_id, sequence in list(self._running.items()):
            while request_id in self._running:
                assert sequence.lease is not None
                if self._cache.grow(sequence.lease, sequence.known):
                    break
                self._preempt(self._victim(), plan)

    def _correct_reserve(self, plan: _Plan) -> None:
        if not plan.preempted:
            self._reserve.decoded()
            return
        running = self._running.values()
        produced = sum(sequence.produced for sequence in running)
        allowed = sum(sequence.request.max_tokens for sequence in running)
        self._reserve.retracted(len(running), produced, allowed)

    def _victim(self) -> _Sequence[LeaseT]:
        if self._limits.victim == "latest":
            return next(reversed(self._running.values()))
        return min(reversed(self._running.values()), key=lambda sequence: sequence.produced)

    def _preempt(self, victim: _Sequence[LeaseT], plan: _Plan) -> None:
        request_id = victim.request.request_id
        del self._running[request_id]
        self._release(victim)
        victim.computed = victim.step_tokens = 0
        victim.decoding = False
        victim.preemptions += 1
        self._waiting[request_id] = victim
        self._waiting.move_to_end(request_id, last=False)
        plan.preempted.append(request_id)

    def _admit(self, plan: _Plan, now: float) -> None:
        """Start waiting requests in order of arrival while budget, places and memory last."""
        while self._waiting and plan.budget and len(self._running) < self._limits.max_running:
            request_id, sequence = next(iter(self._waiting.items()))
            lease = self._cache.admit(sequence.tokens(sequence.known), self._spare_tokens(sequence))
            if lease is None:
                return
            del self._waiting[request_id]
            self._running[request_id] = sequence
            sequence.lease = lease
            sequence.computed = lease.cached_tokens
            if sequence.cached_tokens is None:
                sequence.cached_tokens = lease.cached_tokens
                sequence.admitted_s = now
            plan.admitted.append(Admitted(request_id, sequence.known, lease.cached_tokens, sequence.preemptions > 0))
            self._schedule(sequence, plan)

    def _spare_tokens(self, candidate: _Sequence[LeaseT]) -> int:
        """Memory that admitting `candidate` has to leave for output to come; none when it would run alone."""
        if not self._limits.reserves_output or not self._running:
            return 0
        others = (sequence.remaining for sequence in self._running.values())
        return self._reserve.tokens(others, candidate.remaining)

    def _release(self, sequence: _Sequence[LeaseT]) -> None:
        assert sequence.lease is not None
        self._cache.release(sequence.lease, sequence.tokens(sequence.computed))
        sequence.lease = None


def _finished(sequence: _Sequence[LeaseT], now: float) -> Finished:
    request = sequence.request
    return Finished(
        request_id=request.request_id,
        reason=request.finish_reason,
        prompt_tokens=len(request.prompt),
        cached_tokens=sequence.cached_tokens or 0,
        output_tokens=sequence.produced,
        preemptions=sequence.preemptions,
        arrived_s=sequence.arrived_s,
        admitted_s=sequence.admitted_s,
        first_token_s=sequence.first_token_s if sequence.produced else now,
        finished_s=now,
    )
