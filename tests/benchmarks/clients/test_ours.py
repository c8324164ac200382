from pathlib import Path

import msgspec
import pytest

from benchmarks.clients import ours
from benchmarks.clients.results import Level
from protocol.records import ChunkRecord, RequestRecord

RECORD = RequestRecord(
    index=0,
    request_id="run-0",
    trace_id="0" * 32,
    arm=None,
    intended_ns=100,
    dequeued_ns=110,
    connected_ns=115,
    sent_ns=120,
    first_byte_ns=200,
    headers_ns=200,
    first_token_ns=300,
    first_answer_ns=300,
    last_token_ns=500,
    end_ns=510,
    status=200,
    outcome="ok",
    error=None,
    prompt_tokens_planned=4,
    output_tokens_planned=3,
    prompt_tokens=4,
    output_tokens=3,
    cached_tokens=0,
    finish_reason="length",
    new_connection=True,
    events=3,
    response_bytes=30,
    body_sha256=None,
)
CHUNKS = ChunkRecord(index=0, t_ns=[200, 300, 500], bytes=[0, 10, 20], content_events=[0, 1, 2])


def test_a_read_with_two_tokens_has_a_gap_of_nothing() -> None:
    sight = ours._weir_sight(RECORD, CHUNKS, 1000)
    assert (sight.request_id, sight.intended_ns, sight.ttft_ns) == ("run-0", 1100, 180)
    assert sight.gaps_ns == [200, 0]


@pytest.mark.parametrize("record", [msgspec.structs.replace(RECORD, sent_ns=None), RECORD])
def test_a_request_without_an_answer_still_has_its_time(record: RequestRecord) -> None:
    sight = ours._weir_sight(record, None, 1000)
    assert (sight.intended_ns, sight.ttft_ns, sight.gaps_ns) == (1100, None, None)


def test_every_mark_means_every_one_that_a_plain_connection_has() -> None:
    assert ours._marked(RECORD, CHUNKS)
    assert not ours._marked(RECORD, None)
    for mark in ("dequeued_ns", "connected_ns", "first_byte_ns", "first_answer_ns", "end_ns"):
        assert not ours._marked(msgspec.structs.replace(RECORD, **{mark: None}), CHUNKS)
    kept_alive = msgspec.structs.replace(RECORD, connected_ns=None, new_connection=False)
    assert ours._marked(kept_alive, CHUNKS)
    assert not ours._marked(msgspec.structs.replace(RECORD, output_tokens=4), CHUNKS)


def test_a_level_says_how_many_requests_it_is() -> None:
    task = ours.Task(
        port=9,
        level=Level(rate_per_s=20, seconds=1.5),
        seed=1,
        schedule=Path("s"),
        directory=Path("d"),
    )
    assert (task.url, task.level.requests) == ("http://127.0.0.1:9", 30)
    assert ours.WEIR.command(task)[1:] == [
        *("-m", "weir", "run", "--url", "http://127.0.0.1:9", "--model", "bench"),
        *("--schedule", "s", "--out", "d/run"),
    ]
