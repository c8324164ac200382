"""What it takes to plan a million requests: `weir plan` as a process of its own, by the clock and by its peak memory.

`python -m benchmarks.planning` prints a line for each case and exits with 1 when one took too long or too much, or
gave other than about as many requests as were asked for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results import ROOT
from loadgen.plan.schedule_file import read_schedule

WITHIN_S = 30.0
WITHIN_BYTES = 1024**3
REQUESTS = 1_000_000
_NEAR = 0.05
"""Share by which the number of requests, which is random, may be off."""

CASES = {
    "Poisson, given lengths": [
        "--lengths",
        "100-4000:1-800",
        "--arrivals",
        "poisson:rate={per_s}",
        "--duration",
        "1000",
    ],
    "bursts with cv 2": ["--lengths", "512:128", "--arrivals", "bursts:rate={calm_per_s},cv=2", "--duration", "1200"],
    "workload, its own times": ["--workload", "azure-conv-2023", "--rate-scale", "{times}", "--duration", "3480"],
    "conversations, RAG and agents": [
        *("--workload", "assistants", "--rate-scale", "{times_mixed}", "--duration", "3480"),
    ],
    "workload, gamma times": [
        *("--workload", "azure-conv-2023", "--arrivals", "gamma:rate={per_s},cv=2", "--duration", "1000"),
    ],
}
"""What is planned, and the arguments of `weir plan` for that."""

_WORKLOAD_REQUESTS = 19_366
"""Of the whole shipped workload, at its own rate."""
_MIXED_REQUESTS = 17_400
"""Of 3,480 s of the mixed one, whose sessions have 3.4 requests in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one case took."""

    requests: int
    wall_s: float
    peak_bytes: int
    file_bytes: int

    def problems(self, wanted: int) -> list[str]:
        """What is wrong with it, in words; nothing when it is as it must be."""
        found = []
        if abs(self.requests - wanted) > _NEAR * wanted:
            found.append(f"{self.requests} requests, {wanted} wanted")
        if self.wall_s > WITHIN_S:
            found.append(f"took {self.wall_s:.1f} s, at most {WITHIN_S:g}")
        if self.peak_bytes > WITHIN_BYTES:
            found.append(f"took {self.peak_bytes / 2**20:.0f} MiB, at most {WITHIN_BYTES / 2**20:.0f}")
        return found


def arguments(case: str, requests: int) -> list[str]:
    """Of `weir plan`, for about so many requests."""
    values = {
        "per_s": requests / 1000,
        "calm_per_s": requests / 1200 / 2.5,
        "times": requests / _WORKLOAD_REQUESTS,
        "times_mixed": requests / _MIXED_REQUESTS,
    }
    return [argument.format_map({name: f"{value:g}" for name, value in values.items()}) for argument in CASES[case]]


def measure(plan: Sequence[str], out: Path) -> Planned:
    """Runs `weir plan` once. Raises CalledProcessError, after what it printed, when it fails."""
    command = [sys.executable, "-m", "weir", "plan", *plan, "-o", str(out)]
    started_s = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.monotonic() - started_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Planned(
        requests=len(read_schedule(out)),
        wall_s=wall_s,
        peak_bytes=used.ru_maxrss * 1024,
        file_bytes=out.stat().st_size,
    )


def main(given: Sequence[str] | None = None) -> int:
    """Measures every case; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planning", description=__doc__)
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each schedule ({REQUESTS})")
    wanted = parser.parse_args(given).requests
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            planned = measure(arguments(case, wanted), Path(folder) / "schedule.parquet")
            problems = planned.problems(wanted)
            failed = failed or bool(problems)
            print(
                f"{case:<30} {planned.requests:>9,} requests {planned.wall_s:6.2f} s"
                f" {planned.peak_bytes / 2**20:6.0f} MiB, file {planned.file_bytes / 2**20:.1f} MiB"
                f"  {'; '.join(problems) or 'ok'}"
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
