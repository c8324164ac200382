"""How close a fitted workload comes to the log that it was fitted to, where it counts: in an engine's latencies.

Each log is replayed in a stand-in engine in virtual time, and so are workloads drawn from its description, one for each
seed, and a Poisson process with the log's mean rate and mean lengths, which is what most load generators would send.
`python -m benchmarks.fidelity TRACES` writes the figures and the table in docs/measurement.md; exit status 1 when a
figure is outside of what is asked for.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.results import ROOT, save
from benchmarks.virtual_engine import Served, serve, slowed
from loadgen.workload.description import Workload
from loadgen.workload.fit import fit_workload
from loadgen.workload.traces import read_trace
from loadgen.workload.traffic import Floats, Requests
from simulator.profile import load_profile

PAGE = ROOT / "docs" / "measurement.md"
DATA = ROOT / "benchmarks" / "results" / "fidelity.json"
_MARKS = ("<!-- fidelity -->\n", "<!-- /fidelity -->\n")

_PROFILE = "h100_llama-3-8b"
_BAND = (0.05, 0.95)
WITHIN = {"keeps up": 0.10, "transient overload": 0.25}
"""How far the median over the seeds may be from the log's own value, as a share of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A log, and how many times slower than the profile's the engine's hardware is."""

    name: str
    file: str
    slowdown: dict[str, float]


CASES = (
    Case(
        name="Azure 2023, conversation",
        file="azure2023/AzureLLMInferenceTrace_conv.csv",
        slowdown={"keeps up": 1.0, "transient overload": 2.6},
    ),
    Case(
        name="Azure 2023, code",
        file="azure2023/AzureLLMInferenceTrace_code.csv",
        slowdown={"keeps up": 0.3, "transient overload": 0.6},
    ),
    Case(
        name="Mooncake, conversation",
        file="mooncake/conversation_trace.jsonl",
        slowdown={"keeps up": 0.25, "transient overload": 0.32},
    ),
)


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Of one replay, in seconds."""

    ttft_p50_s: float
    ttft_p99_s: float
    e2e_p99_s: float
    cached_share: float

    @classmethod
    def of(cls, served: Served) -> Latencies:
        p50, p99 = np.percentile(served.ttft_s, (50, 99)).tolist()
        return cls(
            ttft_p50_s=p50,
            ttft_p99_s=p99,
            e2e_p99_s=float(np.percentile(served.e2e_s, 99)),
            cached_share=served.cached_share,
        )


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One log at one load."""

    name: str
    load: str
    slowdown: float
    log: Latencies
    fitted: list[Latencies]
    """One for each seed."""
    poisson: list[Latencies]

    def ratios(self, figure: str) -> Floats:
        """The fitted workload's figure over the log's, for each seed. Shape (seeds,)."""
        own: float = getattr(self.log, figure)
        return np.array([getattr(one, figure) / own for one in self.fitted], dtype=np.float64)

    def poisson_ratio(self, figure: str) -> float:
        """The median for Poisson arrivals of mean lengths."""
        return float(np.median([getattr(one, figure) for one in self.poisson]) / getattr(self.log, figure))

    def problems(self) -> list[str]:
        """What is not as asked for."""
        found = []
        for figure, label in FIGURES.items():
            ratios = self.ratios(figure)
            low, high = np.quantile(ratios, _BAND).tolist()
            off = float(np.median(ratios)) - 1
            if abs(off) > WITHIN[self.load]:
                found.append(f"{self.name}, {self.load}: {label} is off by {off:+.0%}, {WITHIN[self.load]:.0%} at most")
            if not low <= 1 <= high:
                found.append(f"{self.name}, {self.load}: {label} of the log is outside the seeds' 5-95 %")
        return found


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """`fidelity.json`."""

    date: str
    seeds: int
    cells: list[Cell]


_HEAD = (
    "log",
    "load",
    "its own TTFT P50 / P99, end-to-end P99, s",
    "fitted: TTFT P99, in parts of the log's, median (5–95 %)",
    "fitted: end-to-end P99",
    "Poisson with mean lengths: both",
)
FIGURES = {"ttft_p99_s": "TTFT P99", "e2e_p99_s": "end-to-end P99"}


