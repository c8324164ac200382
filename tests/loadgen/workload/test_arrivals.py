import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from loadgen.workload.arrivals import (
    cumulative,
    dispersion,
    mmpp_marks,
    renewals,
    rescale,
    sample,
    table_renewals,
    weibull_renewals,
)


def steps(rates_per_s, each_s):
    """Rates one after another, each for as long."""
    starts_s = np.arange(len(rates_per_s)) * each_s
    return cumulative(starts_s, np.array(rates_per_s, dtype=float), len(rates_per_s) * each_s)


FLAT = steps([20.0], 1000.0)
MEANS_1 = {
    "gamma": lambda rng, span: renewals(rng, 2.0, span),
    "weibull": lambda rng, span: weibull_renewals(rng, 0.6, span),
    "table": lambda rng, span: table_renewals(rng, [0.0, 0.1, 0.3, 1.25, 4.7], span),
    "mmpp": lambda rng, span: mmpp_marks(rng, (0.5, 3.0), (40.0, 10.0), span),
    "on and off": lambda rng, span: mmpp_marks(rng, (0.0, 2.0), (10.0, 10.0), span),
}

curves = st.lists(st.floats(0, 50), min_size=1, max_size=20).filter(lambda rates: max(rates) > 0.5)


def arrive(seed, curve=FLAT, *, cv=1.0, window_s=(0.0, 1000.0), rate_scale=1.0):
    gaps = lambda rng, span: renewals(rng, cv, span)  # noqa: E731
    return sample(np.random.default_rng(seed), curve, gaps, window_s=window_s, rate_scale=rate_scale)


@pytest.mark.parametrize("window_s", [1.0, 10.0])
@pytest.mark.parametrize("seed", range(5))
def test_poisson_counts_are_dispersed_as_poisson_counts_are(seed, window_s):
    """(n - 1) IDC is chi-squared with n - 1 degrees for a Poisson process."""
    windows = int(1000 / window_s)
    low, high = stats.chi2(windows - 1).interval(0.999) / np.float64(windows - 1)
    assert low < dispersion(arrive(seed), window_s, 1000.0) < high


@pytest.mark.parametrize("seed", range(5))
def test_gaps_do_not_repeat_and_stand_in_no_relation_to_the_clock(seed):
    times = arrive(seed)
    gaps = np.diff(times)
    assert len(np.unique(gaps)) / len(gaps) > 0.99
    assert stats.kstest(times % 1.0, "uniform").pvalue > 1e-3
    assert stats.kstest(gaps, stats.expon(scale=1 / 20).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("cv", "rate_scale"), [(0.0, 1.0), (0.5, 1.0), (1.0, 3.0), (2.0, 0.5)])
def test_the_rate_and_the_burstiness_are_those_asked_for(cv, rate_scale):
    times = np.concatenate([np.diff(arrive(seed, cv=cv, rate_scale=rate_scale)) for seed in range(4)])
    assert 1 / times.mean() == pytest.approx(20 * rate_scale, rel=0.02 + 0.02 * cv)
    assert times.std() / times.mean() == pytest.approx(cv, rel=0.05, abs=1e-9)


def test_the_number_of_arrivals_is_not_conditioned_on_its_mean():
    counts = [len(arrive(seed, window_s=(0.0, 50.0))) for seed in range(300)]
    low, high = stats.chi2(299).interval(0.999) / np.float64(299)
    assert low < np.var(counts, ddof=1) / 1000 < high
    assert np.mean(counts) == pytest.approx(1000, abs=4 * np.sqrt(1000 / 300))


def test_two_hundred_per_second_arrive_at_that_rate():
    times = arrive(1, steps([200.0], 1000.0))
    assert len(times) / 1000 == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_the_start_of_the_window_is_no_special_moment(cv):
    """A stationary process has as many arrivals in the first unit as in any other: 1 on average."""
    first = [np.count_nonzero(renewals(np.random.default_rng(seed), cv, 2.0) < 1) for seed in range(4000)]
    assert np.mean(first) == pytest.approx(1.0, abs=4 * np.std(first) / np.sqrt(len(first)))


