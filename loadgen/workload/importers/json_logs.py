"""Logs with a JSON object a line: Mooncake's traces, OpenAI-style logs, the gateway's own records."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from loadgen.workload.importers.rows import (
    LATEST_S,
    NS_PER_S,
    BadRow,
    LeftOut,
    Row,
    Rows,
    Segment,
    calendar_ns,
    each,
    milliseconds_ns,
    open_log,
    shown,
    tokens,
)
from protocol.records import GatewayRecord

MOONCAKE_BLOCK_TOKENS = 512
"""What one of `hash_ids` stands for (FAST25-release/README.md of Mooncake)."""

OWN_TEXT = 2**61
"""Ids from here on are for text that a log gives without one: no hash of a log reaches them."""

Object = dict[str, object]

_TIMES = ("timestamp", "start_time", "startTime", "request_time", "created_at", "created", "time")
_BODIES = ("response", "body", "result")
_PROMPT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")
_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d*)?(Z|[+-]\d\d:?\d\d)?")
_LATEST_NS = LATEST_S * NS_PER_S

_decoder = msgspec.json.Decoder(dict[str, object])
_record_decoder = msgspec.json.Decoder(GatewayRecord)


def lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not blank, and where it is."""
    with open_log(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield f"{path}:{number}", line


def parsed(line: str | msgspec.Raw, place: str) -> Object:
    """Raises BadRow for a line that is no JSON object."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRow(f"{place}: not a JSON object: {error}") from None


def read_mooncake(path: Path) -> Rows:
    """`timestamp` in ms, `input_length`, `output_length`, and `hash_ids`, one for each block of 512 prompt tokens.

    Equal hashes are equal text, so prompts share what they shared; the last block may be a part of one. AIPerf's
    conversations look alike but leave out what was said before: they are refused here.
    """
    return each(lines(path), _mooncake)


def _mooncake(line: str, place: str) -> Rows:
    row = parsed(line, place)
    if row.get("session_id") is not None:
        raise BadRow(f"{place}: session_id {shown(row['session_id'])}: a conversation of AIPerf: give --format aiperf")
    prompt = tokens(row.get("input_length"), "input_length", place)
    yield Row(
        milliseconds_ns(row.get("timestamp"), "timestamp", place),
        prompt,
        tokens(row.get("output_length"), "output_length", place),
        None,
        blocks(row.get("hash_ids"), prompt, place),
    )


def blocks(hashes: object, prompt_tokens: int, place: str) -> tuple[Segment, ...]:
    """What `hash_ids` say of a prompt; nothing when they are None. Raises BadRow."""
    if hashes is None or prompt_tokens == 0:
        return ()
    size = MOONCAKE_BLOCK_TOKENS
    if not isinstance(hashes, list) or not all(isinstance(one, int) and 0 <= one < OWN_TEXT for one in hashes):
        raise BadRow(f"{place}: hash_ids {shown(hashes)}: expected a list of numbers from 0 to 2^61 - 1")
    wanted = -(-prompt_tokens // size)
    if len(hashes) != wanted:
        raise BadRow(
            f"{place}: hash_ids has {len(hashes)} entries: expected {wanted}, one for each {size} of {prompt_tokens}"
            " prompt tokens"
        )
    return tuple((one, min(size, prompt_tokens - size * number)) for number, one in enumerate(hashes))


def read_openai(path: Path) -> Rows:
    """Requests with their `usage`, as proxies and batch jobs log them: on the line itself, or in `response` or `body`.

    The time is the first of `timestamp`, `start_time`, `created_at`, `created` and their like that is found, outermost
    first, as seconds, milliseconds or nanoseconds since 1970 or ISO 8601. Chat Completions, Completions, Responses and
    Messages name their counts differently; all are understood. What has no usage, or failed, is left out.
    """
    return each(lines(path), _openai)


def _openai(line: str, place: str) -> Rows:
    levels = list(_levels(parsed(line, place)))
    usage = next((level["usage"] for level in levels if isinstance(level.get("usage"), dict)), None)
    if not isinstance(usage, dict):
        yield LeftOut("failed" if any(level.get("error") for level in levels) else "no usage")
        return
    yield Row(
        _time_ns(levels, place),
        tokens(_first(usage, _PROMPT), _PROMPT[0], place),
        tokens(_first(usage, _OUTPUT), _OUTPUT[0], place),
        next((str(level["session_id"]) for level in levels if level.get("session_id")), None),
    )


def _levels(row: Object) -> Iterator[Object]:
    """The line, and what it wraps."""
    yield row
    for name in _BODIES:
        inner = row.get(name)
        if isinstance(inner, dict):
            yield from _levels(inner)


def _first(of: Object, names: tuple[str, ...]) -> object:
    return next((of[name] for name in names if name in of), None)


def _time_ns(levels: list[Object], place: str) -> int:
    for level in levels:
        for name in _TIMES:
            if level.get(name) is not None:
                return _since_1970_ns(level[name], name, place)
    raise BadRow(f"{place}: no time: expected one of {', '.join(_TIMES)}")


def _since_1970_ns(value: object, name: str, place: str) -> int:
    """By its size a number is seconds (until the year 2242), milliseconds, microseconds or nanoseconds."""
    if isinstance(value, str) and (match := _ISO.fullmatch(value)):
        with suppress(ValueError):
            return calendar_ns(match[1], match[2], match[3] or "+00:00")
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _LATEST_NS:
        factor = next(factor for factor in (10**9, 10**6, 10**3, 1) if value * factor < _LATEST_NS)
        return value * factor if isinstance(value, int) else round(value * factor)
    raise BadRow(f"{place}: {name} {shown(value)}: expected seconds since 1970 or ISO 8601")


def read_weir(path: Path) -> Rows:
    """The gateway's own records: what clients offered, at the time when it arrived.

    Tries of one request are one row, whatever came of it, as long as an engine reported its usage. Left out are
    requests that the gateway refused, and those cut before their usage came, of which nobody knows the prompt's length:
    what is offered is as much more as they are.
    """
    return each(lines(path), _weir)


def _weir(line: str, place: str) -> Rows:
    try:
        record = _record_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRow(f"{place}: not a GatewayRecord: {error}") from None
    if record.prompt_tokens is not None and record.completion_tokens is not None:
        yield Row(record.received_unix_ns, record.prompt_tokens, record.completion_tokens)
    else:
        yield LeftOut(_why_uncounted(record))


def _why_uncounted(record: GatewayRecord) -> str:
    if not record.attempts:
        return "refused by the gateway"
    return "cut before its usage was reported" if record.usage_partial else "no usage"
