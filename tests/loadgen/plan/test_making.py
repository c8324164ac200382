import hashlib

import numpy as np
import pytest

from loadgen.plan import making
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.making import make, make_closed, make_schedule
from loadgen.plan.schedule_file import encode_schedule
from loadgen.plan.sources import Drawn, Lengths, Part
from loadgen.workload.traffic import Requests
from tests.loadgen.plan.test_self_test import repeated_gaps
from tests.loadgen.plan.test_sources import Even, log

LENGTHS = Lengths.parse("100-900:1-64")
POISSON = parse_arrivals("poisson:rate=20")


class Random(Even):
    """A workload with Poisson arrivals."""

    def draw(self, rng, *, start_s, duration_s, rate_scale):
        at_s = np.cumsum(rng.exponential(1 / rate_scale, size=int(2 * duration_s * rate_scale)))
        at_s = at_s[at_s < duration_s]
        return Requests.unshared(at_s, rng.integers(1, 100, len(at_s)), np.full(len(at_s), 7))


def part(**changes):
    return Part(**({"seed": 1, "duration_s": 60.0} | changes))


def test_the_header_tells_what_a_schedule_was_made_from():
    header = make_schedule(log(*range(10)), part(start_s=3, rate_scale=0.5, text_seed=8)).header
    assert (header.source, header.source_sha256) == ("log[3s+60s]x0.5", "0" * 64)
    assert (header.arrivals, header.concurrency, header.duration_ns) == ("own", None, 60_000_000_000)
    assert (header.seed, header.text_seed, header.requests, header.raised) == (1, 8, 7, 0)


@pytest.mark.parametrize("arrivals", [None, POISSON])
def test_equal_seeds_give_equal_files_and_other_seeds_other_ones(arrivals):
    def identity(seed):
        return hashlib.sha256(encode_schedule(make_schedule(Drawn(Random()), part(seed=seed), arrivals))).hexdigest()

    assert identity(5) == identity(5)
    assert len({identity(seed) for seed in range(20)}) == 20


def test_other_arrivals_bring_the_same_requests():
    first = make_schedule(LENGTHS, part(), POISSON)
    second = make_schedule(LENGTHS, part(), parse_arrivals("bursts:rate=20"))
    assert len(second) > len(first)
    assert np.array_equal(second.output_tokens[: len(first)], first.output_tokens)
    assert second.header.arrivals == "bursts:rate=20"


def test_arrivals_and_their_law_are_scaled_and_tested():
    made = make(LENGTHS, part(rate_scale=2.0), POISSON)
    assert made.law.curve.total() == 2400
    names = {check.name for check in made.schedule.header.self_test}
    assert names >= {"count", "dispersion_1s", "gap_law", "distinct_gaps", "phase_1s", "phase_1ms"}
    assert all(check.passed for check in made.schedule.header.self_test)
    assert made.schedule.at_ns[-1] < 60_000_000_000


def test_arrivals_over_a_log_take_its_requests_in_order():
    schedule = make_schedule(log(*range(4000)), part(start_s=5), POISSON)
    assert schedule.session.tolist() == list(range(5, 5 + len(schedule)))


def test_a_schedule_that_fails_its_self_test_is_refused(monkeypatch):
    _, law = POISSON.draw(np.random.default_rng(1), duration_s=60.0)

    def draw(self, rng, *, duration_s, rate_scale):
        return np.arange(0.5, duration_s, 1.0), law

    monkeypatch.setattr(making.Arrivals, "draw", draw)
    with pytest.raises(ValueError, match="the arrivals do not follow their law: count is 60, expected"):
        make(LENGTHS, part(), POISSON)


class Repeating(Even):
    """A workload of which four processes draw the same."""

    def draw(self, rng, *, start_s, duration_s, rate_scale):
        at_s = repeated_gaps(20.0, duration_s, int(rng.integers(2**30)))
        return Requests.unshared(at_s, np.full(len(at_s), 5), np.full(len(at_s), 7))


def test_a_workload_that_repeats_its_gaps_is_refused_and_even_ones_and_logs_are_described():
    with pytest.raises(ValueError, match=r"distinct_gaps is 0\.2"):
        make(Drawn(Repeating()), part())
    assert not any(check.judged for check in make(Drawn(Even()), part()).schedule.header.self_test)
    schedule = make_schedule(log(*np.arange(0.5, 60)), part())
    assert not any(check.judged for check in schedule.header.self_test)


def test_a_closed_loop_says_so_and_has_no_times():
    schedule = make_closed(LENGTHS, part(start_s=2), concurrency=4, requests=30)
    header = schedule.header
    assert (header.arrivals, header.concurrency, header.duration_ns) == ("closed", 4, 0)
    assert (header.source, header.requests, header.self_test) == ("lengths 100-900:1-64[2s+]", 30, ())
    assert set(schedule.at_ns.tolist()) == {0}


@pytest.mark.parametrize(("given_", "name"), [({"concurrency": 0}, "concurrency"), ({"requests": 0}, "requests")])
def test_a_closed_loop_of_nothing_is_refused(given_, name):
    with pytest.raises(ValueError, match=f"{name} is 0: at least 1"):
        make_closed(LENGTHS, part(), **({"concurrency": 1, "requests": 1} | given_))
