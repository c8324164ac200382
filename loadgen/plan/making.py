"""A part of a source becomes a schedule: equal arguments give equal schedules, on every machine.

Hides the independent streams of randomness: what requests are and when they come never depend on each other, so
another family of arrivals brings the same requests. Arrivals that fail their self-test become no schedule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadgen.plan.arrivals import Arrivals, Law
from loadgen.plan.schedule import Schedule, materialise
from loadgen.plan.self_test import lawless_test, refusal, self_test
from loadgen.plan.sources import Part, Source
from loadgen.workload.traffic import Requests
from protocol.records import ArrivalCheck, ScheduleHeader

_NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A schedule, and the law of its arrivals where that is known."""

    schedule: Schedule
    law: Law | None


def make_schedule(source: Source, part: Part, arrivals: Arrivals | None = None) -> Schedule:
    """As `make`, without the law."""
    return make(source, part, arrivals).schedule


def make(source: Source, part: Part, arrivals: Arrivals | None = None) -> Made:
    """The requests of `part` at the source's own times, or at those of `arrivals`.

    Raises ValueError when the times do not follow the law they are drawn from (see `self_test`).
    """
    content, when = _generators(part.seed)
    if arrivals is None:
        requests, law = source.timed(content, part), None
        checks = lawless_test(requests.at_s, part.duration_s, judged=source.is_drawn)
    else:
        at_s, law = arrivals.draw(when, duration_s=part.duration_s, rate_scale=part.rate_scale)
        checks = self_test(at_s, law)
        requests = replace(source.first(content, part, len(at_s)), at_s=at_s)
    if (reason := refusal(checks)) is not None:
        raise ValueError(reason)
    return Made(schedule=_open(requests, source, part, arrivals, checks), law=law)


def _open(
    requests: Requests, source: Source, part: Part, arrivals: Arrivals | None, checks: tuple[ArrivalCheck, ...]
) -> Schedule:
    header = ScheduleHeader(
        source=f"{source.name}[{part.start_s:g}s+{part.duration_s:g}s]x{part.rate_scale:g}",
        source_sha256=source.sha256,
        arrivals="own" if arrivals is None else arrivals.text,
        seed=part.seed,
        text_seed=part.texts,
        requests=0,
        duration_ns=round(part.duration_s * _NS_PER_S),
        self_test=checks,
    )
    return materialise(requests, header)


def make_closed(source: Source, part: Part, *, concurrency: int, requests: int) -> Schedule:
    """The first requests from the start of `part` on, of which `concurrency` are under way at any time.

    A closed loop waits for answers, so a slow server is asked for less: the schedule says that it is one.
    """
    for name, value in (("concurrency", concurrency), ("requests", requests)):
        if value < 1:
            raise ValueError(f"{name} is {value}: at least 1")
    content, _ = _generators(part.seed)
    header = ScheduleHeader(
        source=f"{source.name}[{part.start_s:g}s+]",
        source_sha256=source.sha256,
        arrivals="closed",
        concurrency=concurrency,
        seed=part.seed,
        text_seed=part.texts,
        requests=0,
        duration_ns=0,
    )
    found = source.first(content, part, requests)
    return materialise(replace(found, at_s=np.zeros(requests)), header)


def _generators(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """For what requests are, and for when they come."""
    content, arrivals = np.random.SeedSequence(seed).spawn(2)
    return np.random.default_rng(content), np.random.default_rng(arrivals)
