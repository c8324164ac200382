"""The steps of a run, in order: check the target, calibrate, warm up, send the schedule, seal the directory.

Everything that can be refused is refused before the first request is sent. Once sending has begun, whatever
happened is kept: an interrupted run is sealed as such.
"""

from __future__ import annotations

import asyncio
import os
import platform
import socket
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple, TextIO

import msgspec

from loadgen.drive.calibrate import NullServer, calibrate
from loadgen.drive.chat import ChatRequests
from loadgen.drive.client import Client, Exchange, Target, parse_target, raise_open_files_limit
from loadgen.drive.crew import Crew, ThisProcess, part_directory
from loadgen.drive.progress import Board, Screen
from loadgen.drive.share import Share, shares_of
from loadgen.drive.tokenize import engine_vocabulary
from loadgen.drive.warm_up import warm_up, warm_up_requests
from loadgen.plan.schedule import Schedule
from loadgen.record import SCHEDULE, WARM_UP, claim, gather, read_requests, seal
from loadgen.workload.texts import OUTSIDE_RUNS, USUAL, Vocabulary
from protocol.openai import answer_of, usage_of
from protocol.records import Calibration, Manifest, WorkerReport, encode_line

_CHECK_TIMEOUT_S = 30.0

_CALIBRATION_WORDS = 64
_CALIBRATION_SEED = OUTSIDE_RUNS
"""No request of a run has anything of its text."""

_MUCH = 0.5
"""Share of the client's capacity above which a run is warned of: queueing shows from there on."""


class RunError(Exception):
    """The run was refused; nothing of the schedule was sent. The message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What to run."""

    url: str
    """Of a gateway or an engine, without `/v1`."""
    model: str
    schedule: bytes
    """Content of a schedule file, which is kept with the run."""
    requests: Schedule
    """What it says."""
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
    crew: Crew = field(default_factory=ThisProcess)
    """Closed by `run`."""
    vocabulary: Vocabulary = USUAL
    """What prompts are made of."""
    token_ids: bool = False
    """Prompts are sent as ids of the vocabulary, which has to have some, to `/v1/completions`, without a template."""
    tokenize_url: str | None = None
    """Of an engine that is asked for the vocabulary."""
    warm_up: int = 0
    """Requests before the first one of the schedule, with other text; they count for nothing."""
    api_key: str | None = field(default=None, repr=False)


async def run(
    plan: RunRequest, stop: asyncio.Event, *, halt: asyncio.Event | None = None, show: TextIO | None = None
) -> Path:
    """Carries out one run and returns its directory.

    `stop` ends the sending and gives requests in flight their grace; `halt` cancels them at once. Progress
    and warnings are written to `show`. Raises RunError when the target cannot serve the run, ValueError for
    a bad URL or limit, FileExistsError for a directory in use.
    """
    screen = Screen(show)
    try:
        target = parse_target(plan.url)
        _check_limit(plan)
        open_files = raise_open_files_limit()
        if plan.tokenize_url is not None:
            plan = replace(plan, vocabulary=await _vocabulary(plan, plan.tokenize_url))
        if plan.vocabulary.book_ids and not plan.vocabulary.book and not plan.token_ids:
            screen.print("warning: words do not add up to texts in this tokenizer: prompts are made of single words")
        async with NullServer(plan.requests) as null_server:
            template_tokens = await _prepare(plan, target, screen)
            calibration = await _calibrate(null_server, plan, screen)
        claim(plan.directory)
        (plan.directory / SCHEDULE).write_bytes(plan.schedule)
        warmed = await _warm_up(plan, target, template_tokens, stop, screen)
        sent = await _send(plan, template_tokens, stop, halt or asyncio.Event(), screen)
    finally:
        await plan.crew.close()
    outcomes = _outcomes(plan, sent.reports)
    stopped = outcomes["unsent"] + outcomes["cancelled"]
    manifest = Manifest(
        run_id=plan.run_id,
        status="interrupted" if stopped else "complete",
        command=plan.command,
        url=plan.url,
        model=plan.model,
        started_unix_ns=sent.started_unix_ns,
        duration_ns=sent.duration_ns,
        schedule=plan.requests.header,
        template_tokens=template_tokens,
        calibration=calibration,
        warm_up=dict(warmed),
        workers=sent.reports,
        scheduled=len(plan.requests),
        outcomes=dict(outcomes),
        host=_host(open_files),
        versions=_versions(),
        files={},
    )
    seal(plan.directory, manifest)
    return plan.directory


