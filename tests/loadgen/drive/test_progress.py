import asyncio
import io

import pytest

from loadgen.drive import progress as progress_module
from loadgen.drive.progress import Progress, Ticker


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_line_tells_counts_and_recent_first_tokens(made):
    progress = Progress(200)
    for k in range(100):
        progress.finished(made.request(k, at_ms=0, ttft_ms=k + 1))
    progress.finished(made.failed(100))
    line = progress.line(now_ns=5 * made.SECOND, sent=120, in_flight=19)
    assert line == "   5.0 s  sent 120/200  in flight 19  TTFT p50/p99 50.0/99.0 ms  failed 1"


def test_old_first_tokens_are_left_out(made):
    progress = Progress(2)
    progress.finished(made.request(0, at_ms=0, ttft_ms=1))
    progress.finished(made.request(1, at_ms=20_000, ttft_ms=7))
    assert "TTFT p50/p99 7.0/7.0 ms" in progress.line(now_ns=21 * made.SECOND, sent=2, in_flight=0)
    assert "TTFT p50/p99 -" in progress.line(now_ns=60 * made.SECOND, sent=2, in_flight=0)


def test_before_the_start_it_is_second_0():
    assert Progress(1).line(now_ns=-5, sent=0, in_flight=0).startswith("   0.0 s  sent 0/1")


@pytest.mark.parametrize(
    ("stream", "shown"),
    [
        (io.StringIO(), "note\nline 1\nline 2\n"),
        (Terminal(), "note\n\r\x1b[Kline 1\r\x1b[Kline 2\n"),
    ],
)
async def test_a_terminal_is_rewritten_and_anything_else_gets_lines(stream, shown, monkeypatch):
    monkeypatch.setattr(progress_module, "_TERMINAL_EVERY_S", 0)
    monkeypatch.setattr(progress_module, "_PLAIN_EVERY_S", 0)
    ticker = Ticker(stream)
    ticker.print("note")
    told = asyncio.Event()

    def line():
        told.set()
        return "line 1"

    ticking = asyncio.create_task(ticker.run(line))
    await told.wait()
    ticking.cancel()
    ticker.end("line 2")
    assert stream.getvalue() == shown


async def test_without_a_stream_nothing_is_shown():
    ticker = Ticker(None)
    ticker.print("note")
    await ticker.run(lambda: pytest.fail("nobody looks"))
    ticker.end("line")
