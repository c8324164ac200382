import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadgen.workload.arrivals import cumulative, sample
from loadgen.workload.description import Source, load_workload, shipped
from loadgen.workload.fit import _em, _spearman, fit_arrivals, fit_lengths, fit_workload
from loadgen.workload.traces import TraceRow, read_trace

SOURCE = Source(dataset="d", citation="c", licence="l", file_sha256="f", rows=1, command="weir fit")
AZURE = Path(__file__).parents[4] / "shared/traces/azure2023/AzureLLMInferenceTrace_conv.csv"


def lognormal(seed, size, *mixture):
    rng = np.random.default_rng(seed)
    weights, mus, sigmas = np.array(mixture).T
    which = rng.choice(len(weights), size=size, p=weights)
    return np.clip(np.rint(rng.lognormal(mus[which], sigmas[which])), 1, 20_000).astype(int)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_a_known_rate_and_burstiness_are_recovered(cv):
    curve = cumulative([4.0, 20.0, 10.0], 600.0)
    times = sample(np.random.default_rng(4), curve, cv=cv, window_s=(0.0, 1800.0), rate_scale=1.0)
    fitted = fit_arrivals(np.append(times - times[0], 1800.0), 600.0)
    assert fitted.rates_per_s == pytest.approx([4, 20, 10], rel=0.1)
    assert fitted.cv == pytest.approx(cv, rel=0.05)
    assert fitted.fit is not None
    assert fitted.fit.gap_ks < 0.02
    for found in fitted.fit.dispersion:
        assert found.trace == pytest.approx(found.model, rel=0.35)


def test_a_correlated_process_is_shown_to_miss():
    """Bursts of 50 within a second every 10 s are no renewal process: the model's dispersion says so."""
    times = np.sort(np.concatenate([10.0 * k + np.linspace(0, 1, 50) for k in range(181)]))
    fit = fit_arrivals(times, 600.0).fit
    assert fit is not None
    assert fit.gap_ks > 0.1
    assert abs(fit.dispersion[1].trace - fit.dispersion[1].model) > 1


def test_even_spacing_has_no_burstiness():
    fitted = fit_arrivals(np.arange(0, 121, 1.0), 60.0)
    assert (fitted.cv, fitted.rates_per_s) == (0.0, [1.0, 1.0])
    assert fitted.fit is not None
    assert fitted.fit.gap_ks == 0


def test_what_follows_the_last_whole_bin_is_left_out():
    assert fit_arrivals(np.concatenate((np.arange(0, 60, 0.5), [60.5, 61.0])), 60.0).rates_per_s == [2.0]


def test_a_known_mixture_is_recovered_and_found_adequate():
    tokens = lognormal(5, 20_000, (0.4, 4.0, 0.3), (0.6, 7.0, 0.5))
    fitted = fit_lengths(tokens)
    assert fitted.fit is not None
    assert fitted.fit.adequate
    assert fitted.fit.ks < 0.015
    assert [round(part.weight, 1) for part in fitted.components] == [0.4, 0.6]
    assert [part.mu for part in fitted.components] == pytest.approx([4.0, 7.0], abs=0.05)
    assert [part.sigma for part in fitted.components] == pytest.approx([0.3, 0.5], abs=0.03)
    assert (fitted.min_tokens, fitted.max_tokens) == (tokens.min(), tokens.max())


def test_one_lognormal_is_not_split():
    assert len(fit_lengths(lognormal(6, 3000, (1.0, 6.0, 0.8))).components) == 1


def test_a_law_that_misses_is_kept_and_marked():
    """Ten atoms, evenly far apart, are no mixture of six lognormals."""
    fitted = fit_lengths(np.repeat(np.arange(100, 1100, 100), 200))
    assert fitted.fit is not None
    assert not fitted.fit.adequate
    assert fitted.fit.ks >= fitted.fit.largest_atom / 2
    assert fitted.fit.largest_atom == 0.1


