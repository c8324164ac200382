import os
import subprocess
import sys

from benchmarks import cpu
from benchmarks.cpu import ProcessStat, parse_host_stat, parse_stat, tree_of


def test_a_process_name_may_hold_spaces_and_parentheses() -> None:
    numbers = " ".join(str(number) for number in range(1, 11))
    line = f"42 (ng (inx) w) S 7 {numbers[2:]} 10 20 3 4 20 0 1 0\n"
    fields = line.rsplit(")", 1)[1].split()
    assert fields[11:15] == ["10", "20", "3", "4"]
    assert parse_stat(line) == ProcessStat(pid=42, parent=7, ticks=37)


def test_a_tree_is_the_root_and_all_below_it() -> None:
    stats = [
        ProcessStat(pid=pid, parent=parent, ticks=0) for pid, parent in ((1, 0), (5, 1), (9, 5), (6, 5), (7, 6), (8, 1))
    ]
    assert {stat.pid for stat in tree_of(stats, 5)} == {5, 6, 7, 9}
    assert tree_of(stats, 4) == []


def test_busy_is_neither_idle_nor_iowait_nor_steal() -> None:
    assert parse_host_stat("cpu  1 2 4 800 1600 8 16 3200 0 0\ncpu0 9 9 9 9 9 9 9\n") == 31


def test_time_and_memory_of_ended_children_and_living_ones_are_found() -> None:
    """A child that burns two ticks of CPU and is waited for still counts; a living one shows its peak."""
    before = cpu.tree_ticks(os.getpid())
    busy = "import time\nwhile time.process_time() < 0.1: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    assert cpu.tree_ticks(os.getpid()) - before >= 0.1 * cpu.TICKS_PER_S - 2
    hold = "import sys; block = b'x' * 50_000_000; print(flush=True); del block; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert child.pid in {stat.pid for stat in cpu.read_tree(os.getpid())}
        assert cpu.peak_rss_bytes(child.pid) > 50_000_000 > cpu.rss_bytes(child.pid) > 1_000_000
        assert child.stdin is not None
        child.stdin.close()


def test_a_process_that_is_gone_has_no_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        pass
    assert cpu.tree_ticks(child.pid) == 0
    assert cpu.peak_rss_bytes(child.pid) == 0


def test_usage_tells_own_work_from_that_of_others() -> None:
    """What this process burns is ours, what the host did besides is foreign."""
    before = cpu.Usage.now(None)
    assert before.contestant is None
    busy = "import time\nwhile time.process_time() < 0.1: pass"
    with subprocess.Popen([sys.executable, "-c", busy]) as child:
        assert cpu.Usage.now(child.pid).contestant is not None
    after = cpu.Usage.now(child.pid)
    assert after.contestant is None
    assert after.ours - before.ours >= 0.1 * cpu.TICKS_PER_S - 2
    assert after.at_ns > before.at_ns
    ticks = (after.host - before.host) - (after.ours - before.ours)
    assert after.foreign_s_since(before) == ticks / cpu.TICKS_PER_S
