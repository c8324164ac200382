from pathlib import Path

from loadgen.drive.crew import ThisProcess, WorkerProcesses, one_worker, part_directory


def test_a_table_is_drawn_by_a_process_that_does_not_send():
    assert isinstance(one_worker(terminal=False), ThisProcess)
    apart = one_worker(terminal=True)
    assert isinstance(apart, WorkerProcesses)
    assert (apart.names, apart.clocks) == (["0"], [None])


def test_workers_apart_keep_their_records_apart():
    assert part_directory(Path("run"), ThisProcess(), 0) == Path("run")
    assert part_directory(Path("run"), WorkerProcesses(2), 1) == Path("run/worker-1")


def test_a_longer_schedule_takes_longer_to_hand_over():
    assert WorkerProcesses(2).lead_s(1_000_000) > WorkerProcesses(2).lead_s(1000) > ThisProcess().lead_s(1000)
