from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.making import make
from loadgen.plan.packed import pack, unpack
from loadgen.plan.sources import Lengths, Part


def test_a_schedule_comes_back_as_it_was_whole_or_in_parts():
    part = Part(seed=3, duration_s=10)
    schedule = make(Lengths.parse("10-20:5"), part, parse_arrivals("poisson:rate=20")).schedule
    again = unpack(pack(schedule))
    assert again.header == schedule.header
    assert list(again) == list(schedule)
    assert list(unpack(pack(schedule[1::2]))) == list(schedule[1::2])
