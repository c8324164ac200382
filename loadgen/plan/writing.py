"""An experiment becomes a directory: every schedule is made, tested and written before anything runs.

Nothing is overwritten. The directory is complete when `plan.yaml` appears in it, which is written last.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import yaml

from loadgen.plan.arrivals import Arrivals
from loadgen.plan.experiment import PLAN, SCHEDULES, Experiment, Level, Plan, PlanFile, PlannedSchedule, ordered
from loadgen.plan.making import Made, make, make_closed
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.self_test import counts_check, refusal
from loadgen.plan.sources import Part, Source
from loadgen.record import SUMS


def write_plan(
    experiment: Experiment, source: Source, arrivals: Arrivals | None, directory: Path, *, command: str
) -> Plan:
    """Makes the schedules of an experiment and writes all of it.

    Each level and repeat has one schedule, with a seed and so with text of its own, that all arms share. Raises
    FileExistsError for a directory in use, ValueError when arrivals fail their self-test.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"{directory} is not empty: a plan never overwrites another, name a new directory")
    (directory / SCHEDULES).mkdir()
    schedules = []
    for at, level in enumerate(experiment.levels):
        made = []
        for repeat in range(experiment.repeats):
            made.append(_make(experiment, level, experiment.schedule_seed(at, repeat), source, arrivals))
            schedules.append(_write_schedule(directory, level, repeat, made[-1]))
        _check_counts(level, made)
    file = PlanFile(
        schema="weir.plan/1", command=command, experiment=experiment, schedules=schedules, cells=ordered(experiment)
    )
    content = f"# {command}\n{_yaml(file)}".encode()
    sums = [*((planned.sha256, planned.file) for planned in schedules), (hashlib.sha256(content).hexdigest(), PLAN)]
    (directory / SUMS).write_text("".join(f"{sha256}  {name}\n" for sha256, name in sums))
    (directory / PLAN).write_bytes(content)
    return Plan(directory=directory, file=file)


def _make(experiment: Experiment, level: Level, seed: int, source: Source, arrivals: Arrivals | None) -> Made:
    traffic = experiment.traffic
    part = Part(seed=seed, duration_s=traffic.duration_s, start_s=traffic.start_s, rate_scale=level.rate_scale)
    if level.concurrency is None or traffic.requests is None:
        return make(source, part, arrivals)
    schedule = make_closed(source, part, concurrency=level.concurrency, requests=traffic.requests)
    return Made(schedule=schedule, law=None)


def _write_schedule(directory: Path, level: Level, repeat: int, made: Made) -> PlannedSchedule:
    file = f"{SCHEDULES}/{level.name}-r{repeat}.parquet"
    content = encode_schedule(made.schedule)
    (directory / file).write_bytes(content)
    return PlannedSchedule(
        level=level.name,
        repeat=repeat,
        file=file,
        sha256=hashlib.sha256(content).hexdigest(),
        requests=len(made.schedule),
    )


def _check_counts(level: Level, made: Sequence[Made]) -> None:
    """Repeats whose requests are always the same number were not drawn at random."""
    random = [each for each in made if each.law is not None and each.law.cv > 0]
    if len(random) < 2:
        return
    check = counts_check([len(each.schedule) for each in random], [each.law for each in random if each.law])
    if (reason := refusal([check])) is not None:
        raise ValueError(f"level {level.name}: {reason}")


def _yaml(file: PlanFile) -> str:
    content = msgspec.to_builtins(file)
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=200, default_flow_style=None)
