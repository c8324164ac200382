"""The steps of a run, in order: check the target, calibrate, send the schedule, seal the directory.

Everything that can be refused is refused before the first request is sent. Once sending has begun, whatever
happened is kept: an interrupted run is sealed as such.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import socket
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Client, Exchange, parse_target, raise_open_files_limit
from loadgen.drive.dispatch import Limit, OpenLoop
from loadgen.drive.progress import Progress, Ticker
from loadgen.plan.schedule import Schedule
from loadgen.plan.schedule_file import decode_schedule
from loadgen.record import SCHEDULE, RunWriter
from loadgen.workload.prompts import prompt
from protocol.openai import answer_of, usage_of
from protocol.records import ChunkRecord, Manifest, RequestRecord, ScheduleHeader

_CHECK_TIMEOUT_S = 30.0

_CALIBRATION_WORDS = 64
_CALIBRATION_SEED = 0
"""Seeds of requests are drawn from 63 bits, so no request of a run repeats the calibration's text."""

_LEAD_NS = 250_000_000
"""From the end of preparation to offset 0: time to build the first requests."""


class RunError(Exception):
    """The run was refused; nothing of the schedule was sent. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run."""

    url: str
    """Of a gateway or an engine, without `/v1`."""
    model: str
    schedule: bytes
    """Content of a schedule file."""
    directory: Path
    """New, or empty."""
    run_id: str
    command: list[str]
    """The command line, for the manifest."""
    timeout_s: float = 600.0
    """Of one request, from its dispatch to its end."""
    grace_s: float = 10.0
    """What requests in flight get when the run is stopped."""
    max_connections: int | None = None
    """Most requests in flight of an open loop; what it holds back is late, and its record says since when."""
    api_key: str | None = field(default=None, repr=False)


async def run(
    plan: RunRequest, stop: asyncio.Event, *, halt: asyncio.Event | None = None, show: TextIO | None = None
) -> Path:
    """Carries out one run and returns its directory.

    `stop` ends the sending and gives requests in flight their grace; `halt` cancels them at once. Progress
    and warnings are written to `show`. Raises RunError when the target cannot serve the run, ValueError for
    a bad URL or schedule, FileExistsError for a directory in use.
    """
    ticker = Ticker(show)
    target = parse_target(plan.url)
    requests = decode_schedule(plan.schedule)
    _check_limit(requests.header, plan.max_connections)
    open_files = raise_open_files_limit()
    try:
        client = await Client.open(target)
    except OSError as error:
        raise RunError(f"{target.host} cannot be resolved: {error}") from error
    try:
        chat = ChatRequests(target, model=plan.model, run_id=plan.run_id, api_key=plan.api_key)
        await _check_model(client, chat, plan)
        chat.template_tokens = await _template_tokens(client, chat, ticker)
        writer = RunWriter(plan.directory)
        (plan.directory / SCHEDULE).write_bytes(plan.schedule)
        origin_ns = time.monotonic_ns() + _LEAD_NS
        started_unix_ns = time.time_ns() + (origin_ns - time.monotonic_ns())
        ready = _Ready(client, chat, writer, ticker, origin_ns)
        await _send(plan, requests, ready, stop, halt)
    finally:
        client.close()
    writer.finalise(_manifest(plan, requests.header, ready, started_unix_ns, open_files))
    return plan.directory


class _Ready(NamedTuple):
    """What the sending needs, made ready."""

    client: Client
    chat: ChatRequests
    writer: RunWriter
    ticker: Ticker
    origin_ns: int


async def _send(
    plan: RunRequest,
    requests: Schedule,
    ready: _Ready,
    stop: asyncio.Event,
    halt: asyncio.Event | None,
) -> None:
    progress = Progress(len(requests))

    def keep(record: RequestRecord, chunks: ChunkRecord | None) -> None:
        ready.writer.add(record, chunks)
        progress.finished(record)

    loop = OpenLoop(
        ready.client,
        build=ready.chat.streamed,
        keep=keep,
        run_id=plan.run_id,
        origin_ns=ready.origin_ns,
        timeout_s=plan.timeout_s,
    )

    def line() -> str:
        now_ns = time.monotonic_ns() - ready.origin_ns
        return progress.line(now_ns=now_ns, sent=loop.sent, in_flight=loop.in_flight)

    # What exists by now lives until the end: the collector need not look at it while requests are timed.
    gc.freeze()
    ticking = asyncio.create_task(ready.ticker.run(line))
    try:
        await loop.run(
            requests,
            stop=stop,
            halt=halt or asyncio.Event(),
            grace_s=plan.grace_s,
            limit=_limit(requests.header, plan.max_connections),
        )
    finally:
        ticking.cancel()
        gc.unfreeze()
        ready.writer.close()
    ready.ticker.end(line())


