"""Handles a generation request from its body to the last byte of its answer.

It hides how tokens become events and how a client that leaves is noticed: `receive` is watched from the
moment the body is complete, so a request is dropped while queued, prefilling or decoding alike. Shapes are
the wire's, pace is the step loop's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

from simulator import intake
from simulator.answer import DONE, Choice, Head, Stream, Usage
from simulator.deployment import Deployment
from simulator.exchange import JSON, SSE, Exchange, Header
from simulator.intake import Generation, Rejected
from simulator.step_loop import Job, Progress
from simulator.writing import write

_POLL_S = 4.0
"""SGLANG_REQUEST_STATE_WAIT_TIMEOUT: how often SGLang looks whether the client of a non-stream is there."""
_POLL_TOKENS = 50
"""SGLANG_FORCE_STREAM_INTERVAL: and after how many tokens."""


async def chat(deployment: Deployment, exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    await _generate(deployment, exchange, chat=True)


async def completions(deployment: Deployment, exchange: Exchange) -> None:
    """POST /v1/completions."""
    await _generate(deployment, exchange, chat=False)


async def _generate(deployment: Deployment, exchange: Exchange, *, chat: bool) -> None:
    raw = await exchange.body()
    head: Head | None = None
    try:
        with deployment.generation():
            generation = intake.read(
                raw,
                exchange.header(b"content-type") or "",
                chat=chat,
                rules=deployment.wire.RULES,
                model=deployment.model,
                max_model_tokens=deployment.limits.max_model_tokens,
            )
            head = _head(deployment, generation, exchange)
            await _answer(deployment, exchange, generation, head)
    except Rejected as rejected:
        status, body = deployment.wire.rejection(rejected)
        await exchange.reply(status, body, JSON, *_request_id(deployment, exchange, head))
    finally:
        record = exchange.record(head.ids[0] if head else None)
        if deployment.recorder and record:
            deployment.recorder.add(record)


def _head(deployment: Deployment, generation: Generation, exchange: Exchange) -> Head:
    choices = len(generation.prompts) * generation.n
    return Head(
        ids=deployment.wire.answer_ids(generation, exchange.header(b"x-request-id"), choices),
        chat=generation.chat,
        model=generation.model,
        created_s=int(deployment.unix_s()),
        fingerprint=deployment.fingerprint,
        include_usage=generation.include_usage,
    )


def _request_id(deployment: Deployment, exchange: Exchange, head: Head | None) -> list[Header]:
    """vLLM's --enable-request-id-headers: the client's id back, or one of our own."""
    if not deployment.options.request_id_headers or head is None:
        return []
    own = head.ids[0].partition("-")[2]
    return [(b"x-request-id", (exchange.header(b"x-request-id") or own).encode("latin-1"))]


async def _answer(deployment: Deployment, exchange: Exchange, generation: Generation, head: Head) -> None:
    refusal = _refusal(deployment, head)
    if refusal is not None and generation.stream and refusal.why == "queue_full":
        await _refuse_in_stream(deployment, exchange, head, refusal)
        return
    if refusal is not None:
        raise refusal
    job = _job(deployment, generation, head)
    deployment.answer_ids.update(head.ids)
    deployment.steps.launch(job)
    watch = asyncio.create_task(_watch(deployment, exchange, job))
    try:
        if generation.stream:
            await _send_stream(deployment, exchange, generation, head, job)
        else:
            await _send_whole(deployment, exchange, generation, head, job)
    finally:
        watch.cancel()
        deployment.steps.abort(job)
        deployment.answer_ids.difference_update(head.ids)


def _refusal(deployment: Deployment, head: Head) -> Rejected | None:
    """Why the engine does not take a valid request now."""
    if deployment.told_to_stop.is_set() and deployment.options.kind == "vllm":
        return Rejected("shut_down")
    if deployment.options.kind == "sglang" and not deployment.answer_ids.isdisjoint(head.ids):
        return Rejected("duplicate_id", request_id=head.ids[0])
    if not deployment.steps.engine.has_room(len(head.ids)):
        deployment.meters.refused()
        return Rejected("queue_full")
    return None


async def _refuse_in_stream(deployment: Deployment, exchange: Exchange, head: Head, refusal: Rejected) -> None:
    """Both kinds have begun the stream before their scheduler refuses."""
    await exchange.start(200, SSE, *_request_id(deployment, exchange, head))
    for event in (deployment.wire.stream_rejection(refusal), DONE):
        await exchange.write(event)
    await exchange.end()


def _job(deployment: Deployment, generation: Generation, head: Head) -> Job:
    """A job whose engine ids are `<answer id>#<number>.<choice>`, unique even if the client's ids are not."""
    deployment.jobs += 1
    drafts = [
        write(generation, f"{answer_id}#{deployment.jobs}.{index}", index, deployment.options.seed)
        for index, answer_id in enumerate(head.ids)
    ]
    wake_every = sys.maxsize
    if generation.stream:
        wake_every = 1
    elif deployment.wire.POLLS_DISCONNECT:
        wake_every = _POLL_TOKENS
    return Job(drafts, streaming=generation.stream, wake_every=wake_every)


