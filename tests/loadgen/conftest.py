"""Records with known truth: one request takes exactly the times it is told to, in nanoseconds or milliseconds."""

from types import SimpleNamespace

import numpy as np
import pytest

from loadgen import record
from loadgen.analyze.latency import content_reads
from loadgen.analyze.validity import Evidence
from loadgen.plan.schedule import materialise
from loadgen.plan.schedule_file import encode_schedule
from loadgen.workload.traffic import Requests
from protocol.records import (
    PHASES,
    ChunkRecord,
    GatewayRecord,
    Manifest,
    RequestRecord,
    ScheduledRequest,
    ScheduleHeader,
    encode_line,
)

MS = 1_000_000
SECOND = 1_000 * MS


def request(index=0, *, at_ms=0.0, late_ms=0.0, ttft_ms=200.0, gap_ms=10.0, tokens=11, arm="a", **changes):
    """A successful request: sent `late_ms` after `at_ms`, first token `ttft_ms` after the send, then even gaps."""
    intended = round(at_ms * MS)
    sent = intended + round(late_ms * MS)
    first = sent + round(ttft_ms * MS)
    last = first + round(gap_ms * MS) * (tokens - 1)
    values = {
        "index": index,
        "request_id": f"run-{index}",
        "trace_id": f"{index + 1:032x}",
        "arm": arm,
        "intended_ns": intended,
        "sent_ns": sent,
        "headers_ns": sent + MS,
        "first_token_ns": first,
        "first_answer_ns": first,
        "last_token_ns": last,
        "end_ns": last + MS,
        "status": 200,
        "outcome": "ok",
        "error": None,
        "prompt_tokens_planned": 100,
        "output_tokens_planned": tokens,
        "prompt_tokens": 100,
        "output_tokens": tokens,
        "cached_tokens": 0,
        "finish_reason": "length",
        "new_connection": False,
        "events": tokens + 1,
        "response_bytes": 40 * tokens,
        "body_sha256": "0" * 64,
    }
    return RequestRecord(**(values | changes))


def failed(index=0, *, at_ms=0.0, outcome="error", **changes):
    """A request that was sent, got a 503 after 1 ms and no token."""
    nothing = dict.fromkeys(
        (
            *("first_token_ns", "first_answer_ns", "last_token_ns"),
            *("prompt_tokens", "output_tokens", "cached_tokens", "finish_reason"),
        )
    )
    sent = round(at_ms * MS)
    values = {"headers_ns": sent + MS, "end_ns": sent + MS, "status": 503, "error": "no endpoint", "arm": None}
    return request(index, at_ms=at_ms, outcome=outcome, **(nothing | values | changes))


def unsent(index=0, *, at_ms=0.0):
    return failed(index, at_ms=at_ms, outcome="unsent", sent_ns=None, headers_ns=None, end_ns=None, status=None)


