import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.arrivals import dispersion, mmpp_marks, renewals, weibull_renewals
from loadgen.workload.description import GammaRenewals, Switching, TableRenewals, WeibullRenewals
from loadgen.workload.fitting.residual import _busy_share, fit_renewals, fit_switching, gap_cdf, gap_table

SPAN = 20_000.0


@pytest.mark.parametrize(("cv", "close"), [(0.3, 0.03), (0.7, 0.03), (1.6, 0.03), (3.0, 0.06)])
def test_known_gamma_gaps_are_recovered(cv, close):
    """At a cv of 3 a twelfth of the gaps is shorter than what counts as one moment."""
    found = fit_renewals(np.diff(renewals(np.random.default_rng(1), cv, SPAN)))
    assert isinstance(found, GammaRenewals)
    assert found.cv == pytest.approx(cv, rel=close)


@pytest.mark.parametrize("shape", [0.5, 0.8, 1.5, 3.0])
def test_known_weibull_gaps_are_recovered(shape):
    found = fit_renewals(np.diff(weibull_renewals(np.random.default_rng(2), shape, SPAN)))
    assert isinstance(found, WeibullRenewals)
    assert found.shape == pytest.approx(shape, rel=0.03)


def test_a_poisson_process_is_either_with_a_figure_of_1():
    found = fit_renewals(np.diff(renewals(np.random.default_rng(3), 1.0, SPAN)))
    assert (found.cv if isinstance(found, GammaRenewals) else found.shape) == pytest.approx(1, abs=0.02)


def test_the_unit_of_the_gaps_does_not_matter():
    gaps = np.diff(renewals(np.random.default_rng(4), 1.5, SPAN))
    assert fit_renewals(gaps) == fit_renewals(gaps * 1000)


def test_even_gaps_are_even():
    assert fit_renewals(np.ones(1000)) == GammaRenewals(cv=0.0)
    assert fit_renewals(np.random.default_rng(1).normal(1, 0.01, 1000)) != GammaRenewals(cv=0.0)


def test_requests_at_one_moment_do_not_break_the_fit():
    gaps = np.diff(renewals(np.random.default_rng(5), 1.0, SPAN))
    gaps[::200] = 0.0
    found = fit_renewals(gaps)
    assert 0.5 < (1 / found.cv if isinstance(found, GammaRenewals) else found.shape) < 1.1


LAWS = [
    GammaRenewals(cv=0.0),
    GammaRenewals(cv=1.8),
    WeibullRenewals(shape=0.6),
    TableRenewals(gaps=[0.0, 0.1, 0.3, 1.25, 4.7]),
    Switching(quiet_rate=0.25, busy_rate=4.0, quiet_stay=2000.0, busy_stay=500.0),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_gaps_of_a_process_follow_the_distribution_said_to_be_theirs(law):
    """Switching stays for thousands of gaps, so that hardly any has a change of rate in it."""
    gaps = np.diff(law.marks(np.random.default_rng(6), 400_000.0))
    points = np.array([0.1, 0.5, 0.999, 1.001, 2.0, 5.0])
    seen = (gaps[:, None] <= points).mean(axis=0)
    assert gap_cdf(law, points) == pytest.approx(seen, abs=0.02)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=200).filter(lambda gaps: sum(gaps) > 1e-3))
def test_a_table_of_gaps_is_a_process_of_rate_1(gaps):
    table = gap_table(np.array(gaps))
    assert len(table) == 401
    assert TableRenewals(gaps=table).gaps == table


def test_a_table_has_the_gaps_that_it_was_made_of():
    gaps = np.diff(renewals(np.random.default_rng(12), 2.0, SPAN))
    law = TableRenewals(gaps=gap_table(gaps))
    points = np.quantile(gaps / gaps.mean(), [0.05, 0.5, 0.9, 0.99])
    assert gap_cdf(law, points) == pytest.approx([0.05, 0.5, 0.9, 0.99], abs=0.005)


@pytest.mark.parametrize(("swing", "stay"), [(0.8, 50.0), (0.5, 200.0)])
def test_known_switching_is_recovered(swing, stay):
    marks = mmpp_marks(np.random.default_rng(7), (1 - swing, 1 + swing), (stay, stay), 400_000.0)
    found = fit_switching(marks)
    assert found is not None
    assert found.busy_rate == pytest.approx(1 + swing, abs=0.15)
    assert found.busy_stay == pytest.approx(stay, rel=0.35)
    again = found.marks(np.random.default_rng(8), 400_000.0)
    for window in (10.0, 100.0, 1000.0):
        assert dispersion(again, window, 400_000.0) == pytest.approx(dispersion(marks, window, 400_000.0), rel=0.25)


@pytest.mark.parametrize("busy", [0.1, 0.3, 0.8])
def test_the_share_of_busy_time_is_recovered(busy):
    quiet_rate = 0.3
    busy_rate = (1 - (1 - busy) * quiet_rate) / busy
    marks = mmpp_marks(np.random.default_rng(9), (quiet_rate, busy_rate), (100 * (1 - busy), 100 * busy), 400_000.0)
    found = fit_switching(marks)
    assert found is not None
    assert found.busy_stay / (found.busy_stay + found.quiet_stay) == pytest.approx(busy, abs=0.12)
    again = found.marks(np.random.default_rng(10), 400_000.0)
    for window in (10.0, 100.0, 1000.0):
        assert dispersion(again, window, 400_000.0) == pytest.approx(dispersion(marks, window, 400_000.0), rel=0.25)


def test_batches_at_even_times_are_no_switching():
    """Dispersed in short windows only, and less than a Poisson process in long ones."""
    assert fit_switching(np.repeat(np.arange(5.0, 20_000, 5.0), 5)) is None


def test_counts_that_are_not_dispersed_say_nothing_of_busy_time():
    assert _busy_share(np.arange(0.5, 1000.0), 0.05) == 0.5


def test_a_process_without_memory_does_not_switch():
    assert fit_switching(renewals(np.random.default_rng(11), 1.0, SPAN)) is None
    assert fit_switching(np.arange(1.0, 50.0)) is None


def test_the_distribution_of_gamma_gaps_is_scipys():
    points = np.linspace(0, 5, 20)
    assert gap_cdf(GammaRenewals(cv=0.5), points) == pytest.approx(stats.gamma.cdf(points, 4.0, scale=0.25))
