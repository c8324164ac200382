from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.sources import Capped, Drawn, Hastened, Lengths, Part, Replayed, rows
from loadgen.workload.traffic import Requests
from tests.loadgen.plan.test_schedule import requests

RNG = np.random.default_rng


@dataclass(frozen=True)
class Even:
    """A workload of one request per second, whose prompts say when they were drawn."""

    name: str = "even"
    rate_per_s: float = 1.0
    independent: bool = True

    def digest(self):
        return "d" * 64

    def draw(self, rng, *, start_s, duration_s, rate_scale):
        at_s = np.arange(0, duration_s, 1 / (self.rate_per_s * rate_scale)) if self.rate_per_s else np.array([])
        return Requests.unshared(at_s, rng.integers(1, 100, len(at_s)), np.full(len(at_s), 7))


def log(*times, sha256="0" * 64):
    prompts = [[(k, 3), (-1, 10 + k)] for k in range(len(times))]
    return Replayed(name="log", sha256=sha256, requests=requests(prompts, at_s=times, sessions=range(len(times))))


times = st.lists(st.floats(0, 100), max_size=30).map(sorted)


@given(times, st.floats(0, 60), st.floats(0.1, 10))
def test_a_replay_keeps_the_part_in_order_and_in_time(logged, start_s, rate_scale):
    part = Part(seed=1, duration_s=5.0, start_s=start_s, rate_scale=rate_scale)
    played = log(*logged).timed(RNG(0), part)
    expected = [(k, at) for k, at in enumerate(logged) if start_s <= at < start_s + 5 * rate_scale]
    assert played.at_s == pytest.approx([(at - start_s) / rate_scale for _, at in expected])
    assert played.session.tolist() == [k for k, _ in expected]
    assert played.prompt_tokens.tolist() == [13 + k for k, _ in expected]
    assert played.segment_ids.tolist() == [each for k, _ in expected for each in (k, -1)]


@dataclass(frozen=True)
class Ramp(Even):
    """Ten requests a second in its first 50 s, none from then on; prompts as long as their second, from 1 on."""

    def draw(self, rng, *, start_s, duration_s, rate_scale):
        at_s = np.arange(0, max(0.0, min(50.0 - start_s, duration_s)), 0.1 / rate_scale)
        return Requests.unshared(at_s, 1 + (start_s + at_s).astype(np.int64), np.full(len(at_s), 7))


def test_changes_come_faster_at_the_same_rate_and_rates_are_scaled_apart():
    source = Hastened(source=Drawn(Ramp()), times=5.0)
    assert (source.name, source.sha256, source.is_drawn) == ("even,time x5", "d" * 64, True)
    played = source.timed(RNG(0), Part(seed=1, duration_s=20.0))
    assert (len(played), played.at_s[-1]) == (100, pytest.approx(9.9))
    assert np.diff(played.at_s) == pytest.approx(0.1)
    assert (played.prompt_tokens[0], played.prompt_tokens[-1]) == (1, 50)
    denser = source.timed(RNG(0), Part(seed=1, duration_s=20.0, start_s=25.0, rate_scale=2.0))
    assert (len(denser), denser.at_s[-1]) == (100, pytest.approx(4.95))
    assert denser.prompt_tokens[0] == 26
    assert source.first(RNG(0), Part(seed=1, duration_s=10.0), 60).prompt_tokens[-1] == 30


@pytest.mark.parametrize("times", [0.0, -1.0, float("nan")])
def test_a_time_scale_is_above_0(times):
    with pytest.raises(ValueError, match="the time scale is"):
        Hastened(source=Drawn(Even()), times=times)


def test_the_first_requests_of_a_log_are_those_from_the_start_on():
    part = Part(seed=1, duration_s=5.0, start_s=2.0)
    assert log(0, 1, 2, 3, 4).first(RNG(0), part, 2).session.tolist() == [2, 3]
    with pytest.raises(ValueError, match="log has 3 requests from 2 s on, 4 are wanted: lower the rate"):
        log(0, 1, 2, 3, 4).first(RNG(0), part, 4)


def test_a_workload_is_drawn_at_its_rate_and_as_densely_as_it_takes():
    source = Drawn(Even())
    assert (source.name, source.sha256, source.is_drawn) == ("even", "d" * 64, True)
    part = Part(seed=1, duration_s=10.0, rate_scale=2.0)
    assert len(source.timed(RNG(0), part)) == 20
    assert len(source.first(RNG(0), part, 5)) == 5
    many = source.first(RNG(0), part, 777)
    assert len(many) == 777
    assert np.array_equal(source.first(RNG(0), part, 777).prompt_tokens, many.prompt_tokens)


def test_a_workload_without_requests_gives_none():
    with pytest.raises(ValueError, match="even has next to no requests in 10 s from 3 s on"):
        Drawn(Even(rate_per_s=0)).first(RNG(0), Part(seed=1, duration_s=10, start_s=3), 1)


