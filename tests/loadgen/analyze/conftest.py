"""Figures of runs with a known effect between the sides."""

import numpy as np
import pytest

from loadgen.analyze.run_figures import METRICS, RunFigures
from loadgen.analyze.validity import Validity

VALUES = {
    "ttft_p50": 0.1,
    "ttft_p99": 0.5,
    "gap_p99": 0.02,
    "e2e_p99": 3.0,
    "output_tokens_per_s": 1000.0,
    "error_rate": 0.01,
}


def figures(name="run", *, factor=1.0, at=0, schedule="s", verdict="VALID", host="h", requests=400, **values):
    """A run whose times are `factor` times the usual ones; its requests take their index in ms on top."""
    found = {key: value * factor if key.endswith(("p50", "p99")) else value for key, value in VALUES.items()}
    return RunFigures(
        name=name,
        started_unix_ns=at,
        schedule_sha256=schedule,
        validity=Validity(verdict=verdict, reasons=[]),
        fingerprint={"host.cpu": host},
        values=found | values,
        buckets={"≤ 128": {"ttft_p50": found["ttft_p50"], "ttft_p99": None}},
        ttft_s=(0.1 + np.arange(requests) / 1000) * factor,
        e2e_s=(1.0 + np.arange(requests) / 1000) * factor,
    )


def sides(repeats, *, factor=1.0, spread=0.01, seed=1, **b_changes):
    """Interleaved pairs of runs, each of a schedule of its own; B takes `factor` times as long."""
    rng = np.random.default_rng(seed)
    a, b = [], []
    for repeat in range(repeats):
        shared = np.exp(rng.normal(0, 0.2))
        first, second = np.exp(rng.normal(0, spread, 2)) * shared
        a.append(figures(f"a{repeat}", factor=first, at=2 * repeat, schedule=f"s{repeat}"))
        b.append(figures(f"b{repeat}", factor=second * factor, at=2 * repeat + 1, schedule=f"s{repeat}", **b_changes))
    return a, b


@pytest.fixture
def runs():
    """The makers above."""
    return type("Runs", (), {"figures": staticmethod(figures), "sides": staticmethod(sides), "METRICS": METRICS})