def test_a_single_length_is_one_atom():
    fitted = fit_lengths(np.full(500, 128))
    assert (fitted.min_tokens, fitted.max_tokens, len(fitted.components)) == (128, 128, 1)
    assert fitted.fit is not None
    assert fitted.fit.adequate


def rows(count, coupled):
    tokens = np.sort(lognormal(7, count, (1.0, 6.0, 0.5)))
    order = np.arange(count) if coupled else np.random.default_rng(8).permutation(count)
    shuffle = np.random.default_rng(9).permutation(count)
    pairs = zip(tokens[shuffle].tolist(), tokens[order][shuffle].tolist(), strict=True)
    return [TraceRow(0.1 * k, prompt, output) for k, (prompt, output) in enumerate(pairs)]


@pytest.mark.parametrize(("coupled", "spearman"), [(True, 1.0), (False, 0.0)])
def test_the_coupling_of_lengths_is_measured(coupled, spearman):
    workload = fit_workload(rows(1000, coupled), name="w", source=SOURCE)
    assert workload.coupling.spearman == pytest.approx(spearman, abs=0.09)


def test_constant_lengths_have_no_coupling_and_zeros_count_as_one():
    workload = fit_workload([TraceRow(k, 0, k % 7) for k in range(200)], name="w", source=SOURCE)
    assert workload.coupling.spearman == 0
    assert (workload.prompt.max_tokens, workload.output.min_tokens) == (1, 1)


def test_equal_rows_give_equal_figures():
    first, second = (fit_workload(rows(700, coupled=False), name="w", source=SOURCE) for _ in range(2))
    assert first == second


def test_the_last_bits_do_not_hang_on_the_kernels_of_the_linear_algebra_library():
    """In a process of its own with the oldest kernels: the library chooses them once, when it is loaded."""
    code = "from tests.loadgen.workload.test_fit import every_bit; print(every_bit())"
    again = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"OPENBLAS_CORETYPE": "Prescott"},
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    assert again.stdout.strip() == every_bit()


def every_bit():
    """Figures before they are rounded."""
    tokens, other = lognormal(5, 2000, (0.4, 5.0, 0.6), (0.6, 8.0, 0.9)), lognormal(6, 2000, (1.0, 6.0, 0.8))
    values, counts = np.unique(tokens, return_counts=True)
    return repr((_em(np.log(values), counts.astype(float), 2), _spearman(tokens, other)))


@pytest.mark.parametrize(
    ("traffic", "bin_s", "message"),
    [
        ([TraceRow(0.0, 1, 1)] * 99, 60.0, "99 rows: a fit needs at least 100"),
        ([TraceRow(0.1 * k, 1, 1) for k in range(200)], 60.0, r"lasts 19\.9 s, less than one bin of 60 s"),
    ],
)
def test_too_little_to_fit_is_refused(traffic, bin_s, message):
    with pytest.raises(ValueError, match=message):
        fit_workload(traffic, name="w", source=SOURCE, bin_s=bin_s)


@pytest.mark.skipif(not AZURE.exists(), reason="the real trace is not beside this checkout")
def test_the_shipped_workload_is_the_fit_of_the_real_trace():
    path = shipped("azure-conv-2023")
    assert path is not None
    kept = load_workload(path)
    trace = read_trace(AZURE, "azure")
    assert (trace.sha256, len(trace.rows)) == (kept.source.file_sha256, kept.source.rows)
    again = fit_workload(trace.rows, name=kept.name, source=kept.source)
    assert numbers(again) == pytest.approx(numbers(kept), rel=0.02, abs=0.003)


def numbers(workload):
    """Every figure of a description, in order."""

    def walk(value):
        if isinstance(value, dict):
            for part in value.values():
                yield from walk(part)
        elif isinstance(value, list):
            for part in value:
                yield from walk(part)
        elif isinstance(value, int | float):
            yield float(value)

    return list(walk(msgspec.to_builtins(workload)))