def _check_limit(plan: RunRequest) -> None:
    if plan.warm_up < 0:
        raise ValueError(f"--warm-up {plan.warm_up}: expected a number of requests, 0 for none")
    workers, concurrency, limit = len(plan.crew.names), plan.requests.header.concurrency, plan.max_connections
    if concurrency is not None and limit is not None:
        raise ValueError("a closed loop limits its requests itself: drop --max-connections")
    if limit is not None and limit < 1:
        raise ValueError(f"--max-connections {limit}: expected at least 1")
    for name, most in (("--max-connections", limit), ("the closed loop's concurrency", concurrency)):
        if most is not None and most < workers:
            raise ValueError(f"{name} is {most}, less than the {workers} workers: start fewer")


def _chat(plan: RunRequest, target: Target) -> ChatRequests:
    return ChatRequests(
        target,
        model=plan.model,
        run_id=plan.run_id,
        vocabulary=plan.vocabulary,
        token_ids=plan.token_ids,
        api_key=plan.api_key,
    )


async def _vocabulary(plan: RunRequest, url: str) -> Vocabulary:
    """What an engine's tokenizer makes of words and of the book."""
    target = parse_target(url)
    try:
        client = await Client.open(target)
    except OSError as error:
        raise RunError(f"{target.host} cannot be resolved: {error}") from error
    try:
        return await engine_vocabulary(_chat(plan, target), partial(_ask, client))
    except ValueError as error:
        raise RunError(f"{url} does not say what texts are made of at POST /tokenize: {error}") from error
    finally:
        client.close()


async def _prepare(plan: RunRequest, target: Target, screen: Screen) -> int:
    """Asks the target for its model and counts what its chat template adds."""
    try:
        client = await Client.open(target)
    except OSError as error:
        raise RunError(f"{target.host} cannot be resolved: {error}") from error
    try:
        chat = _chat(plan, target)
        await _check_model(client, chat, plan)
        return await _template_tokens(client, chat, screen)
    finally:
        client.close()


async def _calibrate(server: NullServer, plan: RunRequest, screen: Screen) -> Calibration | None:
    """None, with a warning, when it could not be done: the run can be judged without."""
    try:
        found = await calibrate(server, plan.requests, len(plan.crew.names))
    except (OSError, TimeoutError, ValueError) as error:
        screen.print(f"warning: what this client can do could not be measured: {error or 'it took too long'}")
        return None
    if found.busiest_per_s > _MUCH * found.capacity_per_s:
        screen.print(
            f"warning: the busiest second has {found.busiest_per_s:.0f} requests for each worker, which can do"
            f" {found.capacity_per_s:.0f} on a core of its own: start more with --workers"
        )
    return found


async def _warm_up(
    plan: RunRequest, target: Target, template_tokens: int, stop: asyncio.Event, screen: Screen
) -> Counter[str]:
    """Outcomes of the requests before the run; one that fails is told of and kept, and the run goes on."""
    if not plan.warm_up:
        return Counter()
    run_id = f"{plan.run_id}-warm-up"
    chat = _chat(replace(plan, run_id=run_id), target)
    chat.template_tokens = template_tokens
    client = await Client.open(target)
    try:
        records = await warm_up(
            client,
            chat.streamed,
            warm_up_requests(plan.requests, plan.warm_up, plan.run_id),
            run_id=run_id,
            at_once=plan.requests.header.concurrency or plan.max_connections,
            timeout_s=plan.timeout_s,
            stop=stop,
        )
    finally:
        client.close()
    (plan.directory / WARM_UP).write_bytes(b"".join(map(encode_line, records)))
    outcomes = Counter[str](record.outcome for record in records)
    failed = {name: count for name, count in outcomes.items() if name != "ok"}
    if failed:
        told = ", ".join(f"{count} {name}" for name, count in failed.items())
        screen.print(f"warning: of {plan.warm_up} requests of the warm-up, {told}: see {WARM_UP}")
    return outcomes