@pytest.mark.parametrize("law", MEANS_1)
def test_every_process_has_a_rate_of_1_from_its_first_moment_on(law):
    """Stationary: as many marks in the first unit as in any other."""
    first = [np.count_nonzero(MEANS_1[law](np.random.default_rng(seed), 1.0)) for seed in range(4000)]
    assert np.mean(first) == pytest.approx(1.0, abs=4 * np.std(first) / np.sqrt(len(first)))
    marks = MEANS_1[law](np.random.default_rng(1), 100_000.0)
    assert (np.diff(marks) >= 0).all()
    assert (marks[0] >= 0, marks[-1] < 100_000) == (True, True)
    assert len(marks) / 100_000 == pytest.approx(1.0, rel=0.04)


@pytest.mark.parametrize("shape", [0.5, 1.0, 2.0])
def test_weibull_gaps_follow_their_law(shape):
    gaps = np.diff(weibull_renewals(np.random.default_rng(2), shape, 20_000.0))
    law = stats.weibull_min(shape, scale=1 / special.gamma(1 + 1 / shape))
    assert stats.kstest(gaps, law.cdf).pvalue > 1e-3


def test_gaps_of_a_table_are_those_of_the_table():
    gaps = np.diff(table_renewals(np.random.default_rng(2), [0.0, 0.5, 0.5, 4.0], 50_000.0))
    assert np.quantile(gaps, [0.1, 0.25, 0.5, 0.75, 0.9]) == pytest.approx([0.15, 0.375, 0.5, 1.375, 2.95], abs=0.04)


def test_switching_is_as_dispersed_as_its_law_says():
    """IDC of an MMPP(2) at long windows: 1 + 2 (r1 - r2)² s1 s2 / ((s1 + s2)³ mean) with stays 1/s (Fischer 1993)."""
    rates, stays = (0.5, 3.0), (40.0, 10.0)
    marks = mmpp_marks(np.random.default_rng(5), rates, stays, 2_000_000.0)
    away, back = 1 / stays[0], 1 / stays[1]
    limit = 1 + 2 * (rates[0] - rates[1]) ** 2 * away * back / (away + back) ** 3
    assert dispersion(marks, 2000.0, 2_000_000.0) == pytest.approx(limit, rel=0.15)


@given(curves, st.integers(0, 1000), st.floats(0, 3), st.floats(0, 0.9), st.floats(0.1, 5))
def test_arrivals_ascend_within_the_window_and_only_where_there_is_a_rate(rates, seed, cv, start, rate_scale):
    curve = steps(rates, 10.0)
    length = 10.0 * len(rates)
    window = (start * length, length)
    times = arrive(seed, curve, cv=cv, window_s=window, rate_scale=rate_scale)
    assert (np.diff(times) >= 0).all()
    if len(times):
        absolute = times + window[0]
        assert times[0] >= -1e-9
        assert absolute[-1] <= length + 1e-9
        inside = np.minimum(absolute // 10, len(rates) - 1).astype(int)
        near_edge = np.abs(absolute / 10 - np.round(absolute / 10)) < 1e-6
        assert (np.array(rates)[inside][~near_edge] > 0).all()


def test_an_empty_bin_is_stepped_over():
    times = arrive(3, steps([5.0, 0.0, 5.0], 100.0), cv=0.0, window_s=(0.0, 300.0))
    assert len(times) == pytest.approx(1000, abs=1)
    assert not ((times > 100) & (times < 200)).any()


@given(st.integers(0, 2**32), curves)
def test_equal_seeds_give_equal_arrivals(seed, rates):
    curve = steps(rates, 1.0)
    window = (0.0, float(len(rates)))
    assert arrive(seed, curve, window_s=window).tobytes() == arrive(seed, curve, window_s=window).tobytes()


def test_rescaling_undoes_the_rate():
    curve = steps([2.0, 8.0], 10.0)
    assert rescale(np.array([0.0, 5.0, 10.0, 15.0, 20.0]), curve).tolist() == [0, 10, 20, 60, 100]


def test_dispersion_needs_two_windows_and_an_arrival():
    assert np.isnan(dispersion(np.array([0.5]), 1.0, 1.5))
    assert np.isnan(dispersion(np.array([]), 1.0, 10.0))
    assert dispersion(np.array([0.1, 0.2, 1.5, 1.6]), 1.0, 2.0) == 0
