"""Children that listen, die, say nothing, or will not go: none is left behind, whatever happens to their owner."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.weir.conftest import Marked
from weir.processes import Child, Processes, StartError

LISTENS = "print('engine listening on http://127.0.0.1:8001 (tiny)', flush=True)\n"
WAITS = "import signal; signal.pause()\n"
STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_child_is_there_once_it_says_where_it_listens(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path / "new" / "logs") as processes:
        child = await processes.start("a", python("print('first')\n" + LISTENS + WAITS))
        assert (child.name, child.url) == ("a", "http://127.0.0.1:8001")
        assert marked.pids() == [child.process.pid]
        assert os.getsid(child.process.pid) == child.process.pid
    assert marked.pids() == []
    assert child.process.returncode == -signal.SIGTERM
    log = tmp_path / "new" / "logs" / "a.log"
    assert log.read_text() == "first\nengine listening on http://127.0.0.1:8001 (tiny)\n"


async def test_all_a_child_prints_later_is_in_its_log_and_never_blocks_it(tmp_path: Path) -> None:
    talks = "import sys\nfor n in range(20_000): print('line', n)\nprint('problem', file=sys.stderr)\n"
    async with Processes(logs=tmp_path) as processes:
        child = await processes.start("a", python(LISTENS + talks))
        assert await asyncio.wait_for(child.process.wait(), 10) == 0
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert [line for line in lines if line.startswith("line")] == [f"line {n}" for n in range(20_000)]
    assert "problem" in lines


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import sys; print('one\\ntwo\\nthree', file=sys.stderr); sys.exit('port taken')",
            "status 1: two; three; port taken",
        ),
        ("import sys; sys.exit(3)", "status 3: it printed nothing"),
    ],
)
async def test_a_child_that_dies_at_once_is_an_error_that_quotes_its_log(
    tmp_path: Path, code: str, reason: str
) -> None:
    async with Processes(logs=tmp_path) as processes:
        with pytest.raises(StartError, match=f"^a ended with {reason}$"):
            await processes.start("a", python(code))


async def test_a_child_that_never_listens_is_an_error_and_ends(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path) as processes:
        with pytest.raises(StartError, match=rf"^a did not listen within 0\.1 s; its log is {tmp_path / 'a.log'}$"):
            await processes.start("a", python(WAITS), timeout_s=0.1)
    assert marked.pids() == []


async def test_a_command_that_does_not_exist_is_the_callers_error(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path) as processes:
        with pytest.raises(FileNotFoundError):
            await processes.start("a", [str(tmp_path / "missing")])
    assert marked.pids() == []


async def start_noting_its_end(processes: Processes, name: str, ends: Path) -> Child:
    """A child that writes its name to a file when it is told to end."""
    code = (
        "import os, signal\n"
        f"file = os.open({str(ends)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (os.write(file, b'{name}'), os._exit(0)))\n"
    )
    return await processes.start(name, python(code + LISTENS + WAITS))


async def test_an_exception_ends_all_children_the_last_one_first(tmp_path: Path, marked: Marked) -> None:
    ends = tmp_path / "ends"

    async def own() -> None:
        async with Processes(logs=tmp_path) as processes:
            for name in "abc":
                await start_noting_its_end(processes, name, ends)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await own()
    assert (ends.read_text(), marked.pids()) == ("cba", [])


async def test_one_child_can_be_ended_before_the_others(tmp_path: Path, marked: Marked) -> None:
    ends = tmp_path / "ends"
    async with Processes(logs=tmp_path) as processes:
        first, second = [await start_noting_its_end(processes, name, ends) for name in "ab"]
        await processes.stop(first)
        assert marked.pids() == [second.process.pid]
    assert ends.read_text() == "ab"


async def test_a_child_that_ignores_sigterm_is_killed_when_its_time_is_up(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path, stop_timeout_s=0.1) as processes:
        child = await processes.start("a", python(STAYS + LISTENS + "while True: signal.pause()"))
    assert (child.process.returncode, marked.pids()) == (-signal.SIGKILL, [])


async def test_a_stop_that_is_cut_short_leaves_the_child_to_the_end(tmp_path: Path, marked: Marked) -> None:
    async with Processes(logs=tmp_path, stop_timeout_s=0.2) as processes:
        child = await processes.start("a", python(STAYS + LISTENS + "while True: signal.pause()"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await processes.stop(child)
        assert marked.pids() == [child.process.pid]
    assert marked.pids() == []


async def test_a_cancellation_while_children_end_kills_those_that_linger(tmp_path: Path, marked: Marked) -> None:
    inside = asyncio.Event()

    async def own() -> None:
        async with Processes(logs=tmp_path, stop_timeout_s=600.0) as processes:
            for name in "ab":
                await processes.start(name, python(STAYS + LISTENS + "while True: signal.pause()"))
            inside.set()
            await asyncio.Event().wait()

    owner = asyncio.create_task(own())
    await inside.wait()
    owner.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(marked.pids()) == 2
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(owner, 10)
    assert marked.pids() == []


@pytest.mark.parametrize("turns", [*range(12), 50])
async def test_a_cancellation_at_any_moment_of_a_start_leaves_nothing(
    tmp_path: Path, marked: Marked, turns: int
) -> None:
    """`turns` of the event loop pass first: before, in the middle of, and after the creation of the processes."""

    async def own() -> None:
        async with Processes(logs=tmp_path) as processes, asyncio.TaskGroup() as group:
            for name in "ab":
                group.create_task(processes.start(name, python(WAITS)))

    owner = asyncio.create_task(own())
    for _ in range(turns):
        await asyncio.sleep(0)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    # A child whose creation was cut short is killed by the event loop and not waited for.
    await until(lambda: not marked.pids())


async def test_the_failure_of_one_start_ends_the_others_under_way(tmp_path: Path, marked: Marked) -> None:
    async def own() -> None:
        async with Processes(logs=tmp_path) as processes, asyncio.TaskGroup() as group:
            group.create_task(processes.start("a", python(WAITS)))
            group.create_task(processes.start("b", python("raise SystemExit(1)")))

    with pytest.raises(ExceptionGroup) as failed:
        await own()
    assert failed.group_contains(StartError, match="b ended with status 1")
    assert marked.pids() == []