def _check_limit(header: ScheduleHeader, max_connections: int | None) -> None:
    if max_connections is None:
        return
    if header.concurrency is not None:
        raise ValueError("a closed loop limits its requests itself: drop --max-connections")
    if max_connections < 1:
        raise ValueError(f"--max-connections {max_connections}: expected at least 1")


def _limit(header: ScheduleHeader, max_connections: int | None) -> Limit | None:
    if header.concurrency is not None:
        return Limit(requests=header.concurrency, closed=True)
    return None if max_connections is None else Limit(requests=max_connections, closed=False)


async def _check_model(client: Client, chat: ChatRequests, plan: RunRequest) -> None:
    """The target must answer and serve the model."""
    exchange = await _ask(client, chat.models())
    if exchange.outcome != "ok":
        raise RunError(f"{plan.url} does not answer GET /v1/models: {exchange.error}")
    try:
        models = [card.id for card in msgspec.json.decode(exchange.body(), type=_Models).data]
    except msgspec.MsgspecError as error:
        raise RunError(f"{plan.url} answers GET /v1/models with {_status(exchange)}: {error}") from error
    if plan.model not in models:
        raise RunError(f"{plan.url} has no model {plan.model!r}: it has {', '.join(models) or 'none'}")


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def _template_tokens(client: Client, chat: ChatRequests, ticker: Ticker) -> int:
    """Prompt tokens that the chat template adds: those of a known text, less its words.

    0, with a warning, when the engine reports no usage or counts fewer tokens than words: then prompts are
    as long as planned only up to the template.
    """
    text = prompt(_CALIBRATION_WORDS, _CALIBRATION_SEED)
    exchange = await _ask(client, chat.calibration(text))
    if exchange.outcome != "ok" or exchange.status != 200:
        raise RunError(f"the calibration request failed: {exchange.error or _status(exchange)}")
    usage = usage_of(exchange.body())
    if usage is None or usage.prompt_tokens < _CALIBRATION_WORDS:
        found = "no usage" if usage is None else f"{usage.prompt_tokens} tokens for {_CALIBRATION_WORDS} words"
        ticker.print(f"warning: the engine reports {found}: the chat template is taken to add 0 tokens")
        return 0
    return usage.prompt_tokens - _CALIBRATION_WORDS


async def _ask(client: Client, wire: bytes) -> Exchange:
    exchange = Exchange(wire)
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await client.send(exchange)
    except TimeoutError:
        exchange.end("timeout", f"no answer within {_CHECK_TIMEOUT_S:g} s")
    return exchange


def _status(exchange: Exchange) -> str:
    error = answer_of(exchange.body()).error or {}
    return f"http {exchange.status} {error.get('message', '')}".rstrip()


def _manifest(
    plan: RunRequest, header: ScheduleHeader, ready: _Ready, started_unix_ns: int, open_files: int
) -> Manifest:
    stopped = ready.writer.outcomes["unsent"] + ready.writer.outcomes["cancelled"]
    return Manifest(
        run_id=plan.run_id,
        status="interrupted" if stopped else "complete",
        command=plan.command,
        url=plan.url,
        model=plan.model,
        started_unix_ns=started_unix_ns,
        duration_ns=time.monotonic_ns() - ready.origin_ns,
        schedule=header,
        template_tokens=ready.chat.template_tokens,
        scheduled=header.requests,
        outcomes={},
        host=_host(open_files),
        versions=_versions(),
        files={},
    )


def _host(open_files: int) -> dict[str, str]:
    return {
        "name": socket.gethostname(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "event_loop": type(asyncio.get_running_loop()).__module__,
        "open_files_limit": str(open_files),
    }


def _versions() -> dict[str, str]:
    packages = ("weir-llm", "uvloop", "httptools", "msgspec", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
