"""Numbers as people read them."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analyze.stats import Quantile
from loadgen.analyze.summary import summarise
from loadgen.report.numbers import duration, interval, load, number, percent, quantile


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),
        (0, "0 µs"),
        (0.0000123, "12.3 µs"),
        (0.00087, "870 µs"),
        (0.0009996, "1.00 ms"),
        (0.01234, "12.3 ms"),
        (0.9996, "1.00 s"),
        (1.239, "1.24 s"),
        (1239.6, "1,240 s"),
        (-0.00012, "-120 µs"),
    ],
)
def test_a_duration_takes_the_unit_that_suits_it(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0, "0"),
        (0.01234, "0.0123"),
        (0.1234, "0.123"),
        (0.09996, "0.100"),
        (1.234, "1.23"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234567.8, "1,234,568"),
    ],
)
def test_three_digits_and_thousands(value, text):
    assert number(value) == text


@given(st.floats(0.001, 1e5))
def test_a_duration_stays_within_half_a_percent(seconds):
    value, unit = re.fullmatch(r"([\d,.]+) (s|ms|µs)", duration(seconds)).groups()
    shown = float(value.replace(",", "")) * {"s": 1, "ms": 1e-3, "µs": 1e-6}[unit]
    assert shown == pytest.approx(seconds, rel=0.0051)


def test_percentages():
    assert [percent(s) for s in (None, 0, 1, 0.5, 0.99472, 0.00004)] == ["–", "0%", "100%", "50.00%", "99.47%", "0.00%"]


def test_a_quantile_and_its_bounds():
    known = Quantile(value=0.010, low=0.009, high=0.012)
    assert (quantile(known), interval(known)) == ("10.0 ms", "9.00 ms – 12.0 ms")
    assert interval(Quantile(value=1.0, low=0.5)) == "500 ms – unbounded"
    assert interval(Quantile(value=1.0, high=2.0)) == "unbounded – 2.00 s"
    refused = Quantile(value=None, refused="n = 1, needs 5")
    assert (quantile(refused), interval(refused)) == ("–", "")


def test_a_load_says_its_rate_and_family_or_that_it_is_a_closed_loop(made):
    found = summarise(made.evidence([made.request(k, at_ms=1000 * k) for k in range(3)]))
    assert load(found) == "1.00 requests/s scheduled, 1.00/s sent"
    family = msgspec.structs.replace(found, arrivals="gamma:rate=1,cv=2")
    assert load(family) == "1.00 requests/s scheduled by gamma:rate=1,cv=2, 1.00/s sent"
    closed = msgspec.structs.replace(found, arrivals="closed", concurrency=8)
    assert load(closed) == "CLOSED LOOP, 8 requests at once: a slow server is asked for less; 1.00/s sent"
