from collections import Counter

import msgspec
import pytest
import yaml

from loadgen import record
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.experiment import PLAN, Arm, Experiment, Level, TrafficChoice, ordered, parse_experiment, read_plan
from loadgen.plan.sources import Lengths
from loadgen.plan.writing import write_plan

TEXT = """
schema: weir.experiment/1
name: pair
seed: 1
order: random
repeats: 4
traffic: {workload: azure-conv-2023, arrivals: 'poisson:rate=5', duration_s: 30}
levels: [{name: low}, {name: high, rate_scale: 2}]
arms:
  - {name: vllm, url: 'http://h:8000', model: m}
  - {name: sglang, url: 'http://h:8001', model: m}
  - {name: other, url: 'https://h', model: m}
"""


def experiment(**changes):
    return msgspec.structs.replace(parse_experiment(TEXT), **changes)


def test_a_written_experiment_is_read():
    found = parse_experiment(TEXT)
    assert found == Experiment(
        schema="weir.experiment/1",
        name="pair",
        seed=1,
        repeats=4,
        traffic=TrafficChoice(workload="azure-conv-2023", arrivals="poisson:rate=5", duration_s=30.0),
        levels=[Level(name="low"), Level(name="high", rate_scale=2.0)],
        arms=[
            Arm(name="vllm", url="http://h:8000", model="m"),
            Arm(name="sglang", url="http://h:8001", model="m"),
            Arm(name="other", url="https://h", model="m"),
        ],
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weir.experiment/1", "weir.experiment/2", r"schema"),
        ("schema: weir.experiment/1", "", "missing required field `schema`"),
        ("name: pair", "title: pair", "unknown field `title`"),
        ("seed: 1", "seed: -1", "seed is -1"),
        ("repeats: 4", "repeats: 0", "repeats is 0: at least 1"),
        ("repeats: 4", "repeats: few", "Expected `int`, got `str`"),
        ("order: random\nrepeats: 4", "order: abba\nrepeats: 3", "repeats is 3: order abba runs every second"),
        ("order: random", "order: baab", r"Invalid enum value 'baab'"),
        ("workload: azure-conv-2023", "format: azure", "traffic has no source: one of workload, trace, lengths"),
        ("workload: a", "lengths: '1:1', workload: a", "traffic has workload and lengths: one of"),
        ("workload: a", "format: azure, workload: a", "format belongs to a trace"),
        ("name: high", "name: low", "levels are low, low: give at least one, with names of their own"),
        ("rate_scale: 2", "rate_scale: 0", "rate_scale of level high is 0"),
        ("rate_scale: 2", "concurrency: 0", "concurrency of level high is 0: at least 1"),
        ("rate_scale: 2", "concurrency: 8", "some levels have a concurrency and some have none"),
        ("[{name: low}, {name: high, rate_scale: 2}]", "[]", "levels are missing"),
        (
            "[{name: low}, {name: high, rate_scale: 2}]",
            "[{name: c, concurrency: 2}]",
            "traffic needs requests, how many",
        ),
        ("duration_s: 30", "requests: 30", "traffic has requests, which belong to a closed loop"),
        ("name: low", "name: a/b", "level 'a/b': a name is letters, digits"),
        ("name: vllm", "name: ''", "arm '': a name is letters"),
        ("'http://h:8000'", "h:8000", "url of arm vllm is 'h:8000': expected http://HOST:PORT"),
        ("arms:", "arms: [", "not YAML: "),
    ],
)
def test_a_mistake_in_an_experiment_is_told_with_its_remedy(old, new, message):
    assert old in TEXT
    with pytest.raises(ValueError, match=message):
        parse_experiment(TEXT.replace(old, new, 1))


def test_random_order_keeps_what_is_compared_together_and_differs_between_seeds():
    cells = ordered(experiment())
    assert len(cells) == 24
    for at in range(0, 24, 3):
        block = cells[at : at + 3]
        assert len({(cell.level, cell.repeat) for cell in block}) == 1
        assert {cell.arm for cell in block} == {"vllm", "sglang", "other"}
    assert [cell.repeat for cell in cells] == sorted(cell.repeat for cell in cells)
    assert ordered(experiment()) == cells
    firsts = Counter(ordered(experiment(seed=seed))[0].arm for seed in range(300))
    assert all(70 < count < 130 for count in firsts.values())


def test_abba_balances_every_position_so_that_a_steady_drift_cancels():
    cells = ordered(experiment(order="abba"))
    for kind in ("arm", "level"):
        positions = {}
        for at, cell in enumerate(cells):
            positions.setdefault(getattr(cell, kind), []).append(at)
        assert len({sum(each) / len(each) for each in positions.values()}) == 1
    assert [cell.arm for cell in cells[:12:3]] == ["vllm", "vllm", "other", "other"]


def test_ids_sort_in_the_order_of_the_plan():
    ids = [cell.id for cell in ordered(experiment())]
    assert ids == sorted(ids)
    assert ids[0].startswith("00-")
    assert len(set(ids)) == 24


def test_every_schedule_has_a_seed_of_its_own():
    found = {
        experiment(seed=seed).schedule_seed(level, repeat)
        for seed in range(5)
        for level in range(5)
        for repeat in range(9)
    }
    assert len(found) == 225


@pytest.fixture
def plan(tmp_path):
    return write_plan(
        experiment(repeats=2),
        Lengths.parse("5:5"),
        parse_arrivals("poisson:rate=5"),
        tmp_path / "plan",
        command="weir plan",
    )


def test_a_plan_gives_its_cells_in_order_with_all_that_a_run_needs(plan):
    again = read_plan(plan.directory)
    assert again == plan
    cells = again.cells()
    assert [cell.order for cell in cells] == list(range(12))
    assert all(record.digest(cell.schedule).sha256 == cell.schedule_sha256 for cell in cells)
    by_load = {}
    for cell in cells:
        by_load.setdefault((cell.level.name, cell.repeat), set()).add((cell.schedule, cell.schedule_sha256))
    assert [len(files) for files in by_load.values()] == [1, 1, 1, 1]
    assert {cell.arm.url for cell in cells} == {"http://h:8000", "http://h:8001", "https://h"}


def test_what_remains_is_decided_by_what_was_run(plan, made):
    cells = plan.cells()
    requests = [made.request(0)]
    made.run_directory(plan.run_directory(cells[0]), requests)
    made.run_directory(plan.run_directory(cells[1]), requests, status="interrupted")
    made.run_directory(plan.run_directory(cells[3]), requests, sealed=False)
    assert plan.remaining() == cells[1:]


def edited(plan, change):
    path = plan.directory / PLAN
    content = yaml.safe_load(path.read_text())
    change(content)
    path.write_text(yaml.safe_dump(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["cells"].pop(), "cells are not each arm at each level in each repeat once: 11 of 12"),
        (lambda c: c["cells"].append(c["cells"][0]), "in each repeat once: 13 of 12"),
        (lambda c: c["cells"][0].update(id=c["cells"][1]["id"]), "two cells have the same id"),
        (lambda c: c["schedules"].pop(), "schedules are not one for each level and repeat"),
        (lambda c: c.update(more=1), "unknown field `more`"),
    ],
)
def test_a_plan_that_is_not_whole_is_refused(plan, change, message):
    edited(plan, change)
    with pytest.raises(ValueError, match=rf"^{plan.directory / PLAN}: .*{message}"):
        read_plan(plan.directory)


def test_a_schedule_that_was_changed_is_refused(plan):
    path = plan.cells()[0].schedule
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=rf"^{path}: content differs from plan.yaml"):
        read_plan(plan.directory)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read_plan(plan.directory)
