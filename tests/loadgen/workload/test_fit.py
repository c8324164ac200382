import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from loadgen.workload.arrivals import cumulative, mmpp_marks, renewals, sample
from loadgen.workload.description import (
    GammaRenewals,
    Source,
    Switching,
    TableRenewals,
    dump_workload,
    load_workload,
    parse_workload,
    shipped,
)
from loadgen.workload.fit import fit_arrivals, fit_workload
from loadgen.workload.sharing import hit_ratio
from loadgen.workload.traces import read_trace
from tests.loadgen.rows import columns

SOURCE = Source(dataset="d", citation="c", licence="l", file_sha256="f", rows=1, command="weir fit")
TRACES = Path(__file__).parents[4] / "shared/traces"
AZURE = TRACES / "azure2023/AzureLLMInferenceTrace_conv.csv"


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_a_known_rate_and_burstiness_are_recovered(cv):
    curve = cumulative(np.array([0.0, 600.0, 1200.0]), np.array([4.0, 20.0, 10.0]), 1800.0)
    marks = lambda rng, span: renewals(rng, cv, span)  # noqa: E731
    times = sample(np.random.default_rng(4), curve, marks, window_s=(0.0, 1800.0), rate_scale=1.0)
    fitted = fit_arrivals(times - times[0], 1800.0)
    at = np.searchsorted([rate.start_s for rate in fitted.rates], [300.0, 900.0, 1500.0], side="right") - 1
    assert [fitted.rates[number].per_s for number in at] == pytest.approx([4, 20, 10], rel=0.3 if cv == 2 else 0.1)
    assert fitted.fit is not None
    assert fitted.fit.gap_ks < 0.05
    assert fitted.fit.verdict == "adequate"
    if cv <= 1:
        assert len(fitted.rates) == 3
        assert isinstance(fitted.residual, GammaRenewals)
        assert fitted.residual.cv == pytest.approx(cv, rel=0.05)


def test_requests_that_come_in_groups_have_their_gaps_kept():
    """Five at once, a while of nothing: no gamma and no Weibull law has such gaps."""
    rng = np.random.default_rng(1)
    groups = np.sort(rng.random(2000) * 4000)
    times = np.sort((groups[:, None] + rng.random((2000, 5)) * 0.01).ravel())
    fitted = fit_arrivals(times, 4000.0)
    assert fitted.fit is not None
    assert isinstance(fitted.residual, TableRenewals | Switching)
    assert fitted.fit.gap_ks < 0.3


def test_short_bursts_are_steps_where_a_steady_process_would_not_have_them():
    paces = np.where(np.random.default_rng(3).random(900) < 0.1, 12.0, 1.0)
    bursts = cumulative(np.arange(900) * 2.0, paces, 1800.0)
    steady = cumulative(np.array([0.0]), np.array([2.1]), 1800.0)

    def steps(curve, cv):
        marks = lambda rng, span: renewals(rng, cv, span)  # noqa: E731
        times = sample(np.random.default_rng(4), curve, marks, window_s=(0.0, 1800.0), rate_scale=1.0)
        return fit_arrivals(times - times[0], 1800.0).rates

    found = steps(bursts, 1.0)
    held = np.array([rate.per_s for rate in found])[
        np.searchsorted([rate.start_s for rate in found], np.arange(900) * 2.0 + 1, side="right") - 1
    ]
    assert np.corrcoef(held, paces)[0, 1] > 0.8
    # Clustered gaps look like bursts too, but traffic drawn with such gaps has as many of them.
    assert len(steps(steady, 2.0)) < len(found) / 10


def test_slow_switching_is_followed_by_the_rate_and_the_counts_say_so():
    marks = mmpp_marks(np.random.default_rng(2), (0.2, 1.8), (300.0, 300.0), 20_000.0)
    fitted = fit_arrivals(marks / 5, 4000.0)
    assert fitted.fit is not None
    assert fitted.fit.verdict == "adequate"
    assert len(fitted.rates) > 10


