import asyncio
import io

import pytest

from loadgen.drive import progress as progress_module
from loadgen.drive.progress import Board, Screen
from loadgen.drive.tally import Tally


class Terminal(io.StringIO):
    def isatty(self):
        return True


def tally(*, sent=0, in_flight=0, failed=0, ttft_ns=(), late_ns=()):
    return Tally(sent=sent, in_flight=in_flight, failed=failed, ttft_ns=list(ttft_ns), late_ns=list(late_ns))


def board(scheduled=200, duration_s=100):
    return Board(scheduled=scheduled, duration_ns=duration_s * 10**9, origin_ns=0)


def test_the_figures_of_all_workers_are_put_together(made):
    shown = board()
    shown.note("0", tally(sent=1, in_flight=1))
    shown.note("0", tally(sent=70, in_flight=9, failed=1, ttft_ns=[(made.SECOND, k * made.MS) for k in range(1, 51)]))
    shown.note("1", tally(sent=50, in_flight=10, ttft_ns=[(made.SECOND, k * made.MS) for k in range(51, 101)]))
    shown.note("1", tally(sent=50, in_flight=10, late_ns=[100_000, 300_000]))
    assert shown.figures(5 * made.SECOND) == {
        "elapsed": "5.0 s",
        "left": "95 s",
        "sent": "120/200",
        "in flight": "19",
        "failed": "1",
        "TTFT p50/p99": "50.0/99.0 ms",
        "sent late p50/p99": "0.10/0.30 ms",
    }


def test_old_first_tokens_are_left_out(made):
    shown = board()
    shown.note("0", tally(ttft_ns=[(0, made.MS), (20 * made.SECOND, 7 * made.MS)]))
    assert shown.figures(21 * made.SECOND)["TTFT p50/p99"] == "7.0/7.0 ms"
    assert shown.figures(60 * made.SECOND)["TTFT p50/p99"] == "-"


def test_before_the_start_it_is_second_0_and_after_the_schedule_nothing_is_left(made):
    assert board().figures(-5)["elapsed"] == "0.0 s"
    assert board().figures(101 * made.SECOND)["left"] == "0 s"


def test_a_closed_loop_is_over_when_its_pace_says_so(made):
    shown = board(scheduled=200, duration_s=0)
    assert shown.figures(made.SECOND)["left"] == "-"
    shown.note("0", tally(sent=50))
    assert shown.figures(10 * made.SECOND)["left"] == "30 s"


async def shown_on(stream, monkeypatch, updates):
    monkeypatch.setattr(progress_module, "_TERMINAL_EVERY_S", 0.001)
    monkeypatch.setattr(progress_module, "_PLAIN_EVERY_S", 0.001)
    screen, state = Screen(stream), board()
    screen.print("note")
    showing = asyncio.create_task(screen.run(state))
    for sent in updates:
        state.note("0", tally(sent=sent))
        await asyncio.sleep(0.02)
    state.note("0", tally(sent=200))
    showing.cancel()
    await asyncio.wait([showing])
    return "" if stream is None else stream.getvalue()


async def test_a_file_gets_lines_and_the_last_state(monkeypatch):
    note, *lines = (await shown_on(io.StringIO(), monkeypatch, [5, 80])).splitlines()
    assert note == "note"
    assert all(line.startswith("elapsed ") for line in lines)
    assert "sent 5/200" in lines[0]
    assert "sent 200/200" in lines[-1]


async def test_a_terminal_gets_a_table_that_is_drawn_in_place(monkeypatch):
    shown = await shown_on(Terminal(), monkeypatch, [5, 80])
    assert "TTFT p50/p99" in shown
    assert "\x1b[" in shown, "it is rewritten in place"
    assert shown.rindex("200/200") > shown.index("5/200")


async def test_without_a_stream_nothing_is_shown(monkeypatch):
    await shown_on(None, monkeypatch, [1])


@pytest.mark.parametrize("values", [[1_000_000], [1_000_000, 2_000_000]])
def test_lateness_has_two_digits(values):
    shown = board()
    shown.note("0", tally(late_ns=values))
    assert shown.figures(0)["sent late p50/p99"].startswith("1.00/")
