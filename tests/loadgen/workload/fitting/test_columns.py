import numpy as np
import pytest

from loadgen.workload.fitting.columns import SHARES, distances, judge_column, spearman, table, windows
from loadgen.workload.laws import Constant, Mixture, Table


def lognormal(seed, size, *mixture):
    rng = np.random.default_rng(seed)
    weights, mus, sigmas = np.array(mixture).T
    which = rng.choice(len(weights), size=size, p=weights)
    return np.clip(np.rint(rng.lognormal(mus[which], sigmas[which])), 1, 20_000).astype(np.int64)


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("gamma", lambda rng: rng.gamma(2.0, 400.0, 20_000)),
        ("weibull", lambda rng: 900 * rng.weibull(1.5, 20_000)),
        ("log_logistic", lambda rng: 500 * (1 / rng.random(20_000) - 1) ** (1 / 4)),
        ("beta", lambda rng: 50 + 4000 * rng.beta(2.0, 3.0, 20_000)),
        ("lognormal_mixture", lambda rng: rng.lognormal(6.0, 0.7, 20_000)),
    ],
)
def test_a_known_law_is_found_adequate(name, draw):
    found = judge_column(np.maximum(1, np.rint(draw(np.random.default_rng(1)))).astype(np.int64))
    assert found.verdict == "adequate"
    assert found.ks < 0.02
    # Another family may come as close; it must not be one that is worse.
    assert abs(found.p99_error) < 0.05, name


def test_a_mixture_of_two_is_recovered():
    found = judge_column(lognormal(5, 20_000, (0.4, 4.0, 0.3), (0.6, 7.0, 0.5)))
    assert isinstance(found.best, Mixture)
    assert [round(part.weight, 1) for part in found.best.components] == [0.4, 0.6]
    assert [part.mu for part in found.best.components] == pytest.approx([4.0, 7.0], abs=0.05)
    assert found.p99_error == pytest.approx(0, abs=0.05)


def test_an_atom_is_told_as_the_reason():
    tokens = lognormal(6, 10_000, (1.0, 6.0, 0.5))
    tokens[::4] = 512
    found = judge_column(tokens)
    assert found.verdict.startswith("use empirical: 25% of the requests have one same length")
    assert found.largest_atom == pytest.approx(0.25, abs=0.01)


def test_ten_atoms_far_apart_are_no_law():
    found = judge_column(np.repeat(np.arange(100, 1100, 100), 200))
    assert found.verdict.startswith("use empirical")
    assert found.ks >= found.largest_atom / 2


def test_a_single_length_is_not_fittable():
    found = judge_column(np.full(500, 128))
    assert (found.best, found.verdict) == (None, "not fittable: 1 different lengths")


def test_distances_are_zero_for_the_law_itself_and_grow_with_the_shift():
    tokens = lognormal(7, 20_000, (1.0, 6.0, 0.5))
    law = judge_column(tokens).best
    ks, ad = distances(law, tokens)
    moved_ks, moved_ad = distances(law, tokens * 2)
    assert ks < 0.01 < 0.5 < moved_ks
    assert ad < 0.001 < moved_ad


def test_a_table_keeps_percentiles_and_limits():
    tokens = lognormal(8, 5000, (1.0, 6.0, 1.0))
    found = table(tokens)
    assert isinstance(found, Table)
    assert (found.min_tokens, found.max_tokens, found.shares) == (tokens.min(), tokens.max(), list(SHARES))
    drawn = found.draw((np.arange(50_000) + 0.5) / 50_000)
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(drawn, share) == pytest.approx(np.quantile(tokens, share), rel=0.02)
    assert drawn.mean() == pytest.approx(tokens.mean(), rel=0.02)
    assert table(np.full(10, 5)) == Constant(min_tokens=5, max_tokens=5)


def test_each_window_has_its_own_tables():
    at_s = np.arange(200.0)
    prompt = np.where(at_s < 100, 10, 1000) + np.arange(200) % 7
    found = windows(at_s, prompt.astype(np.int64), prompt[::-1].astype(np.int64), np.array([0.0, 100.0]))
    assert [window.start_s for window in found] == [0.0, 100.0]
    assert (found[0].prompt.max_tokens, found[1].prompt.min_tokens) == (16, 1000)
    assert (found[0].output.min_tokens, found[1].output.max_tokens) == (1000, 16)


def test_ranks_hang_together_or_not():
    values = np.arange(100)
    assert spearman(values, values**3) == pytest.approx(1.0)
    assert spearman(values, -values) == pytest.approx(-1.0)
    assert spearman(values, np.full(100, 7)) == 0.0


def test_equal_lengths_give_equal_figures():
    tokens = lognormal(9, 3000, (0.5, 5.0, 0.5), (0.5, 7.0, 0.3))
    assert judge_column(tokens) == judge_column(tokens.copy())
