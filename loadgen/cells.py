"""Runs a plan: its cells one after another, in its order, each into its own directory.

What has been run is never run again and never overwritten: a run that was interrupted is set aside and kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TextIO

from loadgen.plan import apart
from loadgen.plan.command import given_schedule
from loadgen.plan.experiment import Cell, Plan
from loadgen.procedure import RunRequest, run
from loadgen.record import read_manifest

MakeRequest = Callable[[Cell, Path, apart.Planned], Awaitable[RunRequest]]
"""The run of a cell: into which directory, and its schedule."""


def refuse_begun(plan: Plan) -> None:
    """Raises ValueError when some of the plan has been run."""
    begun = [cell for cell in plan.cells() if plan.run_directory(cell).exists()]
    if begun:
        raise ValueError(
            f"{plan.directory}: {len(begun)} of {len(plan.cells())} cells have been run or begun: go on with --resume"
        )


async def run_cells(
    plan: Plan,
    make_request: MakeRequest,
    *,
    tokenizer: str | None,
    stop: asyncio.Event,
    halt: asyncio.Event,
    show: TextIO | None,
    done: Callable[[Cell, Path], None],
) -> bool:
    """Runs what remains of a plan; `done` hears of every run. False when `stop` ended it before the last cell.

    Raises as `run` does when a cell cannot be run at all; the plan can be resumed then.
    """
    for cell in plan.remaining():
        directory = plan.run_directory(cell)
        _set_aside(directory)
        planned = apart.result(apart.start(given_schedule(cell.schedule, tokenizer)))
        if stop.is_set():
            return False
        await run(await make_request(cell, directory, planned), stop, halt=halt, show=show)
        done(cell, directory)
        if read_manifest(directory).status != "complete":
            return False
    return True


def _set_aside(directory: Path) -> None:
    """Renames what an interrupted run left, so that its place is free."""
    if not directory.exists():
        return
    number = 1
    while (aside := directory.with_name(f"{directory.name}.interrupted-{number}")).exists():
        number += 1
    directory.rename(aside)
