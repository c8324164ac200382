"""The command-line verb `run`: its arguments, and what it prints.

Bad input is one line on standard error and exit status 2; nothing else is decided here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TypeVar

import numpy as np
import uvloop

from loadgen.cells import refuse_begun, run_cells
from loadgen.drive.crew import Crew, WorkerProcesses, one_worker
from loadgen.plan import apart
from loadgen.plan.command import BESIDE_SCHEDULE, add_traffic_arguments, say
from loadgen.plan.experiment import Cell, read_plan
from loadgen.procedure import RunError, RunRequest
from loadgen.procedure import run as run_procedure
from loadgen.record import read_manifest, read_requests

_REFUSED = 2
_INTERRUPTED = 130

_Result = TypeVar("_Result")
_Verb = Callable[[argparse.Namespace], int]


def _refusing(verb: _Verb) -> _Verb:
    @wraps(verb)
    def guarded(ns: argparse.Namespace) -> int:
        try:
            return verb(ns)
        except (RunError, ValueError, OSError) as error:
            say(f"weir {verb.__name__}: {error}")
            return _REFUSED

    return guarded


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """`weir run --url U --model M (--workload | --trace | --schedule) …`, `weir run --plan DIR [--resume]`."""
    parser.add_argument("--plan", type=Path, metavar="DIR", help="run every cell of a plan made by `weir plan`")
    parser.add_argument("--resume", action="store_true", help="go on with a plan that was begun")
    parser.add_argument("--url", help="gateway or engine, without /v1")
    parser.add_argument("--model")
    add_traffic_arguments(parser, sources=False)
    parser.add_argument(
        "--tokenize", metavar="URL", help="engine whose /tokenize says what prompts are made of, without a --tokenizer"
    )
    parser.add_argument(
        "--token-ids",
        action="store_true",
        help="send prompts as token ids to /v1/completions, with --tokenizer or --tokenize",
    )
    parser.add_argument(
        "--warm-up", type=int, default=0, metavar="N", help="requests before the run, with other text; not counted (0)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="run directory, new or empty (runs/UTC)")
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S", help="of one request (600)")
    parser.add_argument(
        "--grace", type=float, default=10.0, metavar="S", help="for requests in flight when stopped (10)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes that send, each a part of the schedule (1)")
    parser.add_argument(
        "--ray", metavar="ADDRESS", help="send from the machines of a Ray cluster, `auto` for this one's"
    )
    parser.add_argument(
        "--max-connections", type=int, metavar="N", help="most requests in flight; what waits for it is late (no limit)"
    )


@_refusing
def run(ns: argparse.Namespace) -> int:
    """Sends a schedule, or those of a plan, and prints where the evidence is. Exit status 130 after an interruption.

    The first SIGINT or SIGTERM stops the sending, a second one cancels what is in flight. The API key, if
    any, comes from the environment as WEIR_API_KEY.
    """
    if ns.tokenize is not None and ns.tokenizer is not None:
        raise ValueError("--tokenize asks an engine what texts are made of, --tokenizer a file: drop one of them")
    if ns.token_ids and ns.tokenize is None and ns.tokenizer is None:
        raise ValueError("--token-ids needs the model's tokenizer: give --tokenizer FILE or --tokenize URL")
    if ns.plan is not None:
        return _run_plan(ns)
    if ns.url is None or ns.model is None:
        raise ValueError("say where to send to with --url and --model, or run a plan with --plan")
    if ns.resume:
        raise ValueError("--resume belongs to --plan")
    planning = apart.start(ns)
    directory = ns.out or Path("runs") / _stamp()
    planned = apart.result(planning)

    async def one(stop: asyncio.Event, halt: asyncio.Event) -> Path:
        request = await _request(ns, directory, planned, url=ns.url, model=ns.model)
        return await run_procedure(request, stop, halt=halt, show=sys.stderr)

    uvloop.run(_until_signalled(one))
    sys.stdout.write(f"{directory}\n{summary(directory)}\n")
    return 0 if read_manifest(directory).status == "complete" else _INTERRUPTED


_OF_ONE_RUN = ("url", "model", "out", "workload", "trace", "lengths", "schedule", *BESIDE_SCHEDULE)


def _run_plan(ns: argparse.Namespace) -> int:
    given = [name for name in _OF_ONE_RUN if getattr(ns, name) is not None]
    if given:
        raise ValueError(f"--plan says what to send and where to: drop --{given[0].replace('_', '-')}")
    plan = read_plan(ns.plan)
    if not ns.resume:
        refuse_begun(plan)

    async def request(cell: Cell, directory: Path, planned: apart.Planned) -> RunRequest:
        return await _request(ns, directory, planned, url=cell.arm.url, model=cell.arm.model)

    def done(cell: Cell, directory: Path) -> None:
        sys.stdout.write(f"{directory}\n{summary(directory)}\n")
        sys.stdout.flush()

    whole = uvloop.run(
        _until_signalled(
            lambda stop, halt: run_cells(
                plan, request, tokenizer=ns.tokenizer, stop=stop, halt=halt, show=sys.stderr, done=done
            )
        )
    )
    left = len(plan.remaining())
    sys.stdout.write(f"{plan.directory}: {len(plan.cells()) - left} of {len(plan.cells())} cells are complete\n")
    return 0 if whole else _INTERRUPTED


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")


async def _request(
    ns: argparse.Namespace, directory: Path, planned: apart.Planned, *, url: str, model: str
) -> RunRequest:
    return RunRequest(
        url=url,
        model=model,
        schedule=planned.content,
        requests=planned.requests,
        vocabulary=planned.vocabulary,
        token_ids=ns.token_ids,
        tokenize_url=ns.tokenize,
        warm_up=ns.warm_up,
        directory=directory,
        run_id=f"{_stamp()}-{secrets.token_hex(3)}",
        command=["weir", *sys.argv[1:]],
        timeout_s=ns.timeout,
        grace_s=ns.grace,
        max_connections=ns.max_connections,
        crew=await _crew(ns.workers, ns.ray),
        api_key=os.environ.get("WEIR_API_KEY"),
    )


async def _crew(workers: int | None, ray_address: str | None) -> Crew:
    if workers is not None and workers < 1:
        raise ValueError(f"--workers {workers}: expected at least 1")
    if ray_address is not None:
        try:
            from loadgen.drive.ray_workers import place
        except ModuleNotFoundError:
            raise ValueError("--ray needs Ray: pip install 'weir-llm[ray]', on every machine of the cluster") from None
        return await place(ray_address, workers)
    return one_worker(terminal=sys.stderr.isatty()) if workers is None else WorkerProcesses(workers)


async def _until_signalled(work: Callable[[asyncio.Event, asyncio.Event], Awaitable[_Result]]) -> _Result:
    stop, halt = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            halt.set()
        stop.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    return await work(stop, halt)


def summary(directory: Path) -> str:
    """Two lines about a run: what was sent how punctually, and how it ended."""
    manifest = read_manifest(directory)
    late_ms = [
        (record.sent_ns - record.intended_ns) / 1e6 for record in read_requests(directory) if record.sent_ns is not None
    ]
    lateness = "-"
    if late_ms:
        p50, p99 = np.percentile(late_ms, (50, 99), method="inverted_cdf")
        lateness = f"{p50:.2f}/{p99:.2f} ms"
    outcomes = ", ".join(f"{count} {name}" for name, count in Counter(manifest.outcomes).most_common())
    return (
        f"{manifest.status}: scheduled {manifest.scheduled}, sent {len(late_ms)}, late P50/P99 {lateness}\n"
        f"outcomes: {outcomes or 'none'}"
    )
