"""What other load generators leave behind, as they left it, cut short."""

import json
from pathlib import Path

import pytest

from benchmarks.clients import peers
from benchmarks.clients.ours import Task
from benchmarks.clients.results import Level

WALL_LESS_MONOTONIC_NS = 1_796_000_000_000_000_000


@pytest.fixture
def task(tmp_path: Path) -> Task:
    level = Level(rate_per_s=12.5, seconds=4)
    return Task(port=4321, level=level, seed=3, schedule=tmp_path / "schedule", directory=tmp_path)


def contestant(name: str) -> peers.Contestant:
    return next(peer for peer in peers.PEERS if peer.name == name)


SIZES = {
    "vllm-bench": "--num-prompts 50",
    "sglang-python": "--num-prompts 50",
    "sglang-rust": "--num-prompts 50",
    "inference-perf": "duration: 4",
    "aiperf": "--benchmark-duration 4",
    "guidellm": "seconds=4",
}


@pytest.mark.parametrize("peer", peers.PEERS, ids=lambda peer: str(peer.name))
def test_each_is_told_where_how_fast_and_how_long(peer: peers.Contestant, task: Task) -> None:
    command = peer.command(task)
    told = " ".join([*command, *(path.read_text() for path in task.directory.glob("*.yml"))])
    assert task.url in told
    assert "12.5" in told
    assert SIZES[peer.name] in told
    assert Path(command[0]).is_absolute()


def test_vllm_and_sglang_leave_lists(task: Task) -> None:
    gaps_s = [0.01] * 99
    found = {"ttfts": [0.05, 0.06], "itls": [[0.0, *gaps_s], gaps_s], "errors": ["", ""]}
    (task.directory / "out.json").write_text(json.dumps(found))
    account = contestant("vllm-bench").read(task, 0)
    assert (account.scheduled, account.rate_per_s, len(account.sights)) == (50, 12.5, 2)
    for sight, ttft_ms in zip(account.sights, (50, 60), strict=True):
        assert sight.ttft_ns == pytest.approx(ttft_ms * 1e6)
        assert sight.gaps_ns is not None
        assert len(sight.gaps_ns) == 99
        assert max(sight.gaps_ns) == min(sight.gaps_ns) == pytest.approx(1e7)


def test_the_rust_client_is_the_same_program_with_a_flag(task: Task) -> None:
    python, rust = contestant("sglang-python").command(task), contestant("sglang-rust").command(task)
    assert rust == [*python, "--rust-client"]


def test_aiperf_leaves_lines(task: Task) -> None:
    def text(number: int, metrics: dict[str, object]) -> str:
        metadata = {"x_request_id": f"id{number}", "credit_issued_ns": WALL_LESS_MONOTONIC_NS + 1000 - number}
        return json.dumps({"metadata": metadata, "metrics": metrics}) + "\n"

    metrics = {
        "time_to_first_token": {"value": 54.5, "unit": "ms"},
        "inter_chunk_latency": {"value": [9.5, 10.5], "unit": "ms"},
    }
    (task.directory / "out").mkdir()
    (task.directory / "out" / "profile_export.jsonl").write_text(text(0, metrics) + text(1, {}))
    later, earlier = reversed(contestant("aiperf").read(task, WALL_LESS_MONOTONIC_NS).sights)
    assert (earlier.request_id, earlier.intended_ns, earlier.ttft_ns, earlier.gaps_ns) == ("id1", 999, None, None)
    assert (later.request_id, later.intended_ns, later.ttft_ns) == ("id0", 1000, 54.5e6)
    assert later.gaps_ns == [9.5e6, 10.5e6]


def test_guidellm_leaves_times_of_the_wall_clock_in_order_of_ending(task: Task) -> None:
    def request(**timings: float | None) -> dict[str, object]:
        return {"info": {"timings": timings}}

    second = request(targeted_start=1_796_000_002.0, request_start=1_796_000_002.5, first_token_iteration=None)
    first = request(
        targeted_start=1_796_000_001.0, request_start=1_796_000_001.25, first_token_iteration=1_796_000_001.5
    )
    requests = {"successful": [first], "errored": [], "incomplete": [second, request(request_start=None)]}
    (task.directory / "out.json").write_text(json.dumps({"benchmarks": [{"requests": requests}]}))
    sights = contestant("guidellm").read(task, WALL_LESS_MONOTONIC_NS).sights
    assert [sight.intended_ns for sight in sights] == [1e9, 2e9]
    assert [sight.ttft_ns for sight in sights] == [0.25e9, None]


def test_inference_perf_leaves_every_chunks_time(task: Task) -> None:
    def request(start_s: float, times_s: list[float] | None) -> dict[str, object]:
        return {
            "start_time": start_s,
            "info": {"response_metrics": None if times_s is None else {"chunk_times": times_s}},
        }

    (task.directory / "out").mkdir()
    file = task.directory / "out" / "per_request_lifecycle_metrics.json"
    file.write_text(json.dumps([request(2.0, None), request(1.0, [1.25, 1.5, 2.0])]))
    account = contestant("inference-perf").read(task, 0)
    assert [(sight.ttft_ns, sight.gaps_ns) for sight in account.sights] == [(0.25e9, [0.25e9, 0.5e9]), (None, None)]
    assert account.scheduled == 50


def test_what_inference_perf_is_told_is_yaml(task: Task) -> None:
    import yaml

    contestant("inference-perf").command(task)
    told = yaml.safe_load((task.directory / "config.yml").read_text())
    assert told["load"]["stages"] == [{"rate": 12.5, "duration": 4}]
    assert told["data"]["shared_prefix"]["output_len"] == 100
    assert told["storage"]["local_storage"]["path"] == str(task.directory / "out")
