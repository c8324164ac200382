"""An experiment: arms x load levels x repeats, in an order that keeps time out of the comparison; and its directory.

Hides the layout of a plan's directory. Everything in it is written before anything runs: `plan.yaml`, one schedule
per level and repeat that all arms share, and `SHA256SUMS`. What has been run is decided by what lies in `runs`.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec
import numpy as np
import yaml

from loadgen.record import digest, read_manifest

PLAN = "plan.yaml"
SCHEDULES = "schedules"
RUNS = "runs"

Order = Literal["random", "abba"]

_Kind = TypeVar("_Kind", bound=msgspec.Struct)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each check of a part names the field, its value and the remedy."""


class Arm(_Part, frozen=True, kw_only=True):
    """One of the things compared."""

    name: str
    url: str
    """Of a gateway or an engine, without `/v1`."""
    model: str

    def __post_init__(self) -> None:
        _check_name("arm", self.name)
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url of arm {self.name} is {self.url!r}: expected http://HOST:PORT or https://…")


class Level(_Part, frozen=True, kw_only=True):
    """One load: times the rate of the traffic, or, closed loop, so many requests at once."""

    name: str
    rate_scale: float = 1.0
    concurrency: int | None = None

    def __post_init__(self) -> None:
        _check_name("level", self.name)
        if not 0 < self.rate_scale < math.inf:
            raise ValueError(f"rate_scale of level {self.name} is {self.rate_scale}: give a number above 0")
        if self.concurrency is not None and self.concurrency < 1:
            raise ValueError(f"concurrency of level {self.name} is {self.concurrency}: at least 1")


class TrafficChoice(_Part, frozen=True, kw_only=True):
    """What is sent, and when: exactly one of `workload`, `trace` and `lengths`."""

    workload: str | None = None
    """A workload that comes with weir, or a file."""
    trace: str | None = None
    """A request log."""
    format: str | None = None
    """Of the trace; found by its first lines when None."""
    most_prompt_tokens: int | None = None
    """Longer prompts lose their end; None: none does."""
    most_output_tokens: int | None = None
    tokenizer: str | None = None
    """`tokenizer.json` of the model, for a trace whose prompts are text."""
    bad_rows: float | None = None
    """Share of the trace's rows that may be unreadable; none when None."""
    lengths: str | None = None
    """`PROMPT:OUTPUT`, as 512:128 or 100-900:1-64."""
    time_scale: float | None = None
    """How many times as fast a workload's changes come, at its own rate; as it says when None."""
    arrivals: str | None = None
    """A family with its parameters (docs/formats.md); None for the traffic's own times."""
    start_s: float = 0.0
    duration_s: float = 60.0
    requests: int | None = None
    """Of a closed loop, which ends with the last of them."""

    def __post_init__(self) -> None:
        sources = {"workload": self.workload, "trace": self.trace, "lengths": self.lengths}
        given = [name for name, value in sources.items() if value is not None]
        if len(given) != 1:
            raise ValueError(f"traffic has {' and '.join(given) or 'no source'}: one of workload, trace, lengths")
        for name, value in (("format", self.format), ("tokenizer", self.tokenizer), ("bad_rows", self.bad_rows)):
            if value is not None and self.trace is None:
                raise ValueError(f"{name} belongs to a trace: drop it")
        if self.time_scale is not None and (self.workload is None or self.requests is not None):
            raise ValueError(
                "time_scale belongs to a workload with times: a trace is played faster by its rate (rate_scale), "
                "given lengths and closed loops have no times"
            )


class Experiment(_Part, frozen=True, kw_only=True):
    """What is to be found out, before any of it is materialised."""

    schema: Literal["weir.experiment/1"]
    name: str
    seed: int = 0
    """Decides the order, and the seed of every schedule."""
    order: Order = "random"
    repeats: int = 5
    traffic: TrafficChoice
    levels: list[Level]
    arms: list[Arm]

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}: give an integer of at least 0")
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}: at least 1")
        if self.order == "abba" and self.repeats % 2:
            raise ValueError(
                f"repeats is {self.repeats}: order abba runs every second one backwards, so give an even number"
            )
        for kind, names in (("arms", [a.name for a in self.arms]), ("levels", [level.name for level in self.levels])):
            if not names or len(set(names)) < len(names):
                raise ValueError(
                    f"{kind} are {', '.join(names) or 'missing'}: give at least one, with names of their own"
                )
        self._check_loop()

    def _check_loop(self) -> None:
        closed = {level.concurrency is not None for level in self.levels}
        if len(closed) > 1:
            raise ValueError("some levels have a concurrency and some have none: a plan is open loop or closed loop")
        if closed == {True} and (self.traffic.requests is None or self.traffic.arrivals is not None):
            raise ValueError("levels are a closed loop: traffic needs requests, how many in all, and takes no arrivals")
        if closed == {False} and self.traffic.requests is not None:
            raise ValueError("traffic has requests, which belong to a closed loop: give the levels a concurrency")

    def schedule_seed(self, level: int, repeat: int) -> int:
        """The seed of one schedule, from the positions of level and repeat; 32 bits, none like another's."""
        return int(np.random.SeedSequence([self.seed, level, repeat]).generate_state(1)[0])


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{kind} {name!r}: a name is letters, digits, '.', '_' and '-', as it becomes a file's")


