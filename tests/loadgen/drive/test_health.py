import asyncio
import gc
import os
import time

from loadgen.drive.health import STALL_NS, HealthWatch, punctually

MS = 1_000_000


async def test_a_blocked_loop_is_a_stall_of_that_length():
    async with HealthWatch() as watch:
        await asyncio.sleep(0.05)
        begin_ns = time.monotonic_ns()
        time.sleep(0.2)  # noqa: ASYNC251 - a loop that is held up is what this is about
        end_ns = time.monotonic_ns()
        await asyncio.sleep(0.05)
    health = watch.health()
    assert health.loop_lag_max_ns >= 185 * MS
    assert health.stalls >= 1
    assert watch.stall_within(begin_ns, end_ns) >= 185 * MS
    assert watch.stall_within(begin_ns - 2, begin_ns - 1) < 185 * MS
    assert health.wall_s >= 0.3


async def test_work_waiting_and_collecting_are_told():
    async with HealthWatch() as watch:
        until_s = time.process_time() + 0.1
        while time.process_time() < until_s:
            pass
        gc.collect()
        await asyncio.sleep(0.02)
    health = watch.health()
    assert 0.1 <= health.cpu_s < health.wall_s + 0.05
    assert health.run_delay_s >= 0
    assert health.other_cpu_s >= 0
    assert health.gc_pauses >= 1
    assert 0 < health.gc_max_ns <= health.gc_total_ns
    assert health.peak_rss_bytes > 10_000_000
    assert watch._on_gc not in gc.callbacks


def test_lag_is_told_by_nearest_rank_and_stalls_are_those_over_the_limit():
    watch = HealthWatch()
    for number in range(98):
        watch.note_lag(number, number + 50_000)
    watch.note_lag(1000 * MS, 1000 * MS + STALL_NS)
    watch.note_lag(2000 * MS, 2000 * MS + STALL_NS + 1)
    assert watch._lag_quantile(0.5) == 60_000
    assert watch._lag_quantile(0.99) == STALL_NS + 10_000
    assert watch.stalls == [(2000 * MS, 2000 * MS + STALL_NS + 1)]
    assert watch.stall_within(2001 * MS, 3000 * MS) == STALL_NS + 1
    assert watch.stall_within(2100 * MS, 3000 * MS) == 0


def test_a_loop_that_came_early_is_not_late():
    watch = HealthWatch()
    watch.note_lag(5, 4)
    assert watch._lag_quantile(0.99) == 10_000


def test_the_process_goes_back_to_where_it_was():
    before = os.sched_getscheduler(0)
    with punctually() as how:
        assert (os.sched_getscheduler(0) == os.SCHED_FIFO) == (how == "real-time")
    assert os.sched_getscheduler(0) == before


def test_where_it_is_not_allowed_it_stays_ordinary(monkeypatch):
    def refused(*_):
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    with punctually() as how:
        assert how == "ordinary"
