from pathlib import Path

import numpy as np
import pytest

from loadgen.workload.importers.rows import BadRow, LeftOut, Row
from loadgen.workload.importers.servegen import read_servegen, trace_files
from loadgen.workload.traces import read_trace

SERVEGEN = Path(__file__).parents[5] / "shared/traces/servegen/data/reason/deepseek-r1"
LENGTHS = '{"0": {"input_tokens": "{10: 0.5, 20: 0.5}", "output_tokens": "{100: 1.0}"}}'


@pytest.fixture
def folder(tmp_path):
    def write(trace, lengths=LENGTHS):
        (tmp_path / "chunk-0-trace.csv").write_text(trace)
        (tmp_path / "chunk-0-dataset.json").write_text(lengths)
        return tmp_path

    return write


@pytest.mark.parametrize(("family", "cv"), [("Gamma,1.0,1.0", 1.0), ("Gamma,0.25,8.0", 2.0), ("Weibull,1.0,1.0", 1.0)])
def test_rate_and_burstiness_of_a_client_are_kept(folder, family, cv):
    windows = "".join(f"{600 * number},2.0,{cv},{family}\n" for number in range(20))
    rows = list(read_servegen(folder(windows)))
    assert len(rows) == pytest.approx(24_000, rel=0.03 * cv)
    times = np.array([row.at_ns for row in rows]) / 1e9
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.1)
    assert {row.prompt_tokens for row in rows} == {10, 20}
    assert np.mean([row.prompt_tokens == 10 for row in rows]) == pytest.approx(0.5, abs=0.02)
    assert {row.output_tokens for row in rows} == {100}


@pytest.mark.parametrize("law", ["Gamma,0.0123,500", "Weibull,0.4,0.5"])
def test_the_rate_of_a_quiet_and_very_bursty_client_is_kept(folder, law):
    """Gaps longer than a window: counts per window would be a third too high if each window began with a request."""
    windows = "".join(f"{600 * number},0.16,9.0,{law}\n" for number in range(3000))
    rows = list(read_servegen(folder(windows)))
    assert len(rows) == pytest.approx(0.16 * 600 * 3000, rel=0.06)


def test_it_is_the_same_trace_every_time_and_quiet_windows_are_empty(folder):
    path = folder("0,0,0,,0,0\n600,0.5,1.0,Gamma,1.0,2.0\n")
    first = list(read_servegen(path))
    assert first == list(read_servegen(path))
    assert all(isinstance(row, Row) and 600 <= row.at_ns / 1e9 < 1200 for row in first)


def test_requests_without_lengths_are_left_out(folder):
    rows = list(
        read_servegen(folder("0,0.5,1.0,Gamma,1.0,2.0\n", '{"0": {"input_tokens": "{}", "output_tokens": "{}"}}'))
    )
    assert set(rows) == {LeftOut("no lengths for this time")}


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("0,fast\n", "expected start,rate,cv,family,parameter,parameter"),
        ("0,1.0,1.0,Pareto,1,1\n", "family 'Pareto': expected Gamma or Weibull"),
        ("0,1.0,0,Gamma,1,1\n", "rate 1.0 at a shape of 0: expected numbers above 0"),
        ("0,nan,1,Gamma,1,1\n", "rate nan at a shape of 1: expected numbers above 0"),
    ],
)
def test_a_window_that_is_none_is_named(folder, trace, message):
    (found,) = read_servegen(folder(trace))
    assert isinstance(found, BadRow)
    assert message in str(found)


def test_lengths_that_are_none_are_named(folder):
    with pytest.raises(BadRow, match=r"chunk-0-dataset\.json: expected distributions"):
        list(read_servegen(folder("0,1.0,1.0,Gamma,1,1\n", "{}]")))


def test_clients_come_in_order_of_their_number(tmp_path):
    for name in ("chunk-10-trace.csv", "chunk-2-trace.csv", "other.csv"):
        (tmp_path / name).touch()
    assert [path.name for path in trace_files(tmp_path)] == ["chunk-2-trace.csv", "chunk-10-trace.csv"]


def test_a_published_client_has_its_published_means(tmp_path):
    """Of the largest client; what its windows and lengths say, by hand."""
    for path in SERVEGEN.glob("chunk-66-*"):
        (tmp_path / path.name).symlink_to(path)
    trace = read_trace(tmp_path)
    table = np.loadtxt(tmp_path / "chunk-66-trace.csv", delimiter=",", usecols=(0, 1))
    assert len(trace.requests) == pytest.approx(600 * table[:, 1].sum(), rel=0.02)
    assert trace.requests.at_s[-1] == pytest.approx(86_400, abs=600)