class PlannedSchedule(_Part, frozen=True, kw_only=True):
    """One file of offered load."""

    level: str
    repeat: int
    file: str
    """Below the directory of the plan."""
    sha256: str
    requests: int


class PlannedCell(_Part, frozen=True, kw_only=True):
    id: str
    arm: str
    level: str
    repeat: int


class PlanFile(_Part, frozen=True, kw_only=True):
    """`plan.yaml`: the experiment, its schedules, and its cells in the order in which they are run."""

    schema: Literal["weir.plan/1"]
    command: str
    experiment: Experiment
    schedules: list[PlannedSchedule]
    cells: list[PlannedCell]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run of a plan."""

    id: str
    """Names its run directory; sorts in the order of the plan."""
    order: int
    """Position in the plan, from 0."""
    arm: Arm
    level: Level
    repeat: int
    schedule: Path
    schedule_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A plan on disk, checked."""

    directory: Path
    file: PlanFile

    def cells(self) -> list[Cell]:
        """Every cell, in the order in which they are run."""
        experiment = self.file.experiment
        arms = {arm.name: arm for arm in experiment.arms}
        levels = {level.name: level for level in experiment.levels}
        schedules = {(planned.level, planned.repeat): planned for planned in self.file.schedules}
        return [
            Cell(
                id=cell.id,
                order=order,
                arm=arms[cell.arm],
                level=levels[cell.level],
                repeat=cell.repeat,
                schedule=self.directory / schedules[cell.level, cell.repeat].file,
                schedule_sha256=schedules[cell.level, cell.repeat].sha256,
            )
            for order, cell in enumerate(self.file.cells)
        ]

    def run_directory(self, cell: Cell) -> Path:
        """Where the run of a cell belongs; it need not exist."""
        return self.directory / RUNS / cell.id

    def remaining(self) -> list[Cell]:
        """Cells without a complete run, in order. An interrupted run counts as none."""
        return [cell for cell in self.cells() if not _complete(self.run_directory(cell))]


def _complete(run: Path) -> bool:
    try:
        return read_manifest(run).status == "complete"
    except ValueError:
        return False


def ordered(experiment: Experiment) -> list[PlannedCell]:
    """All cells in the order in which they are run.

    `random` runs the repeats one after another, the levels of each in random order, and within a level the arms in
    random order, next to each other in time (a randomised complete block design). `abba` runs levels and arms as
    given, and every second repeat backwards, so that a drift that is linear in time cancels out.
    """
    rng = np.random.default_rng(np.random.SeedSequence([experiment.seed, *b"order"]))
    cells = []
    for repeat in range(experiment.repeats):
        levels = [level.name for level in experiment.levels]
        blocks = [(level, [arm.name for arm in experiment.arms]) for level in levels]
        if experiment.order == "random":
            blocks = [(blocks[at][0], _shuffled(rng, blocks[at][1])) for at in rng.permutation(len(blocks))]
        in_turn = [(arm, level) for level, arms in blocks for arm in arms]
        cells += [(arm, level, repeat) for arm, level in _turned(in_turn, experiment.order, repeat)]
    width = len(str(len(cells) - 1))
    return [
        PlannedCell(id=f"{order:0{width}}-{level}-r{repeat}-{arm}", arm=arm, level=level, repeat=repeat)
        for order, (arm, level, repeat) in enumerate(cells)
    ]


def _shuffled(rng: np.random.Generator, names: list[str]) -> list[str]:
    return [names[at] for at in rng.permutation(len(names))]


def _turned(cells: list[tuple[str, str]], order: Order, repeat: int) -> list[tuple[str, str]]:
    return cells[::-1] if order == "abba" and repeat % 2 else cells


def parse_experiment(text: str) -> Experiment:
    """Reads the YAML of an experiment. Raises ValueError with the field, its value and the remedy."""
    return _parse(text, Experiment)


def _parse(text: str, kind: type[_Kind]) -> _Kind:
    try:
        return msgspec.convert(yaml.safe_load(text), kind, strict=True)
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def read_plan(directory: Path) -> Plan:
    """Reads a plan and checks that its cells and schedules are all there and unchanged.

    Raises ValueError, naming the file, when they are not, and OSError when there is no plan.
    """
    path = directory / PLAN
    try:
        file = _parse(path.read_text(encoding="utf-8"), PlanFile)
        _check_cells(file)
    except (ValueError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error
    for planned in file.schedules:
        schedule = directory / planned.file
        if digest(schedule).sha256 != planned.sha256:
            raise ValueError(f"{schedule}: content differs from {PLAN}: plan again, a schedule is never changed")
    return Plan(directory=directory, file=file)


def _check_cells(file: PlanFile) -> None:
    """Every combination once, and a schedule for each level and repeat; the order may be any."""
    experiment = file.experiment
    levels, repeats = [level.name for level in experiment.levels], range(experiment.repeats)
    wanted = set(itertools.product([arm.name for arm in experiment.arms], levels, repeats))
    planned = [(cell.arm, cell.level, cell.repeat) for cell in file.cells]
    if set(planned) != wanted or len(planned) != len(wanted):
        raise ValueError(f"cells are not each arm at each level in each repeat once: {len(planned)} of {len(wanted)}")
    if len({cell.id for cell in file.cells}) < len(file.cells):
        raise ValueError("two cells have the same id")
    if {(planned.level, planned.repeat) for planned in file.schedules} != set(itertools.product(levels, repeats)):
        raise ValueError("schedules are not one for each level and repeat")