class _Sent(NamedTuple):
    """What came of the sending."""

    reports: list[WorkerReport]
    started_unix_ns: int
    duration_ns: int


async def _send(
    plan: RunRequest, template_tokens: int, stop: asyncio.Event, halt: asyncio.Event, screen: Screen
) -> _Sent:
    crew, requests = plan.crew, plan.requests
    workers = len(crew.names)
    origin_ns = time.monotonic_ns() + round(crew.lead_s(len(requests)) * 1e9)
    started_unix_ns = time.time_ns() + (origin_ns - time.monotonic_ns())
    board = Board(scheduled=len(requests), duration_ns=requests.header.duration_ns, origin_ns=origin_ns)
    closed = requests.header.concurrency is not None
    limits = shares_of(requests.header.concurrency if closed else plan.max_connections, workers)
    parts = [part_directory(plan.directory, crew, number) for number in range(workers)]

    def share(number: int) -> Share:
        clock = crew.clocks[number]
        return Share(
            name=crew.names[number],
            url=plan.url,
            model=plan.model,
            run_id=plan.run_id,
            origin_ns=origin_ns + (0 if clock is None else clock.offset_ns),
            template_tokens=template_tokens,
            timeout_s=plan.timeout_s,
            grace_s=plan.grace_s,
            in_flight=limits[number],
            closed=closed,
            vocabulary=plan.vocabulary,
            token_ids=plan.token_ids,
            directory=str(parts[number]),
            api_key=plan.api_key,
        )

    async def work(number: int) -> WorkerReport:
        name = crew.names[number]
        return await crew.work(
            number, share(number), requests[number::workers], stop, halt, lambda tally: board.note(name, tally)
        )

    showing = asyncio.create_task(screen.run(board))
    working = [asyncio.create_task(work(number)) for number in range(workers)]
    try:
        reports = await asyncio.gather(*working)
    finally:
        # Where one worker could not go on, the others must not send behind a run that has ended.
        for task in (*working, showing):
            task.cancel()
        await asyncio.wait([*working, showing])
    duration_ns = time.monotonic_ns() - origin_ns
    if crew.apart:
        gather(plan.directory, parts)
    return _Sent(list(reports), started_unix_ns, duration_ns)


def _outcomes(plan: RunRequest, reports: list[WorkerReport]) -> Counter[str]:
    if any(report.lost is not None for report in reports):
        return Counter(record.outcome for record in read_requests(plan.directory))
    return sum((Counter(report.outcomes) for report in reports), Counter())


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


async def _template_tokens(client: Client, chat: ChatRequests, screen: Screen) -> int:
    """Prompt tokens that the chat template adds: those of a known text, less its words.

    0, with a warning, when the engine reports no usage or counts fewer tokens than words: then prompts are
    as long as planned only up to the template.
    """
    exchange = await _ask(client, chat.calibration(_CALIBRATION_WORDS, _CALIBRATION_SEED))
    if exchange.outcome != "ok" or exchange.status != 200:
        raise RunError(f"the calibration request failed: {exchange.error or _status(exchange)}")
    usage = usage_of(exchange.body())
    if usage is None or usage.prompt_tokens < _CALIBRATION_WORDS:
        found = "no usage" if usage is None else f"{usage.prompt_tokens} tokens for {_CALIBRATION_WORDS} words"
        screen.print(f"warning: the engine reports {found}: the chat template is taken to add 0 tokens")
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
