import numpy as np
import pytest

from loadgen.plan.arrivals import parse_arrivals

EVERY_FAMILY = [
    "constant:rate=5",
    "poisson:rate=5",
    "gamma:rate=5,cv=2",
    "gamma:rate=5,burstiness=0.25",
    "mmpp:low=1,high=20,low_s=30,high_s=5",
    "piecewise:rates=2/10/0/4,each=60",
    "bursts:rate=2",
    "ramp:from=0,to=20",
]


def draw(text, seed=1, duration_s=240.0, **arguments):
    return parse_arrivals(text).draw(np.random.default_rng(seed), duration_s=duration_s, **arguments)


@pytest.mark.parametrize("text", EVERY_FAMILY)
def test_every_family_gives_ascending_times_within_the_duration_as_often_as_its_law_says(text):
    counts = []
    for seed in range(60):
        times, law = draw(text, seed)
        assert (np.diff(times) >= 0).all()
        assert times[0] >= 0
        assert times[-1] < 240.0 == law.curve.duration_s
        counts.append(len(times) - law.curve.total())
    assert np.mean(counts) == pytest.approx(0, abs=4 * (np.std(counts) + 1) / np.sqrt(60))


@pytest.mark.parametrize("text", EVERY_FAMILY)
def test_equal_seeds_give_equal_times_and_the_scale_multiplies_the_rate(text):
    assert np.array_equal(draw(text, 3)[0], draw(text, 3)[0])
    assert not np.array_equal(draw(text, 3)[0][:5], draw(text, 4)[0][:5])
    assert draw(text, 3, rate_scale=2.5)[1].curve.total() == pytest.approx(2.5 * draw(text, 3)[1].curve.total())


def test_constant_gaps_are_equal():
    times, law = draw("constant:rate=8")
    assert np.diff(times) == pytest.approx(1 / 8, abs=1e-12)
    assert len(times) == 240 * 8
    assert law.cv == 0


def test_burstiness_is_the_shape_as_in_vllm():
    assert draw("gamma:rate=5,burstiness=0.25")[1].cv == draw("gamma:rate=5,cv=2")[1].cv == 2.0
    times, _ = draw("gamma:rate=200,cv=2")
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(2, rel=0.1)


def test_bursts_are_ten_seconds_at_ten_times_the_rate_every_minute():
    curve = draw("bursts:rate=2")[1].curve
    assert curve.knots_s.tolist()[:5] == [0, 25, 35, 60, 85]
    assert curve.begins_per_s.tolist()[:4] == [2, 20, 2, 2]
    assert draw("bursts:rate=2", duration_s=30)[1].curve.knots_s.tolist() == [0, 25, 30]
    assert draw("bursts:rate=1,times=3,length=1,period=5", duration_s=5)[1].curve.total() == pytest.approx(7)


def test_pieces_last_as_said_and_the_last_one_until_the_end():
    assert draw("piecewise:rates=2/10,each=60")[1].curve.knots_s.tolist() == [0, 60, 240]
    curve = draw("piecewise:rates=2/10/4,each=60", duration_s=90)[1].curve
    assert (curve.knots_s.tolist(), curve.begins_per_s.tolist()) == ([0, 60, 90], [2, 10])


def test_a_ramp_is_a_straight_line_and_varying_rates_take_a_cv():
    _, law = draw("ramp:from=2,to=10,cv=0.5")
    assert (law.curve.begins_per_s[0], law.curve.ends_per_s[0], law.cv) == (2, 10, 0.5)


def test_an_mmpp_switches_between_two_rates_and_is_high_as_long_as_its_law_says():
    shares, deviations = [], []
    for seed in range(200):
        _, law = draw("mmpp:low=1,high=20,low_s=30,high_s=10", seed, duration_s=2000.0)
        assert set(np.unique(law.curve.begins_per_s)) <= {1.0, 20.0}
        assert (np.diff(law.curve.begins_per_s) != 0).all()
        shares.append(law.occupancy.share)
        deviations.append(law.occupancy.deviation)
    assert law.occupancy.mean == 0.25
    assert law.occupancy.switches == 100
    assert np.mean(shares) == pytest.approx(0.25, abs=0.015)
    assert np.std(shares) == pytest.approx(deviations[0], rel=0.2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no family '', there are constant, poisson, gamma"),
        ("uniform:rate=1", "no family 'uniform', there are"),
        ("poisson", r"missing required field `rate` \(poisson takes rate\)"),
        ("poisson:5", r"expected NAME=VALUE with commas between: poisson takes rate"),
        ("poisson:rate=fast", r"Expected `float`, got `str`"),
        ("poisson:rate=0", "rate is 0: give a number above 0"),
        ("poisson:rate=-1", "rate is -1: give a number above 0"),
        ("poisson:rate=nan", "rate is nan: give a number above 0"),
        ("poisson:rate=1,cv=2", "unknown field `cv`"),
        ("gamma:rate=1", r"give either cv or burstiness \(which is 1/cv²\)"),
        ("gamma:rate=1,cv=1,burstiness=1", "give either cv or burstiness"),
        ("gamma:rate=1,cv=50", "cv is 50: give 0 for even gaps, or 0.01 to 10"),
        ("gamma:rate=1,burstiness=0", "burstiness is 0: give a number above 0"),
        ("mmpp:low=2,high=2,low_s=1,high_s=1", "low is 2 and high is 2: low is the lower one"),
        ("piecewise:rates=1/x,each=5", "rates is '1/x': expected numbers with / between them"),
        ("piecewise:rates=1/-1,each=5", "rates is '1/-1': give numbers of at least 0, not all 0"),
        ("piecewise:rates=0/0,each=5", "give numbers of at least 0, not all 0"),
        ("bursts:rate=1,length=60", "length is 60: shorter than the period of 60 s"),
        ("ramp:from=0,to=0", "from and to are 0: give a rate above 0"),
    ],
)
def test_what_is_no_family_is_refused_with_what_would_be(text, message):
    with pytest.raises(ValueError, match=message) as refused:
        parse_arrivals(text)
    assert f"arrivals {text!r}: " in str(refused.value)


def test_a_piece_without_a_rate_at_the_beginning_is_allowed():
    times, _ = draw("piecewise:rates=0/5,each=10", duration_s=20)
    assert times[0] >= 10


def test_a_stretch_without_any_rate_is_refused():
    with pytest.raises(ValueError, match="arrivals 'piecewise:rates=0/5,each=10': no request is expected in 10 s"):
        draw("piecewise:rates=0/5,each=10", duration_s=10)
