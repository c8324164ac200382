"""The record formats that tools exchange as JSON lines, with their versions.

Each type is one line of one file; `docs/formats.md` describes them for readers of the files. Times whose
name ends in `_unix_ns` are wall-clock; every other `_ns` is an offset on one monotonic clock, from the
origin that its field states. A reader ignores fields it does not know; a field is never renamed or given
another meaning within one schema version.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

PHASES = ("receive", "admit", "route", "connect", "send", "first_byte", "relay", "finish")
"""The eight steps of a request in the gateway, in order (`docs/life-of-a-request.md`)."""

GatewayOutcome = Literal["ok", "error", "truncated", "client_gone"]
RequestOutcome = Literal["ok", "refused", "error", "truncated", "timeout", "cancelled", "unsent"]
"""`refused`: 429 or 503, as the status or, after a 200, in the stream."""
RequestErrorKind = Literal["connect", "connection", "http", "in_band", "not_a_stream", "incomplete"]
"""Where an answer failed: no connection, one that broke, the status, an error event, another kind of body, no end."""


class GatewayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway knows of one finished request. Offsets count from the start of `receive`."""

    schema: Literal["weir.gateway-record/1"] = "weir.gateway-record/1"
    request_id: str
    trace_id: str
    span_id: str
    """The span the engine's own span is a child of: the attempt that answered."""
    parent_span_id: str | None
    received_unix_ns: int
    path: str
    model: str | None
    stream: bool
    route: str | None
    pool: str | None
    endpoint: str | None
    attempts: int
    status: int | None
    """Status sent to the client; None when it left before one was sent."""
    outcome: GatewayOutcome
    error_source: Literal["client", "gateway", "upstream"] | None
    error_kind: str | None
    request_bytes: int
    response_bytes: int
    """Body bytes relayed to the client, without HTTP framing."""
    marks_ns: dict[str, int]
    """Start of each phase that was entered, and `end`."""
    first_token_ns: int | None
    chunks: int
    """Reads relayed to the client; a chunk is not a token."""
    gap_max_ns: int | None
    """Longest time between two relayed chunks."""
    events: int
    """SSE events that carried data; 0 for a response that is not a stream."""
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    usage_partial: bool = False
    """The answer was cut before the engine reported its usage: `completion_tokens` counts the events relayed."""
    continuations: int = 0
    """How often another endpoint went on with the stream after its engine had failed."""
    finish_reason: str | None


class ArrivalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One result of the self-test of a schedule's arrivals: a measured value and the band it has to lie in."""

    name: str
    value: float
    low: float
    high: float
    judged: bool
    """False where there was too little to tell, or where the times are those of a log and may be as they are."""

    @property
    def passed(self) -> bool:
        return not self.judged or self.low <= self.value <= self.high


class ScheduleHeader(msgspec.Struct, frozen=True, kw_only=True):
    """In the metadata of a schedule file: what it was made from, enough to make it again."""

    schema: Literal["weir.schedule/2"] = "weir.schedule/2"
    source: str
    """Name of the workload or trace, with its slice."""
    source_sha256: str
    arrivals: str = "own"
    """Family and parameters of the times (`gamma:rate=5,cv=2`), or `own`: the source's own."""
    concurrency: int | None = None
    """Of a closed loop, in which a request is sent when another has ended; None for an open loop."""
    seed: int
    text_seed: int = 0
    """Two schedules have text in common only when theirs are equal."""
    requests: int
    duration_ns: int
    """Of an open loop; 0 for a closed one."""
    raised: int = 0
    """Requests of 0 tokens in or out, which the schedule has as 1."""
    self_test: tuple[ArrivalCheck, ...] = ()


class ScheduledRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a schedule: when, how much in, how much out. `at_ns` counts from the start of the run."""

    index: int
    at_ns: int
    """0 for every request of a closed loop."""
    prompt_tokens: int
    output_tokens: int
    session: int = -1
    """Requests of one conversation have the same number; -1 for a request of its own."""
    segments: tuple[tuple[int, int], ...]
    """Id and tokens of each piece of the prompt, in order; equal pieces are equal text wherever they are."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the load generator saw of one scheduled request. Offsets count from the start of the run."""

    schema: Literal["weir.request-record/1"] = "weir.request-record/1"
    index: int
    request_id: str
    trace_id: str
    arm: str | None
    """Pool that answered, from the `x-weir-pool` response header; None when nothing said so."""
    intended_ns: int
    dequeued_ns: int | None = None
    """When the client took the request up; later than intended only by its own delay, or held back by its limit."""
    connected_ns: int | None = None
    """When the TCP connection opened for it was there; None when first sent on a kept-alive one."""
    secured_ns: int | None = None
    """When that connection's TLS handshake was done; None without TLS."""
    sent_ns: int | None
    """When the first byte of the request was handed to the socket; None when it never was."""
    first_byte_ns: int | None = None
    """The first byte of the response, its head included."""
    headers_ns: int | None
    """The whole response head."""
    first_token_ns: int | None
    """The first model output, reasoning included."""
    first_answer_ns: int | None = None
    """The first text or tool-call arguments of the answer, reasoning left out."""
    last_token_ns: int | None
    end_ns: int | None
    status: int | None
    outcome: RequestOutcome
    error: str | None
    error_kind: RequestErrorKind | None = None
    """None unless the outcome is `refused`, `error` or `truncated`."""
    attempts: int = 1
    """2 when it was written again because a kept-alive connection had died; nothing else is ever tried again."""
    retry_after_s: float | None = None
    """What a refusal's `Retry-After` asked for, in seconds."""
    client_stall_ns: int = 0
    """The longest stall of the client itself, of those over 5 ms, while the request was under way."""
    prompt_tokens_planned: int
    output_tokens_planned: int
    prompt_tokens: int | None
    output_tokens: int | None
    cached_tokens: int | None
    finish_reason: str | None
    new_connection: bool
    events: int
    response_bytes: int
    body_sha256: str | None
    """Of the response body without HTTP framing; None when no body byte arrived."""


class ChunkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Every read of one response body: equally long columns, offsets from the start of the run."""

    schema: Literal["weir.chunk-record/1"] = "weir.chunk-record/1"
    index: int
    t_ns: list[int]
    bytes: list[int]
    content_events: list[int]
    """How many SSE events with token text were completed by each read."""


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as a stand-in engine wrote it: body bytes without HTTP framing, and their SHA-256 (hex)."""

    schema: Literal["weir.stream-record/1"] = "weir.stream-record/1"
    trace_id: str | None
    """From the request's `traceparent`; None without a valid one."""
    request_id: str | None
    """The answer's own id; None for a request that was refused before it got one."""
    path: str
    status: int
    bytes: int
    sha256: str
    completed: bool
    """The whole body was written while the client was there."""


class FileDigest(msgspec.Struct, frozen=True, kw_only=True):
    sha256: str
    bytes: int


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How well one process of the load generator was while it sent."""

    wall_s: float
    cpu_s: float
    """User and system time of the process."""
    run_delay_s: float
    """How long its thread was ready to run and had to wait for a CPU."""
    other_cpu_s: float
    """CPU time of everything else on the machine, the system under test included when it runs there."""
    loop_lag_p99_ns: int
    """How late the loop came to what was due: about the error of a read's stamp and of a send."""
    loop_lag_max_ns: int
    stalls: int
    """How often the loop came more than 5 ms late."""
    stalled_s: float
    """For how long in all."""
    gc_pauses: int
    gc_total_ns: int
    gc_max_ns: int
    peak_rss_bytes: int


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """One machine's monotonic clock less that of the machine that started the run, as far as it is known."""

    offset_ns: int
    bound_ns: int
    """The true offset lies within this of `offset_ns`."""
    exchanges: int
    """Four-timestamp exchanges it was chosen from."""


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process sent, and how well it was."""

    name: str
    requests: int
    """Of its share of the schedule."""
    outcomes: dict[str, int]
    scheduling: str
    """`real-time`, or `ordinary` where that is not allowed."""
    health: ClientHealth | None
    """None when it was lost."""
    clock: ClockOffset | None = None
    """None on the machine that started the run."""
    lost: str | None = None
    """How it ended before its share was done."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What the client can do against a server that does nothing else, and how much of it the run asks for."""

    requests: int
    """Measured, each with `chunks` reads."""
    chunks: int
    cpu_s: float
    """Of the client, for all of them."""
    capacity_per_s: float
    """Requests of this run's lengths per second that would keep the client's core busy."""
    busiest_per_s: float
    """Requests of one worker in the busiest second of the schedule; 0 for a closed loop, where the answers decide."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`manifest.json` of a run directory: what was run, where, how it ended, and digests of every file."""

    schema: Literal["weir.run/1"] = "weir.run/1"
    run_id: str
    status: Literal["complete", "interrupted"]
    command: list[str]
    url: str
    model: str
    started_unix_ns: int
    """Wall clock at offset 0 of all records of this run."""
    duration_ns: int
    """From offset 0 to the last record."""
    schedule: ScheduleHeader
    template_tokens: int
    """Prompt tokens the chat template adds to the text, measured before the run."""
    calibration: Calibration | None = None
    warm_up: dict[str, int] = {}
    """Outcomes of the requests before the run, which count for nothing."""
    workers: list[WorkerReport] = []
    scheduled: int
    outcomes: dict[str, int]
    host: dict[str, str]
    versions: dict[str, str]
    files: dict[str, FileDigest]


_Line = TypeVar("_Line", bound=msgspec.Struct)


def encode_line(record: msgspec.Struct) -> bytes:
    """One record as one JSON line, newline included."""
    return msgspec.json.encode(record) + b"\n"


def read_lines(path: Path, kind: type[_Line]) -> Iterator[_Line]:
    """Records of a JSON-lines file, one at a time.

    Raises ValueError naming file and line when a line is not a `kind`; an unfinished last line (a writer
    that was killed) counts as such.
    """
    decoder = msgspec.json.Decoder(kind)
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}:{number}: not a {kind.__name__}: {error}") from error
