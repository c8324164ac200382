import asyncio
import hashlib

import pytest

from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Exchange
from loadgen.drive.evidence import record, unsent
from protocol.records import ScheduledRequest
from tests.scripted_engine import DONE, token

REQUEST = ScheduledRequest(index=4, at_ns=1_000, prompt_tokens=50, output_tokens=3, segments=((3, 50),))
OUTGOING = Outgoing(request_id="r-4", trace_id="ab" * 16, wire=b"")
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
USAGE = (
    b'data: {"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":16}}}\n\n'
)
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
ORIGIN_NS = 5_000_000


def ended(*reads, outcome="ok", error=None, status=200, headers=STREAM, attempts=1):
    """An exchange whose k-th read arrived k ms after its origin, ended."""
    exchange = Exchange(b"")
    exchange.sent_ns = ORIGIN_NS + 1_100
    exchange.headers_ns = ORIGIN_NS + 2_000
    exchange.status, exchange.headers, exchange.attempts = status, headers, attempts
    exchange.first_byte_ns = ORIGIN_NS + 1_500
    exchange.read_ns = [ORIGIN_NS + k * 1_000_000 for k in range(1, len(reads) + 1)]
    exchange.reads = list(reads)
    exchange.end(outcome, error)
    exchange.end_ns = ORIGIN_NS + 99_000_000
    return exchange


async def examine(exchange):
    return await record(REQUEST, OUTGOING, exchange, origin_ns=ORIGIN_NS)


async def test_a_whole_stream_becomes_its_records():
    reads = [ROLE, token("a") + token(" b"), token(" c", "length") + USAGE + DONE]
    request, chunks = await examine(ended(*reads, headers=[*STREAM, (b"x-weir-pool", b"vllm")]))
    assert (request.outcome, request.error, request.arm, request.status) == ("ok", None, "vllm", 200)
    assert (request.index, request.request_id, request.trace_id) == (4, "r-4", "ab" * 16)
    assert (request.intended_ns, request.sent_ns, request.headers_ns) == (1_000, 1_100, 2_000)
    assert (request.first_token_ns, request.last_token_ns, request.end_ns) == (2_000_000, 3_000_000, 99_000_000)
    assert (request.prompt_tokens_planned, request.output_tokens_planned) == (50, 3)
    assert (request.prompt_tokens, request.output_tokens, request.cached_tokens) == (50, 3, 16)
    assert (request.finish_reason, request.events) == ("length", 6)
    assert request.response_bytes == sum(map(len, reads))
    assert request.body_sha256 == hashlib.sha256(b"".join(reads)).hexdigest()
    assert chunks.t_ns == [1_000_000, 2_000_000, 3_000_000]
    assert chunks.bytes == [len(data) for data in reads]
    assert chunks.content_events == [0, 2, 1]


async def test_a_token_counts_for_the_read_that_completes_its_event():
    event = token("a")
    _, chunks = await examine(ended(event[:-1], event[-1:]))
    assert chunks.content_events == [0, 1]


async def test_tokens_come_from_usage_and_are_never_counted():
    request, _ = await examine(ended(token("a"), token("b", "stop"), DONE))
    assert (request.outcome, request.output_tokens, request.prompt_tokens) == ("ok", None, None)


async def test_no_body_is_no_chunk_record():
    request, chunks = await examine(ended(outcome="timeout", error="late", status=None))
    assert chunks is None
    assert (request.outcome, request.error, request.body_sha256, request.first_token_ns) == (
        "timeout",
        "late",
        None,
        None,
    )


def in_band(code):
    return b'data: {"error":{"message":"died","code":%d}}\n\n' % code


@pytest.mark.parametrize(
    ("exchange", "outcome", "error", "kind"),
    [
        (ended(b'{"error":{"message":"busy"}}', status=503, headers=[]), "refused", "http 503: busy", "http"),
        (ended(b'{"error":{"message":"slow"}}', status=429, headers=[]), "refused", "http 429: slow", "http"),
        (ended(b"<html>bad gateway", status=502, headers=[]), "error", "http 502: <html>bad gateway", "http"),
        (ended(token("a"), in_band(500), DONE), "error", "error event: died", "in_band"),
        (ended(in_band(503), DONE), "refused", "error event: died", "in_band"),
        (ended(b'{"choices":[]}', headers=[]), "error", 'not an event stream: {"choices":[]}', "not_a_stream"),
        (ended(token("a")), "truncated", "the stream ended without finish_reason or [DONE]", "incomplete"),
        (
            ended(token("a", "stop") + b"data: {"),
            "truncated",
            "the stream ended without finish_reason or [DONE]",
            "incomplete",
        ),
        (ended(token("a"), outcome="truncated", error="cut"), "truncated", "cut", None),
        (ended(DONE), "ok", None, None),
    ],
)
async def test_only_a_whole_stream_without_an_error_is_ok(exchange, outcome, error, kind):
    request, _ = await examine(exchange)
    assert (request.outcome, request.error, request.error_kind) == (outcome, error, kind)


async def test_a_second_attempt_and_a_wish_to_come_back_later_are_kept():
    refused = ended(b"", status=429, headers=[(b"retry-after", b"7")], attempts=2)
    request, _ = await examine(refused)
    assert (request.attempts, request.retry_after_s) == (2, 7.0)
    dated, _ = await examine(ended(b"", status=503, headers=[(b"retry-after", b"Fri, 31 Dec 1999 23:59:59 GMT")]))
    assert (dated.attempts, dated.retry_after_s) == (1, None)


REASONING = (b"reasoning", b"reasoning_content")


@pytest.mark.parametrize("key", REASONING)
async def test_the_first_token_and_the_first_of_the_answer_are_told_apart(key):
    """The first byte, the first thought and the first word, each with its own time."""
    thought = b'data: {"choices":[{"delta":{"%b":"hm"}}]}\n\n' % key
    request, _ = await examine(ended(ROLE, thought, thought, token("a"), token("b", "stop") + DONE))
    assert (request.first_byte_ns, request.first_token_ns, request.first_answer_ns) == (1_500, 2_000_000, 4_000_000)
    assert request.last_token_ns == 5_000_000


async def test_an_answer_that_is_a_tool_call_has_begun():
    call = b'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}\n\n'
    request, _ = await examine(ended(call, DONE))
    assert request.first_answer_ns == request.first_token_ns == 1_000_000


async def test_a_long_error_is_shortened():
    request, _ = await examine(ended(b"x" * 5000, status=500, headers=[]))
    assert request.error == "http 500: " + "x" * 300


async def test_a_long_response_is_examined_in_slices():
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count_turns())
    reads = [token("word")] * 500
    await examine(ended(*reads))
    counting.cancel()
    assert turns >= sum(map(len, reads)) // (6 * 1024)


def test_an_unsent_request_is_recorded_as_such():
    request = unsent(REQUEST, "r")
    assert (request.outcome, request.request_id, request.intended_ns) == ("unsent", "r-4", 1_000)
    assert (request.sent_ns, request.end_ns, request.response_bytes) == (None, None, 0)
