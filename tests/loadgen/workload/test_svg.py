import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.svg import Axis, Chart, shown

numbers = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


def chart(x, y):
    return Chart(title="T & U", caption="c", x=x, y=y)


def coordinates(html):
    return [tuple(map(float, pair.split(","))) for pair in re.search(r'points="([^"]*)"', html)[1].split()]


@given(numbers)
def test_an_axis_has_room_for_all_its_numbers_and_a_few_ticks(values):
    axis = Axis.over("x", values)
    assert ((axis.share(values) >= 0) & (axis.share(values) <= 1)).all()
    assert 1 <= len(axis.ticks()) <= 14
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=30))
def test_a_logarithmic_axis_too(values):
    axis = Axis.over("x", values, [0.0, -1.0, np.nan], log=True)
    assert ((axis.share(values) > 0) & (axis.share(values) < 1)).all()
    assert np.isnan(axis.share([0.0, -1.0])).all()
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks())


def test_ticks_are_round():
    assert Axis(label="x", low=0, high=3500).ticks() == [0, 1000, 2000, 3000]
    assert Axis(label="x", low=0.1, high=300, log=True).ticks() == pytest.approx([0.1, 1, 10, 100])
    assert Axis(label="x", low=3, high=60, log=True).ticks() == [5, 10, 20, 50]


def test_from_zero_on_when_asked_for_and_something_without_numbers():
    assert Axis.over("x", [5, 9], zero=True).low == 0
    assert Axis.over("x", [np.nan]).high > 1


def test_lines_go_up_where_numbers_rise_and_leave_out_what_is_no_number():
    plot = chart(Axis(label="x", low=0, high=2), Axis(label="y", low=0, high=2))
    plot.line([0, 1, np.nan, 2], [0, 1, 1, 2], style="l", name="a < b")
    (x0, y0), (x1, y1), (x2, y2) = coordinates(plot.html())
    assert x0 < x1 < x2
    assert y0 > y1 > y2
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert "a &lt; b" in plot.html()


def test_steps_are_level_and_bands_return():
    plot = chart(Axis(label="x", low=0, high=2), Axis(label="y", low=0, high=2))
    plot.steps([0, 1, 2], [1, 2], style="s")
    corners = coordinates(plot.html())
    assert [corners[0][1] == corners[1][1], corners[1][0] == corners[2][0], len(corners)] == [True, True, 4]
    plot = chart(Axis(label="x", low=0, high=2), Axis(label="y", low=0, high=2))
    plot.band([0, 2], [0, 0], [1, 2], style="b")
    there, _, back, end = coordinates(plot.html())
    assert (there[0], there[1] > end[1], back[0] > end[0]) == (end[0], True, True)


def test_a_chart_is_well_formed_and_names_what_it_shows():
    plot = chart(Axis(label="s & t", low=0, high=2), Axis(label="y", low=1, high=1000, log=True))
    plot.points([0, 1, 2], [0, 10, 100], style="p", name="log")
    root = ElementTree.fromstring(plot.html())
    assert root.find("figcaption/h2").text == "T & U"
    assert root.find("svg").get("aria-label") == "T & U"
    assert [item.text for item in root.iter("li")] == ["log"]
    assert root.find("svg/path[@class='p']").get("d").count("M") == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.5, "0.5"), (1500.0, "1500"), (2000.0, "2k"), (25_000.0, "25k"), (3e6, "3M"), (2e-05, "2e-05")],
)
def test_numbers_of_an_axis_are_short(value, text):
    assert shown(value) == text