def measure(case: Case, traces: Path, seeds: int, pool: ProcessPoolExecutor) -> list[Cell]:
    """Both loads of one log."""
    trace = read_trace(traces / case.file)
    log = _raised(trace.requests)
    workload = fit_workload(trace.requests, name=case.name, source=None)
    cells = []
    for load, slowdown in case.slowdown.items():
        own = pool.submit(_served, log, slowdown, 0)
        fitted = [pool.submit(_drawn, workload, slowdown, seed) for seed in range(seeds)]
        poisson = [pool.submit(_served, _poisson(log, seed), slowdown, seed) for seed in range(min(seeds, 3))]
        cells.append(
            Cell(
                name=case.name,
                load=load,
                slowdown=slowdown,
                log=own.result(),
                fitted=[one.result() for one in fitted],
                poisson=[one.result() for one in poisson],
            )
        )
        sys.stderr.write(_row(cells[-1]) + "\n")
    return cells


def _raised(requests: Requests) -> Requests:
    """As a schedule has them: a token at least in and out."""
    if (requests.segment_tokens > 0).all() and (requests.output_tokens > 0).all():
        return requests
    return Requests.unshared(
        requests.at_s, np.maximum(1, requests.prompt_tokens), np.maximum(1, requests.output_tokens)
    )


def _served(requests: Requests, slowdown: float, seed: int) -> Latencies:
    return Latencies.of(serve(requests, slowed(load_profile(_PROFILE), slowdown), seed=seed))


def _drawn(workload: Workload, slowdown: float, seed: int) -> Latencies:
    rng = np.random.default_rng(seed)
    drawn = workload.draw(rng, start_s=0.0, duration_s=workload.arrivals.duration_s, rate_scale=1.0)
    return _served(drawn, slowdown, seed)


def _poisson(log: Requests, seed: int) -> Requests:
    """As many a second as the log has on average, each of mean lengths, with nothing in common."""
    rng = np.random.default_rng(seed)
    span_s = float(log.at_s[-1])
    count = rng.poisson(len(log))
    return Requests.unshared(
        np.sort(rng.random(count) * span_s),
        np.full(count, round(float(log.prompt_tokens.mean())), dtype=np.int64),
        np.full(count, round(float(log.output_tokens.mean())), dtype=np.int64),
    )


def _row(cell: Cell) -> str:
    cells = [cell.name, cell.load, f"{cell.log.ttft_p50_s:.2f} / {cell.log.ttft_p99_s:.2f} / {cell.log.e2e_p99_s:.1f}"]
    for figure in FIGURES:
        ratios = cell.ratios(figure)
        low, high = np.quantile(ratios, _BAND).tolist()
        cells.append(f"{np.median(ratios):.2f} ({low:.2f}–{high:.2f})")
    cells.append(" / ".join(f"{cell.poisson_ratio(figure):.2f}" for figure in FIGURES))
    return f"| {' | '.join(cells)} |"


def render(results: Results) -> str:
    """The table of the page."""
    return "\n".join(
        [
            f"As of {results.date}; `python -m benchmarks.fidelity TRACES --seeds {results.seeds}`.",
            "",
            f"| {' | '.join(_HEAD)} |",
            "|---|---|---|---|---|---|",
            *map(_row, results.cells),
            "",
        ]
    )


def write_page(results: Results) -> None:
    """Puts the table between its marks on the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, start, rest = page.partition(_MARKS[0])
    _, end, after = rest.partition(_MARKS[1])
    if not start or not end:
        raise ValueError(f"{PAGE}: no {_MARKS[0].strip()} … {_MARKS[1].strip()}")
    PAGE.write_text(f"{before}{start}{render(results)}{end}{after}", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something is not as asked for."""
    parser = argparse.ArgumentParser(prog="benchmarks.fidelity", description=__doc__)
    parser.add_argument("traces", type=Path, help="folder with azure2023/ and mooncake/")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="processes at once")
    parser.add_argument("--out", type=Path, default=DATA)
    ns = parser.parse_args(arguments)
    with ProcessPoolExecutor(ns.workers) as pool:
        cells = [cell for case in CASES for cell in measure(case, ns.traces, ns.seeds, pool)]
    results = Results(date=datetime.now(UTC).strftime("%Y-%m-%d"), seeds=ns.seeds, cells=cells)
    save(results, ns.out)
    if ns.out == DATA:
        write_page(results)
    problems = [problem for cell in cells for problem in cell.problems()]
    sys.stdout.write("".join(f"{line}\n" for line in [render(results), *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
