"""Runs an engine in real time and carries its tokens to the requests that wait for them.

It hides the step loop. Steps follow an absolute schedule on the monotonic clock: the end of one is the
start of the next, whatever the loop's own delays, so speed does not drift. An idle engine costs nothing.
There is no queue of tokens: what a request will say is known, so a slow reader costs two integers and gets
several tokens in one chunk, as with the real engines.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from simulator.answer import EndReason
from simulator.model import Engine
from simulator.steps import Admitted, Finished, Request, StepResult
from simulator.writing import Draft
from timing.alarm import Alarm


class Progress:
    """One choice on its way: `produced` tokens exist, `sent` of them were given to the client."""

    __slots__ = ("cached_tokens", "closed", "draft", "end", "index", "job", "opened", "produced", "sent")

    def __init__(self, job: Job, index: int, draft: Draft) -> None:
        self.job = job
        self.index = index
        self.draft = draft
        self.produced = 0
        self.sent = 0
        self.cached_tokens = 0
        self.end: EndReason | None = None
        self.opened = False
        self.closed = False

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self.draft.stop if self.end == "stop" else None

    def take(self) -> str:
        """Text of all tokens not sent yet."""
        start, self.sent = self.sent, self.produced
        return "".join(self.draft.texts[start : self.produced])


class Job:
    """One HTTP request's choices. Its handler waits for `news`; `wake_every` tokens, or an end, are news."""

    def __init__(self, drafts: Sequence[Draft], *, streaming: bool, wake_every: int) -> None:
        self.choices = [Progress(self, index, draft) for index, draft in enumerate(drafts)]
        self.streaming = streaming
        self.client_gone = False
        self.launched_s = 0.0
        self._wake_every = wake_every
        self._wake = asyncio.Event()

    @property
    def over(self) -> bool:
        return all(choice.end is not None for choice in self.choices)

    @property
    def produced(self) -> int:
        return sum(choice.produced for choice in self.choices)

    async def news(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def token(self, choice: Progress) -> None:
        choice.produced += 1
        if choice.produced % self._wake_every == 0:
            self._wake.set()

    def ended(self, choice: Progress, reason: EndReason) -> None:
        choice.end = reason
        self._wake.set()


class Meters(Protocol):
    """Who is told what happens; see `metrics_vllm` and `metrics_sglang`."""

    def admitted(self, event: Admitted) -> None: ...
    def first_token(self, streaming: bool, since_arrival_s: float) -> None: ...
    def next_token(self, since_previous_s: float) -> None: ...
    def finished(self, event: Finished, request: Request, streaming: bool) -> None: ...
    def aborted(self, streaming: bool, since_arrival_s: float) -> None: ...
    def refused(self) -> None: ...
    def stepped(self, result: StepResult, now: float) -> None: ...
    def render(self) -> bytes: ...


class StepLoop:
    """Drives one engine and keeps the jobs it works on."""

    def __init__(self, engine: Engine[Any], meters: Meters) -> None:
        self.engine = engine
        self._meters = meters
        self._choices: dict[str, Progress] = {}
        self._work = asyncio.Event()
        self.steps = 0
        self._due_s = math.inf
        """End of the step in progress. Arrivals are never later than it, even when this loop is."""

    @property
    def idle(self) -> bool:
        return not self._choices

    def launch(self, job: Job) -> None:
        """Queue all choices of a job."""
        now = job.launched_s = min(time.monotonic(), self._due_s)
        for choice in job.choices:
            self.engine.add(choice.draft.request, now)
            self._choices[choice.draft.request.request_id] = choice
        self._work.set()

    def abort(self, job: Job) -> None:
        """Drop what a job still has in the engine; its handler has news."""
        for choice in job.choices:
            if choice.end is None:
                self._drop(choice)

    def abort_matching(self, matches: Callable[[str], bool]) -> None:
        """Drop all choices whose request id matches."""
        for request_id, choice in list(self._choices.items()):
            if matches(request_id):
                self._drop(choice)

    async def run(self) -> None:
        """Step for ever; cancel to stop."""
        alarm = Alarm()
        try:
            while True:
                await self._work.wait()
                now = time.monotonic()
                while (duration_s := self._step(now)) is not None:
                    self._due_s = now + duration_s
                    await alarm.until(round(self._due_s * 1e9))
                    now = self._due_s
                self._due_s = math.inf
                self._work.clear()
        finally:
            alarm.close()

    def _step(self, now: float) -> float | None:
        result = self.engine.step(now)
        for request_id, position, since_s in result.emitted:
            choice = self._choices[request_id]
            if position:
                self._meters.next_token(since_s)
            else:
                self._meters.first_token(choice.job.streaming, since_s)
            choice.job.token(choice)
        for finished in result.finished:
            choice = self._choices.pop(finished.request_id)
            self._meters.finished(finished, choice.draft.request, choice.job.streaming)
            choice.job.ended(choice, finished.reason)
        for admitted in result.admitted:
            if not admitted.resumed:
                self._choices[admitted.request_id].cached_tokens = admitted.cached_tokens
            self._meters.admitted(admitted)
        self._meters.stepped(result, now)
        self.steps += 1
        return result.duration_s

    def _drop(self, choice: Progress) -> None:
        request_id = choice.draft.request.request_id
        self.engine.abort(request_id)
        del self._choices[request_id]
        self._meters.aborted(choice.job.streaming, time.monotonic() - choice.job.launched_s)
        choice.job.ended(choice, "abort")