def chunks(of, *, per_read=1):
    """Reads of a request's response: headers and role event first, then `per_read` tokens in each."""
    reads = max(2, of.output_tokens // per_read) if of.output_tokens > 1 else 1
    times = np.linspace(of.first_token_ns, of.last_token_ns, reads).astype(np.int64).tolist()
    return ChunkRecord(
        index=of.index,
        t_ns=[of.headers_ns, *times, of.last_token_ns if of.end_ns is None else of.end_ns],
        bytes=[100, *[40 * per_read] * reads, 20],
        content_events=[0, *[per_read] * reads, 0],
    )


def gateway(of, **changes):
    """The gateway's view of a request: 10 µs in each phase up to `send`, the rest as the client saw it."""
    spent = of.end_ns - of.sent_ns
    first_byte = max((of.first_token_ns or of.end_ns) - of.sent_ns, 60_000)
    starts = (0, 10_000, 20_000, 30_000, 40_000, 50_000, first_byte, max(spent - 20_000, first_byte))
    values = {
        "request_id": of.request_id,
        "trace_id": of.trace_id,
        "span_id": "1" * 16,
        "parent_span_id": None,
        "received_unix_ns": 1_700_000_000 * SECOND + of.sent_ns,
        "path": "/v1/chat/completions",
        "model": "m",
        "stream": True,
        "route": "m",
        "pool": of.arm,
        "endpoint": "e",
        "attempts": 1,
        "status": of.status,
        "outcome": "ok" if of.outcome == "ok" else "error",
        "error_source": None,
        "error_kind": None,
        "request_bytes": 100,
        "response_bytes": of.response_bytes,
        "marks_ns": dict(zip((*PHASES, "end"), (*starts, starts[-1] + 15_000), strict=True)),
        "first_token_ns": None,
        "chunks": of.events,
        "gap_max_ns": None,
        "events": of.events,
        "prompt_tokens": of.prompt_tokens,
        "completion_tokens": of.output_tokens,
        "cached_tokens": None,
        "finish_reason": of.finish_reason,
    }
    return GatewayRecord(**(values | changes))


def schedule(requests):
    """The schedule that these requests carried out."""
    entries = [
        ScheduledRequest(
            index=r.index,
            at_ns=r.intended_ns,
            prompt_tokens=r.prompt_tokens_planned,
            output_tokens=r.output_tokens_planned,
            segments=((r.index, r.prompt_tokens_planned),),
        )
        for r in requests
    ]
    duration_ns = max((entry.at_ns for entry in entries), default=0) + SECOND
    header = ScheduleHeader(
        source="made", source_sha256="0" * 64, seed=7, requests=len(entries), duration_ns=duration_ns
    )
    return header, entries


def schedule_file(requests):
    """The content of the file of `schedule`."""
    header, entries = schedule(requests)
    columns = np.array([(e.at_ns, e.prompt_tokens, e.output_tokens) for e in entries], dtype=np.int64).reshape(-1, 3).T
    return encode_schedule(materialise(Requests.unshared(columns[0] / SECOND, columns[1], columns[2]), header))


def manifest(requests, header, **changes):
    ends = [r.end_ns for r in requests if r.end_ns is not None]
    values = {
        "run_id": "run",
        "status": "complete",
        "command": ["weir", "run", "--model", "m"],
        "url": "http://127.0.0.1:8000",
        "model": "m",
        "started_unix_ns": 1_700_000_000 * SECOND,
        "duration_ns": max(ends, default=0),
        "schedule": header,
        "template_tokens": 8,
        "scheduled": len(requests),
        "outcomes": {},
        "host": {"cpu": "two cores"},
        "versions": {"weir": "0.1.0"},
        "files": {},
    }
    return Manifest(**(values | changes))


def evidence(requests, **changes):
    """Evidence of a complete run of these requests; the schedule is theirs unless given."""
    header, entries = schedule(requests)
    values = {
        "header": header,
        "schedule": entries,
        "requests": requests,
        "reads": {r.index: content_reads(chunks(r)) for r in requests if r.first_token_ns and r.output_tokens},
        "manifest": manifest(requests, header),
        "gateway": None,
        "damage": (),
    }
    return Evidence(**(values | changes))


def run_directory(path, requests, *, sealed=True, gateway_records=None, **manifest_changes):
    """A run directory on disk, as the load generator leaves it."""
    writer = record.RunWriter(path)
    header, _ = schedule(requests)
    (path / record.SCHEDULE).write_bytes(schedule_file(requests))
    for each in requests:
        writer.add(each, chunks(each) if each.first_token_ns and each.output_tokens else None)
    if gateway_records is not None:
        (path / record.GATEWAY).write_bytes(b"".join(map(encode_line, gateway_records)))
    writer.close()
    if sealed:
        made = manifest(requests, header, **{"outcomes": dict(writer.outcomes), **manifest_changes})
        record.seal(path, made)
    return path


@pytest.fixture(scope="session")
def made():
    """The makers above."""
    return SimpleNamespace(
        request=request,
        failed=failed,
        unsent=unsent,
        chunks=chunks,
        gateway=gateway,
        schedule=schedule,
        manifest=manifest,
        evidence=evidence,
        run_directory=run_directory,
        MS=MS,
        SECOND=SECOND,
    )
