"""Records reach the file in time, whole, and never at a request's expense."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.telemetry.records import FLUSH_BYTES, FLUSH_S, RecordWriter
from protocol.records import GatewayRecord, encode_line, read_lines


def record(number: int, padding: int = 0) -> GatewayRecord:
    return GatewayRecord(
        request_id=f"r{number}", trace_id="a" * 32, span_id="b" * 16, parent_span_id=None, received_unix_ns=number,
        path="/v1/completions" + "x" * padding, model="m", stream=False, route="m", pool="p", endpoint="p-0",
        attempts=1, status=200, outcome="ok", error_source=None, error_kind=None, request_bytes=1, response_bytes=1,
        marks_ns={"receive": 0, "end": 1}, first_token_ns=None, chunks=1, gap_max_ns=None, events=0, prompt_tokens=1,
        completion_tokens=1, cached_tokens=None, finish_reason="stop",
    )  # fmt: skip


def written(path: Path) -> list[str]:
    return [line.request_id for line in read_lines(path, GatewayRecord)]


class HandMovedTime(asyncio.SelectorEventLoop):
    """A loop whose timers are due when the test says so."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    async def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)


Scenario = Callable[[HandMovedTime], Coroutine[None, None, None]]
RunByHand = Callable[[Scenario], None]


@pytest.fixture
def run_by_hand() -> Iterator[RunByHand]:
    loop = HandMovedTime()

    def run(scenario: Scenario) -> None:
        loop.run_until_complete(scenario(loop))

    yield run
    loop.close()


def test_lines_wait_for_the_flush_time_and_no_longer(tmp_path: Path, run_by_hand: RunByHand) -> None:
    path = tmp_path / "records.jsonl"

    async def scenario(loop: HandMovedTime) -> None:
        writer = RecordWriter(path)
        writer.write(record(1))
        await loop.pass_s(FLUSH_S / 2)
        writer.write(record(2))
        await loop.pass_s(FLUSH_S / 2 - 0.01)
        assert written(path) == []
        await loop.pass_s(0.02)
        assert written(path) == ["r1", "r2"]
        writer.write(record(3))
        await loop.pass_s(FLUSH_S + 0.01)
        assert written(path) == ["r1", "r2", "r3"]
        writer.close()

    run_by_hand(scenario)


def test_many_bytes_do_not_wait(tmp_path: Path, run_by_hand: RunByHand) -> None:
    path = tmp_path / "records.jsonl"
    line_bytes = len(encode_line(record(1, padding=10_000)))
    fit = -(-FLUSH_BYTES // line_bytes)

    async def scenario(loop: HandMovedTime) -> None:
        writer = RecordWriter(path)
        for _ in range(fit - 1):
            writer.write(record(1, padding=10_000))
        assert path.stat().st_size == 0
        writer.write(record(1, padding=10_000))
        assert path.stat().st_size == fit * line_bytes
        writer.write(record(2))
        await loop.pass_s(FLUSH_S + 0.01)
        assert written(path)[-1] == "r2"
        writer.close()

    run_by_hand(scenario)


async def test_an_earlier_file_is_continued_and_closing_writes_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    for number in (1, 2):
        writer = RecordWriter(path)
        writer.write(record(number))
        writer.close()
    assert written(path) == ["r1", "r2"]


async def test_a_request_that_ends_after_closing_is_not_failed(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path)
    writer.close()
    writer.write(record(1))
    writer.flush()
    writer.close()
    assert written(path) == []


async def test_without_a_path_nothing_is_kept_and_nothing_is_dropped() -> None:
    writer = RecordWriter(None)
    writer.write(record(1))
    writer.flush()
    writer.close()
    assert (writer.dropped, writer._lines) == (0, [])


def test_a_path_that_cannot_be_opened_is_seen_at_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RecordWriter(tmp_path / "missing" / "records.jsonl")
    with pytest.raises(IsADirectoryError):
        RecordWriter(tmp_path)


async def test_a_full_disk_drops_counts_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    writer = RecordWriter(Path("/dev/full"))
    for number in range(6):
        writer.write(record(number))
        if number % 2:
            writer.flush()
    assert writer.dropped == 6
    assert caplog.messages == [
        "records cannot be written to /dev/full: [Errno 28] No space left on device; they are being dropped"
    ]
    writer.close()


@contextmanager
def files_end_at(size_bytes: int) -> Iterator[None]:
    """Writing beyond this size writes what fits and then fails, as on a disk that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("lines_that_fit", [0, 0.5, 1, 1.5, 2])
async def test_a_disk_that_fills_up_and_is_cleared_leaves_only_whole_lines(
    lines_that_fit: float, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "records.jsonl"
    writer = RecordWriter(path)
    writer.write(record(1))
    writer.flush()
    line_bytes = path.stat().st_size
    for number in (2, 3, 4):
        writer.write(record(number))
    with files_end_at(line_bytes + int(lines_that_fit * line_bytes)):
        writer.flush()
        whole = int(lines_that_fit)
        assert (writer.dropped, len(caplog.messages)) == (3 - whole, 1)
        writer.write(record(5))
        writer.flush()
    assert written(path)[: 1 + whole] == ["r1", "r2", "r3"][: 1 + whole]
    after_first = writer.dropped
    assert len(written(path)) == 5 - after_first
    writer.write(record(6))
    writer.flush()
    assert written(path)[-1] == "r6"
    assert writer.dropped == after_first

    with files_end_at(1):
        writer.write(record(7))
        writer.flush()
    assert len(caplog.messages) >= 2, "after a recovery the log says so again"
    assert written(path)[-1] == "r6"
    writer.close()