def test_lengths_lie_in_their_ranges_and_need_times_from_elsewhere():
    lengths = Lengths.parse("100-900:64")
    assert (lengths.name, len(lengths.sha256), lengths.is_drawn) == ("lengths 100-900:64", 64, False)
    part = Part(seed=1, duration_s=1.0)
    drawn = lengths.first(RNG(0), part, 5000)
    assert (drawn.prompt_tokens.min(), drawn.prompt_tokens.max()) == (100, 900)
    assert set(drawn.output_tokens.tolist()) == {64}
    assert (drawn.segment_ids < 0).all()
    with pytest.raises(ValueError, match="lengths have no times of their own: say when requests come with --arrivals"):
        lengths.timed(RNG(0), part)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("512", "lengths '512': expected PROMPT:OUTPUT"),
        ("a:5", "length 'a': expected a number of tokens, or LOW-HIGH"),
        ("5-:5", "length '5-': expected a number of tokens"),
        ("5:0", "length '0': need 1 <= LOW <= HIGH"),
        ("5:9-3", "length '9-3': need 1 <= LOW <= HIGH"),
    ],
)
def test_what_are_no_lengths_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        Lengths.parse(text)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": 0}, "duration_s is 0"),
        ({"duration_s": float("inf")}, "duration_s is inf"),
        ({"rate_scale": -1}, "rate_scale is -1"),
        ({"rate_scale": float("nan")}, "rate_scale is nan"),
        ({"start_s": -0.5}, r"start_s is -0\.5"),
        ({"seed": -1}, "seed is -1"),
        ({"text_seed": -1}, "text_seed is -1"),
    ],
)
def test_a_part_that_is_none_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Part(**({"seed": 1, "duration_s": 50.0} | changes))


def test_text_follows_the_seed_unless_it_has_its_own():
    assert Part(seed=4, duration_s=1).texts == 4
    assert Part(seed=4, duration_s=1, text_seed=0).texts == 0


def test_consecutive_rows_keep_their_segments():
    some = rows(log(0, 1, 2, 3).requests, 1, 3)
    assert some.segment_offsets.tolist() == [0, 2, 4]
    assert some.segment_tokens.tolist() == [3, 11, 3, 12]


def shared_prompts():
    """Prompts of 30, 20, 10 and 0 tokens in segments of at most 10."""
    return Requests(
        at_s=np.arange(4.0),
        prompt_tokens=np.array([30, 20, 10, 0]),
        output_tokens=np.array([5, 50, 500, 5]),
        session=np.full(4, -1),
        segment_offsets=np.array([0, 3, 5, 6, 7]),
        segment_ids=np.array([0, 1, 2, 0, 3, 4, -1]),
        segment_tokens=np.array([10, 10, 10, 10, 10, 10, 0]),
    )


def test_what_is_too_long_is_cut_at_its_end_and_shares_what_it_shared():
    log = Replayed(name="log", sha256="0" * 64, requests=shared_prompts())
    capped = Capped(source=log, prompt_tokens=15, output_tokens=100)
    requests = capped.timed(np.random.default_rng(1), Part(seed=1, duration_s=10))
    assert requests.prompt_tokens.tolist() == [15, 15, 10, 0]
    assert requests.output_tokens.tolist() == [5, 50, 100, 5]
    assert requests.segment_ids.tolist() == [0, 1, 0, 3, 4, -1]
    assert requests.segment_tokens.tolist() == [10, 5, 10, 5, 10, 0]
    assert requests.segment_offsets.tolist() == [0, 2, 4, 5, 6]
    assert capped.shortened == 3
    assert (capped.name, capped.sha256, capped.is_drawn) == ("log,prompt<=15,output<=100", "0" * 64, False)


def test_a_cap_of_one_side_leaves_the_other():
    log = Replayed(name="log", sha256="0" * 64, requests=shared_prompts())
    capped = Capped(source=log, prompt_tokens=None, output_tokens=100)
    requests = capped.first(np.random.default_rng(1), Part(seed=1, duration_s=10), 4)
    assert requests.prompt_tokens.tolist() == [30, 20, 10, 0]
    assert requests.segment_tokens.tolist() == shared_prompts().segment_tokens.tolist()
    assert (capped.name, capped.shortened) == ("log,output<=100", 1)
    with pytest.raises(ValueError, match="the longest prompt is 0 tokens: give at least 1"):
        Capped(source=log, prompt_tokens=0, output_tokens=None)


def test_a_log_without_times_needs_arrivals():
    log = Replayed(name="log", sha256="0" * 64, requests=shared_prompts(), has_times=False)
    with pytest.raises(
        ValueError, match="log has no times: say when its requests come with --arrivals or --concurrency"
    ):
        log.timed(np.random.default_rng(1), Part(seed=1, duration_s=10))
    assert len(log.first(np.random.default_rng(1), Part(seed=1, duration_s=10), 2)) == 2
