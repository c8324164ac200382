import msgspec
import numpy as np
import pytest

from loadgen.plan import making
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.experiment import Arm, Experiment, Level, TrafficChoice
from loadgen.plan.schedule_file import read_schedule
from loadgen.plan.sources import Lengths
from loadgen.plan.writing import write_plan
from tests.loadgen.plan.test_self_test import conditioned

POISSON = parse_arrivals("poisson:rate=20")


def experiment(*levels, **traffic):
    return Experiment(
        schema="weir.experiment/1",
        name="e",
        repeats=2,
        traffic=TrafficChoice(lengths="9:5", **traffic),
        levels=list(levels) or [Level(name="one"), Level(name="two", rate_scale=2.0)],
        arms=[Arm(name="a", url="http://h", model="m")],
    )


def write(directory, planned, arrivals=POISSON):
    return write_plan(planned, Lengths.parse("9:5"), arrivals, directory, command="weir plan e.yaml")


def test_each_level_and_repeat_has_a_schedule_with_text_of_its_own(tmp_path):
    plan = write(tmp_path, experiment(duration_s=30.0))
    schedules = [read_schedule(tmp_path / planned.file) for planned in plan.file.schedules]
    assert [(p.level, p.repeat) for p in plan.file.schedules] == [("one", 0), ("one", 1), ("two", 0), ("two", 1)]
    assert [len(schedule) for schedule in schedules] == [planned.requests for planned in plan.file.schedules]
    assert len({schedule.header.text_seed for schedule in schedules}) == 4
    assert len(schedules[2]) > 1.5 * len(schedules[0])
    assert {schedule.header.duration_ns for schedule in schedules} == {30_000_000_000}
    assert (tmp_path / "plan.yaml").read_text().startswith("# weir plan e.yaml\n")


def test_equal_experiments_give_equal_plans(tmp_path):
    first, second = write(tmp_path / "a", experiment()), write(tmp_path / "b", experiment())
    assert first.file == second.file


def test_a_closed_loop_has_as_many_requests_as_said(tmp_path):
    plan = write(tmp_path / "a", experiment(Level(name="c8", concurrency=8), requests=50), None)
    header = read_schedule(plan.cells()[0].schedule).header
    assert (header.concurrency, header.requests) == (8, 50)


def test_repeats_whose_count_never_varies_are_refused(tmp_path, monkeypatch):
    _, law = POISSON.draw(np.random.default_rng(1), duration_s=60.0)

    def draw(self, rng, *, duration_s, rate_scale):
        return conditioned(20.0, 60.0, int(rng.integers(2**30)), margin_s=0.02), law

    monkeypatch.setattr(making.Arrivals, "draw", draw)
    with pytest.raises(
        ValueError, match="level one: the arrivals do not follow their law: count_variance is 0, expected"
    ):
        write(tmp_path, msgspec.structs.replace(experiment(Level(name="one")), repeats=4))
    assert not (tmp_path / "plan.yaml").exists()
