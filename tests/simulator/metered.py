"""One request's life, as meters of either kind are told it, and how to read what they then render."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from simulator.cache import CacheUsage
from simulator.profile import load_profile
from simulator.step_loop import Meters
from simulator.steps import Admitted, Finished, Request, Snapshot, StepResult

SNAPSHOT = Snapshot(
    running=3,
    waiting=2,
    kv=CacheUsage(capacity_tokens=1000, free_tokens=500, cached_tokens=300, used_tokens=200),
)
REQUEST = Request(request_id="r", prompt=(1,) * 100, output=(1,) * 5, finish_reason="stop", max_tokens=50)
FINISHED = Finished("r", "stop", 100, 60, 5, 1, 10.0, 10.5, 11.0, 13.0)

Kind = TypeVar("Kind", bound=Meters)


def step(**changes: Any) -> StepResult:
    empty: dict[str, Any] = {"emitted": [], "finished": [], "admitted": [], "preempted": [], "new_tokens": 0}
    return StepResult(**(empty | {"duration_s": 0.01} | changes))


def feed(meters: Meters) -> None:
    admitted = Admitted("r", 100, 60, False)
    meters.admitted(admitted)
    meters.admitted(Admitted("r", 103, 96, True))
    meters.first_token(True, 1.0)
    for _ in range(4):
        meters.next_token(0.5)
    meters.finished(FINISHED, REQUEST, True)
    meters.aborted(True, 2.0)
    meters.refused()
    meters.stepped(step(admitted=[admitted], new_tokens=40), 1.0)
    meters.stepped(step(preempted=["r"], duration_s=None), 2.0)


def values(text: bytes) -> dict[str, float]:
    lines = (line for line in text.decode().splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def make(kind: Callable[..., Kind]) -> Kind:
    return kind(
        model="tiny",
        profile=load_profile("h100_llama-3-8b"),
        page_tokens=16,
        max_model_tokens=8192,
        snapshot=lambda: SNAPSHOT,
    )
