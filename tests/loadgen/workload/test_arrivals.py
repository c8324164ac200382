import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from loadgen.workload.arrivals import cumulative, dispersion, renewals, rescale, sample

FLAT = cumulative([20.0] * 10, 100.0)

curves = st.lists(st.floats(0, 50), min_size=1, max_size=20).filter(lambda rates: max(rates) > 0.5)


def arrive(seed, curve=FLAT, *, cv=1.0, window_s=(0.0, 1000.0), rate_scale=1.0):
    return sample(np.random.default_rng(seed), curve, cv=cv, window_s=window_s, rate_scale=rate_scale)


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
    times = arrive(1, cumulative([200.0], 1000.0))
    assert len(times) / 1000 == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize("cv", [0.5, 1.0, 3.0])
def test_the_start_of_the_window_is_no_special_moment(cv):
    """A stationary process has as many arrivals in the first unit as in any other: 1 on average."""
    first = [np.count_nonzero(renewals(np.random.default_rng(seed), cv, 2.0) < 1) for seed in range(4000)]
    assert np.mean(first) == pytest.approx(1.0, abs=4 * np.std(first) / np.sqrt(len(first)))


@given(curves, st.integers(0, 1000), st.floats(0, 3), st.floats(0, 0.9), st.floats(0.1, 5))
def test_arrivals_ascend_within_the_window_and_only_where_there_is_a_rate(rates, seed, cv, start, rate_scale):
    curve = cumulative(rates, 10.0)
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
    times = arrive(3, cumulative([5.0, 0.0, 5.0], 100.0), cv=0.0, window_s=(0.0, 300.0))
    assert len(times) == pytest.approx(1000, abs=1)
    assert not ((times > 100) & (times < 200)).any()


@given(st.integers(0, 2**32), curves)
def test_equal_seeds_give_equal_arrivals(seed, rates):
    curve = cumulative(rates, 1.0)
    window = (0.0, float(len(rates)))
    assert arrive(seed, curve, window_s=window).tobytes() == arrive(seed, curve, window_s=window).tobytes()


def test_rescaling_undoes_the_rate():
    curve = cumulative([2.0, 8.0], 10.0)
    assert rescale(np.array([0.0, 5.0, 10.0, 15.0, 20.0]), curve).tolist() == [0, 10, 20, 60, 100]


def test_dispersion_needs_two_windows_and_an_arrival():
    assert np.isnan(dispersion(np.array([0.5]), 1.0, 1.5))
    assert np.isnan(dispersion(np.array([]), 1.0, 10.0))
    assert dispersion(np.array([0.1, 0.2, 1.5, 1.6]), 1.0, 2.0) == 0