def test_even_spacing_has_no_burstiness():
    fitted = fit_arrivals(np.arange(0, 120, 1.0), 120.0)
    assert len(fitted.rates) == 1
    assert fitted.rates[0].per_s == pytest.approx(1.0)
    assert isinstance(fitted.residual, GammaRenewals)
    assert fitted.residual.cv <= 0.001


def steady(count=1000, seed=1):
    rng = np.random.default_rng(seed)
    lengths = np.maximum(1, np.rint(rng.lognormal(6.0, 0.5, (count, 2)))).astype(int)
    return columns([(0.1 * number, *pair) for number, pair in enumerate(lengths.tolist())])


def test_lengths_that_drift_are_drawn_as_they_were_at_the_time():
    at = np.arange(0, 1200, 0.5)
    prompt = np.where(at < 600, 100, 2000) + np.arange(len(at)) % 50
    requests = columns(list(zip(at.tolist(), prompt.tolist(), (prompt // 2).tolist(), strict=True)))
    workload = fit_workload(requests, name="w", source=None)
    drawn = workload.draw(np.random.default_rng(1), start_s=0, duration_s=1200, rate_scale=1)
    assert drawn.prompt_tokens[drawn.at_s < 600].mean() == pytest.approx(125, rel=0.02)
    assert drawn.prompt_tokens[drawn.at_s >= 600].mean() == pytest.approx(2025, rel=0.02)
    assert drawn.output_tokens[drawn.at_s >= 600].mean() == pytest.approx(1012, rel=0.02)


def test_zeros_count_as_one_and_a_constant_is_a_constant():
    workload = fit_workload(columns([(number, 0, number % 7) for number in range(200)]), name="w", source=SOURCE)
    window = workload.lengths.windows[0]
    assert (window.prompt.max_tokens, window.output.min_tokens, window.spearman) == (1, 1, 0)
    assert workload.verdicts()["prompt lengths"] == "not fittable: 1 different lengths"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(number, 1, 1) for number in range(99)], "99 rows: a fit needs at least 100"),
        ([(0, 1, 1)] * 200, "all requests have the same time"),
    ],
)
def test_what_says_too_little_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        fit_workload(columns(rows), name="w", source=SOURCE)


def test_equal_rows_give_equal_figures():
    first, second = (fit_workload(steady(), name="w", source=SOURCE) for _ in range(2))
    assert first == second


def every_bit():
    """The digest of a fit."""
    return fit_workload(steady(), name="w", source=SOURCE).digest()


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


def test_the_shipped_workload_is_the_fit_of_its_trace():
    path = shipped("azure-conv-2023")
    assert path is not None
    known = load_workload(path)
    trace = read_trace(AZURE)
    assert known.source is not None
    assert trace.sha256 == known.source.file_sha256
    fitted = fit_workload(trace.requests, name=known.name, source=known.source)
    assert fitted == known
    assert known.arrivals.fit is not None
    assert known.arrivals.fit.verdict == "adequate"


def test_mooncakes_grid_and_its_shared_prompts_are_described():
    trace = read_trace(TRACES / "mooncake/conversation_trace.jsonl")
    workload = parse_workload(dump_workload(fit_workload(trace.requests, name="m", source=SOURCE)))
    assert workload.arrivals.fit is not None
    assert workload.arrivals.fit.grid_s == 3.0
    assert workload.arrivals.fit.verdict == "adequate"
    assert workload.sharing is not None
    drawn = workload.draw(np.random.default_rng(7), start_s=0, duration_s=workload.arrivals.duration_s, rate_scale=1)
    assert hit_ratio(drawn) == pytest.approx(hit_ratio(trace.requests), abs=0.05)
    assert drawn.prompt_tokens.mean() == pytest.approx(trace.requests.prompt_tokens.mean(), rel=0.05)
    assert msgspec.json.decode(msgspec.json.encode(workload.verdicts()))["shared text"] == "adequate"