async def _watch(deployment: Deployment, exchange: Exchange, job: Job) -> None:
    await exchange.client_leaves()
    job.client_gone = True
    if job.streaming or not deployment.wire.POLLS_DISCONNECT:
        deployment.steps.abort(job)


async def _send_stream(
    deployment: Deployment, exchange: Exchange, generation: Generation, head: Head, job: Job
) -> None:
    stream = deployment.wire.stream(head)
    headers = _request_id(deployment, exchange, head)
    if not deployment.wire.HEADERS_WITH_FIRST_TOKEN:
        await exchange.start(200, SSE, *headers)
    while not all(choice.closed for choice in job.choices):
        await job.news()
        if job.client_gone:
            return
        if exchange.status is None:
            await exchange.start(200, SSE, *headers)
        for choice in job.choices:
            for event in _events(deployment, generation, stream, choice):
                await exchange.write(event)
    for event in stream.ending(_usage(deployment, generation, job.choices)):
        await exchange.write(event)
    if not job.client_gone:
        await exchange.end()


def _events(deployment: Deployment, generation: Generation, stream: Stream, choice: Progress) -> Iterable[bytes]:
    """What a choice has to say since last time."""
    if choice.closed or not (choice.produced or choice.end):
        return []
    events: list[bytes] = []
    if not choice.opened:
        choice.opened = True
        events += stream.opening(choice.index, _running_usage(deployment, generation, choice))
    text = choice.take()
    usage = _running_usage(deployment, generation, choice)
    if choice.end is not None:
        choice.closed = True
        events += stream.closing(choice.index, text, choice.end, choice.stop, usage)
    elif text:
        events.append(stream.delta(choice.index, text, usage))
    return events


async def _send_whole(deployment: Deployment, exchange: Exchange, generation: Generation, head: Head, job: Job) -> None:
    while not job.over:
        try:
            async with asyncio.timeout(_POLL_S if deployment.wire.POLLS_DISCONNECT else None):
                await job.news()
        except TimeoutError:
            pass  # Time to look whether the client is there.
        if job.client_gone:
            return
    choices = [
        Choice(
            text=choice.take(),
            tokens=choice.sent,
            reason=choice.end or "abort",
            stop=choice.stop,
        )
        for choice in job.choices
    ]
    body = deployment.wire.body(head, choices, _usage(deployment, generation, job.choices))
    await exchange.reply(200, body, JSON, *_request_id(deployment, exchange, head))


def _running_usage(deployment: Deployment, generation: Generation, choice: Progress) -> Usage | None:
    """Tokens sent of one choice so far, for `continuous_usage_stats`."""
    if not generation.continuous_usage:
        return None
    return Usage(
        prompt_tokens=len(choice.draft.request.prompt),
        completion_tokens=choice.sent,
        cached_tokens=choice.cached_tokens if deployment.options.report_cached_tokens else None,
    )


def _usage(deployment: Deployment, generation: Generation, choices: list[Progress]) -> Usage:
    """Of the whole answer: every prompt counts once, every choice's output."""
    first_of_prompt = choices[:: generation.n]
    cached = sum(choice.cached_tokens for choice in first_of_prompt)
    return Usage(
        prompt_tokens=sum(map(len, generation.prompts)),
        completion_tokens=sum(choice.sent for choice in choices),
        cached_tokens=cached if deployment.options.report_cached_tokens else None,
    )
