"""`weir demo`: two stand-in pools, the gateway, a minute of production-shaped traffic, and the report on it.

Everything runs as processes of its own, exactly as the verbs `engine` and `serve` start them; only the load
generator runs here. Ctrl-C ends the sending, keeps what was measured and still renders a report.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

import uvloop
import yaml

from loadgen.drive.crew import one_worker
from loadgen.plan.making import make_schedule
from loadgen.plan.schedule import Schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Drawn, Part
from loadgen.procedure import RunError, RunRequest, run
from loadgen.report.command import take_gateway_records, write_report
from loadgen.report.terminal import tables
from loadgen.workload.description import load_workload, shipped
from weir.processes import Child, Processes, StartError

MODEL = "llama-3-8b"
PROFILE = "h100_llama-3-8b"
WORKLOAD = "azure-conv-2023"
START_S = 600.0
"""Into the workload: its first minutes are quieter than the rest."""
POOLS = ("vllm", "sglang")
ENDPOINTS_PER_POOL = 2

_STOPPED = 130
"""Exit status of what Ctrl-C ended, as shells have it."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `weir demo`."""
    parser.add_argument("--duration", type=float, default=60.0, metavar="S", help="seconds of traffic (default 60)")
    parser.add_argument(
        "--rate-scale", type=float, default=2.0, metavar="X", help="times the traffic's own rate (default 2)"
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic and the engines")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/demo-<UTC time>")


def demo(arguments: argparse.Namespace) -> int:
    """Runs the demo; 0 with a report on the whole run, 130 when it was stopped, 2 when it could not start.

    A stop while traffic runs leaves a sealed run directory and a report on what was sent until then.
    """
    out: Path = arguments.out or Path("runs") / f"demo-{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        return uvloop.run(_demo(arguments, out))
    except (StartError, RunError, ValueError, OSError) as error:
        print(f"weir demo: {error}", file=sys.stderr)
        return 2
    except asyncio.CancelledError:
        print("\nweir demo: stopped before any traffic was sent; everything it started has ended", file=sys.stderr)
        return _STOPPED


async def _demo(arguments: argparse.Namespace, out: Path) -> int:
    with _Interrupts() as interrupts:
        schedule = _schedule(arguments)
        out.mkdir(parents=True)
        async with Processes(logs=out / "logs") as processes:
            _say(f"starting {len(POOLS) * ENDPOINTS_PER_POOL} stand-in engines and the gateway (logs: {out / 'logs'})")
            engines = {pool: await _start_pool(processes, pool, arguments.seed) for pool in POOLS}
            gateway = await _start_gateway(processes, engines, out)
            _say(f"gateway at {gateway.url}, metrics at {gateway.url}/metrics; replaying {WORKLOAD} through it")
            interrupts.running = True
            directory = await run(
                RunRequest(
                    url=gateway.url,
                    model=MODEL,
                    schedule=encode_schedule(schedule),
                    requests=schedule,
                    crew=one_worker(terminal=sys.stderr.isatty()),
                    directory=out / "run",
                    run_id=out.name,
                    command=[*sys.argv],
                ),
                interrupts.stop,
                halt=interrupts.halt,
                show=sys.stderr,
            )
            # The gateway writes out its last records as it ends.
            await processes.stop(gateway)
        # Still inside: another Ctrl-C must not cost the report on what was measured.
        take_gateway_records(directory, out / "records.jsonl")
        summary, page = write_report(directory)
        print(f"\n{tables(summary)}\n\n{page.resolve()}")
        return 0 if summary.status == "complete" else _STOPPED


def _schedule(arguments: argparse.Namespace) -> Schedule:
    path = shipped(WORKLOAD)
    assert path is not None, "the workload is part of the package"
    part = Part(seed=arguments.seed, duration_s=arguments.duration, rate_scale=arguments.rate_scale, start_s=START_S)
    return make_schedule(Drawn(load_workload(path)), part)


async def _start_pool(processes: Processes, kind: str, seed: int) -> list[str]:
    """Starts one pool's engines at the same time; their URLs. When one fails, no other is still being started."""
    command = _weir("engine", "--kind", kind, "--profile", PROFILE, "--model", MODEL, "--port", "0")
    try:
        async with asyncio.TaskGroup() as group:
            starting = [
                group.create_task(processes.start(f"{kind}-{number}", [*command, "--seed", str(seed + number)]))
                for number in range(ENDPOINTS_PER_POOL)
            ]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result().url for task in starting]


async def _start_gateway(processes: Processes, engines: dict[str, list[str]], out: Path) -> Child:
    config = {
        "listen": {"port": 0},
        "pools": {
            pool: {"engine": pool, "endpoints": [{"url": url} for url in urls]} for pool, urls in engines.items()
        },
        "routes": [{"model": MODEL, "split": dict.fromkeys(engines, 50)}],
        "records": {"path": str(out / "records.jsonl")},
    }
    path = out / "gateway.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return await processes.start("gateway", _weir("serve", "--config", str(path)))


def _weir(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "weir", *arguments]


class _Interrupts:
    """What Ctrl-C means, by how far the demo is.

    While things start there is nothing to keep, so the demo is cancelled; another one kills what does not end by
    itself. During the run, the first one stops the sending and lets what is in flight finish; another one cuts that
    too. After it there is only the report to finish, which takes a moment.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.halt = asyncio.Event()
        self.running = False
        self._task = asyncio.current_task()

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        for number in _SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    def _interrupted(self) -> None:
        if not self.running and self._task is not None:
            self._task.cancel()
        elif self.stop.is_set():
            self.halt.set()
        self.stop.set()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
