import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.laws import Beta, Component, Constant, Gamma, Law, LogLogistic, Mixture, Table, Weibull

LIMITS = {"min_tokens": 1, "max_tokens": 100_000}
TWO = [Component(weight=0.3, mu=3.0, sigma=0.5), Component(weight=0.7, mu=6.0, sigma=0.8)]
LAWS = {
    "table": Table(**LIMITS, shares=[0.0, 0.5, 1.0], tokens=[1, 700, 9000]),
    "constant": Constant(min_tokens=128, max_tokens=128),
    "mixture": Mixture(**LIMITS, components=TWO),
    "gamma": Gamma(**LIMITS, shape=0.7, scale=900.0),
    "weibull": Weibull(**LIMITS, shape=1.3, scale=400.0),
    "log-logistic": LogLogistic(**LIMITS, shape=2.0, scale=300.0),
    "beta": Beta(min_tokens=10, max_tokens=8000, a=0.8, b=3.0),
}
KNOWN = {
    "gamma": stats.gamma(0.7, scale=900.0),
    "weibull": stats.weibull_min(1.3, scale=400.0),
    "log-logistic": stats.fisk(2.0, scale=300.0),
    "beta": stats.beta(0.8, 3.0, loc=10, scale=7990),
}
EVEN = (np.arange(20_000) + 0.5) / 20_000

uniforms = st.lists(st.floats(1e-9, 1 - 1e-9), min_size=1, max_size=50)


@pytest.mark.parametrize("name", LAWS)
@given(shares=uniforms)
def test_tokens_are_whole_within_the_limits_and_rise_with_the_share(name, shares):
    law = LAWS[name]
    tokens = law.draw(np.sort(np.array(shares)))
    assert tokens.dtype == np.int64
    assert (tokens.min() >= law.min_tokens, tokens.max() <= law.max_tokens) == (True, True)
    assert (np.diff(tokens) >= 0).all()


@pytest.mark.parametrize("name", KNOWN)
def test_a_law_has_the_quantiles_of_its_name(name):
    """Off by less than the half token that rounding takes."""
    inside = (EVEN > 0.01) & (EVEN < 0.99)
    assert LAWS[name].draw(EVEN[inside]) == pytest.approx(KNOWN[name].ppf(EVEN[inside]), abs=0.5001)


def test_a_mixture_has_as_much_of_each_component_as_its_weight():
    tokens = LAWS["mixture"].draw(EVEN)
    below = sum(part.weight * stats.norm.cdf((np.log(100.5) - part.mu) / part.sigma) for part in TWO)
    assert np.mean(tokens <= 100) == pytest.approx(below, abs=1e-3)


def test_a_table_goes_straight_between_its_shares_and_keeps_atoms():
    law = Table(min_tokens=10, max_tokens=110, shares=[0.0, 0.25, 0.75, 1.0], tokens=[10, 50, 50, 110])
    assert law.draw(np.array([0.0, 0.125, 0.3, 0.6, 0.875])).tolist() == [10, 30, 50, 50, 80]
    assert np.mean(law.draw(EVEN) == 50) == pytest.approx(0.5, abs=0.01)


def test_what_falls_outside_the_limits_lies_on_them():
    law = Gamma(min_tokens=100, max_tokens=200, shape=1.0, scale=150.0)
    tokens = law.draw(EVEN)
    assert np.mean(tokens == 100) == pytest.approx(-np.expm1(-100.5 / 150), abs=1e-3)
    assert np.mean(tokens == 200) == pytest.approx(np.exp(-199.5 / 150), abs=1e-3)


def test_a_constant_is_always_itself():
    assert set(LAWS["constant"].draw(EVEN).tolist()) == {128}


@pytest.mark.parametrize("name", LAWS)
def test_a_law_is_read_as_it_was_written(name):
    assert msgspec.convert(msgspec.to_builtins(LAWS[name]), Law, strict=True) == LAWS[name]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gamma", {"min_tokens": 0}, r"limits are 0\.\.100000: need 1 <= min_tokens"),
        ("gamma", {"shape": 0.0}, r"shape is 0\.0: give a number above 0"),
        ("gamma", {"scale": float("inf")}, "scale is inf"),
        ("weibull", {"shape": -1.0}, r"shape is -1\.0"),
        ("weibull", {"scale": 0.0}, r"scale is 0\.0"),
        ("log-logistic", {"shape": 0.0}, r"shape is 0\.0"),
        ("log-logistic", {"scale": float("nan")}, "scale is nan"),
        ("beta", {"a": 0.0}, r"a is 0\.0"),
        ("beta", {"b": 0.0}, r"b is 0\.0"),
        ("constant", {"max_tokens": 129}, r"limits are 128\.\.129: a constant has equal ones"),
        ("mixture", {"components": TWO[:1]}, r"weights of components sum to 0\.3: scale them"),
        ("table", {"tokens": [1, 2]}, "3 shares and 2 tokens"),
        ("table", {"shares": [0.0], "tokens": [1]}, "two or more"),
        ("table", {"shares": [0.1, 0.5, 1.0]}, "expected to rise from 0 to 1"),
        ("table", {"shares": [0.0, 0.5, 0.9]}, "expected to rise from 0 to 1"),
        ("table", {"shares": [0.0, 0.0, 1.0]}, "expected to rise from 0 to 1"),
        ("table", {"tokens": [5, 4, 6]}, r"tokens are \[5, 4, 6\]: expected never to fall"),
    ],
)
def test_a_law_that_is_none_says_what_is_wrong(name, change, message):
    with pytest.raises(ValueError, match=message):
        type(LAWS[name])(**{**msgspec.structs.asdict(LAWS[name]), **change})


@pytest.mark.parametrize(("change", "message"), [({"weight": 0.0}, "weight is 0"), ({"sigma": -1.0}, "sigma is -1")])
def test_a_component_that_is_none_says_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        Component(**{"weight": 1.0, "mu": 5.0, "sigma": 0.5, **change})
