"""What a finished exchange becomes: one request record and one record of its reads.

Runs after the response has ended, on stamps taken when its bytes arrived, in slices short enough not to
delay the reads of other responses. An answer counts as `ok` only when it is a whole event stream without an
error in it; token counts come from the engine's usage and are never guessed.
"""

from __future__ import annotations

import asyncio

from loadgen.drive.body import BodyReads
from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Exchange
from protocol.openai import answer_of
from protocol.records import ChunkRecord, RequestErrorKind, RequestOutcome, RequestRecord, ScheduledRequest
from protocol.stream import StreamResult

_SLICE_BYTES = 5 * 1024
"""Bytes looked at before other work gets its turn: some 0.05 ms."""

_ERROR_CHARS = 300

REFUSALS = (429, 503)
"""Too many requests, and overloaded: the server is well and wants less."""


async def record(
    request: ScheduledRequest, outgoing: Outgoing, exchange: Exchange, *, origin_ns: int
) -> tuple[RequestRecord, ChunkRecord | None]:
    """Records of an ended exchange; offsets count from `origin_ns`. No chunk record without body bytes."""
    body = BodyReads()
    begun = pending = 0
    for position, data in enumerate(exchange.reads):
        pending += len(data)
        if pending >= _SLICE_BYTES:
            body.feed(exchange.read_ns[begun : position + 1], exchange.reads[begun : position + 1])
            begun, pending = position + 1, 0
            await asyncio.sleep(0)
    body.feed(exchange.read_ns[begun:], exchange.reads[begun:])
    return (
        _request_record(request, outgoing, exchange, body, origin_ns),
        _chunk_record(request.index, exchange, body, origin_ns),
    )


def unsent(request: ScheduledRequest, run_id: str) -> RequestRecord:
    """The record of a request that an interrupted run never sent."""
    return RequestRecord(
        index=request.index,
        request_id=f"{run_id}-{request.index}",
        trace_id="",
        arm=None,
        intended_ns=request.at_ns,
        sent_ns=None,
        headers_ns=None,
        first_token_ns=None,
        last_token_ns=None,
        end_ns=None,
        status=None,
        outcome="unsent",
        error="the run was stopped",
        prompt_tokens_planned=request.prompt_tokens,
        output_tokens_planned=request.output_tokens,
        prompt_tokens=None,
        output_tokens=None,
        cached_tokens=None,
        finish_reason=None,
        new_connection=False,
        events=0,
        response_bytes=0,
        body_sha256=None,
    )


def _request_record(
    request: ScheduledRequest, outgoing: Outgoing, exchange: Exchange, body: BodyReads, origin_ns: int
) -> RequestRecord:
    result = body.result()
    usage = result.usage
    outcome, error, error_kind = _judge(exchange, result)
    arm = exchange.header(b"x-weir-pool")

    def offset(stamp_ns: int | None) -> int | None:
        return None if stamp_ns is None else stamp_ns - origin_ns

    return RequestRecord(
        index=request.index,
        request_id=outgoing.request_id,
        trace_id=outgoing.trace_id,
        arm=None if arm is None else arm.decode("latin-1"),
        intended_ns=request.at_ns,
        dequeued_ns=offset(exchange.dequeued_ns),
        connected_ns=offset(exchange.connected_ns),
        secured_ns=offset(exchange.secured_ns),
        sent_ns=offset(exchange.sent_ns),
        first_byte_ns=offset(exchange.first_byte_ns),
        headers_ns=offset(exchange.headers_ns),
        first_token_ns=offset(body.first_token_ns),
        first_answer_ns=offset(body.first_answer_ns),
        last_token_ns=offset(body.last_token_ns),
        end_ns=offset(exchange.end_ns),
        status=exchange.status,
        outcome=outcome,
        error=error,
        error_kind=error_kind,
        attempts=exchange.attempts,
        retry_after_s=_retry_after_s(exchange),
        prompt_tokens_planned=request.prompt_tokens,
        output_tokens_planned=request.output_tokens,
        prompt_tokens=None if usage is None else usage.prompt_tokens,
        output_tokens=None if usage is None else usage.completion_tokens,
        cached_tokens=None if usage is None else usage.cached_tokens,
        finish_reason=result.finish_reason,
        new_connection=exchange.new_connection,
        events=result.events,
        response_bytes=sum(map(len, exchange.reads)),
        body_sha256=body.sha256(),
    )


def _chunk_record(index: int, exchange: Exchange, body: BodyReads, origin_ns: int) -> ChunkRecord | None:
    if not exchange.reads:
        return None
    return ChunkRecord(
        index=index,
        t_ns=[stamp_ns - origin_ns for stamp_ns in exchange.read_ns],
        bytes=list(map(len, exchange.reads)),
        content_events=body.content_events,
    )


_Verdict = tuple[RequestOutcome, str | None, RequestErrorKind | None]


def _judge(exchange: Exchange, result: StreamResult) -> _Verdict:
    """What the exchange was worth, why it was not `ok`, and where it failed."""
    assert exchange.outcome is not None
    if exchange.outcome != "ok":
        return exchange.outcome, exchange.error, exchange.error_kind
    if exchange.status != 200:
        outcome: RequestOutcome = "refused" if exchange.status in REFUSALS else "error"
        return outcome, f"http {exchange.status}: {_message(exchange.body())}", "http"
    if result.error is not None:
        outcome = "refused" if result.error.get("code") in REFUSALS else "error"
        return outcome, f"error event: {str(result.error.get('message', result.error))[:_ERROR_CHARS]}", "in_band"
    if not (exchange.header(b"content-type") or b"").startswith(b"text/event-stream"):
        return "error", f"not an event stream: {_message(exchange.body())}", "not_a_stream"
    if not result.complete:
        return "truncated", "the stream ended without finish_reason or [DONE]", "incomplete"
    return "ok", None, None


def _retry_after_s(exchange: Exchange) -> float | None:
    """Seconds; a date, which no engine sends, says nothing."""
    value = exchange.header(b"retry-after")
    return float(value) if value is not None and value.isdigit() else None


def _message(body: bytes) -> str:
    error = answer_of(body).error
    text = str(error["message"]) if error and "message" in error else body.decode(errors="replace")
    return text[:_ERROR_CHARS]
