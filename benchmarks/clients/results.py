"""The data of one comparison of load generators: every cell with what was measured in it, saved as JSON.

Tables are made from it again at any time (`benchmarks.clients.page`). Computes nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from benchmarks.results import Machine


class Level(msgspec.Struct, frozen=True, kw_only=True):
    """One load: Poisson arrivals at a mean rate, each answered with 100 chunks."""

    rate_per_s: float
    seconds: float

    @property
    def requests(self) -> int:
        """For tools that want a number."""
        return round(self.rate_per_s * self.seconds)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    p50: float
    p99: float
    max: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """What a client did and said, beside what the server saw. Errors are client less server."""

    requests: int
    """That arrived as part of the load."""
    scheduled: int | None
    """Of the schedule or number it was given; None where it was given a rate and a time."""
    unanswered: int
    """Of those that arrived: streams that the client left before their end."""
    rate_ratio: float
    """Arrivals per second, by those that were asked for."""
    cv: float
    """Of the gaps between arrivals."""
    idc: float
    """Variance over mean of the arrivals per second."""
    joined: Literal["id", "order", "no"]
    """How the client's requests were matched with the server's; by order, neighbours may be swapped."""
    arrival_error_ms: Spread | None
    """True arrival less the intended one; where nothing could be joined, the k-th arrival less the k-th intended one.

    None where the client does not say what it intended.
    """
    ttft_bias_ms: float | None
    """Difference of the medians."""
    ttft_error_p99_ms: float | None
    """P99 of each request's absolute error; where nothing could be joined, the difference of the P99s."""
    gap_error_p99_ms: float | None
    """P99 of each gap's absolute error; None where the client keeps no gaps."""
    marked: int | None
    """Requests of which the client recorded every mark that it promises; None where it promises none."""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """How well the server itself kept to its schedule."""

    real_time: bool
    streams: int
    """More than the requests of the load where a client tried the server out first."""
    late_ms: Spread
    """Each chunk's write less when it was due; timers of a millisecond."""


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What the client's process tree took. CPU is that between the first arrival and the end of the last stream."""

    cpu_s: float | None
    chunks: int
    """In that time."""
    window_s: float
    rss_start_bytes: int
    """The most memory that its processes had together before the load; pages that they share count in each."""
    rss_load_bytes: int
    """Sum of the peaks until the end of the load of those that lived then; they need not have been at one time."""
    start_s: float
    """From starting its program to the first arrival."""
    wall_s: float
    """To its end."""
    foreign_cores: float
    """CPU that processes outside this comparison used in the window, as a share of one core."""

    @property
    def cpu_ms_per_1000_chunks(self) -> float | None:
        """What makes clients comparable that sent different numbers of requests."""
        return self.cpu_s * 1e6 / self.chunks if self.cpu_s is not None and self.chunks else None

    @property
    def rss_peak_bytes(self) -> int:
        """Of the whole run but its end, when files are written."""
        return max(self.rss_start_bytes, self.rss_load_bytes)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One client at one level, once."""

    repeat: int
    level: Level
    client: str
    accuracy: Accuracy
    truth: Truth
    cost: Cost
    disturbed: str | None
    """What disturbed it; None for a quiet cell. A disturbed one is kept only when no try was quiet."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a cell that does not count."""

    repeat: int
    rate_per_s: float
    client: str
    reason: str


class Must(msgspec.Struct, frozen=True, kw_only=True):
    """One promise about weir at one level: the median of the repeats, beside its limit."""

    name: str
    rate_per_s: float
    value: float
    limit: float
    passed: bool


class Report(msgspec.Struct, frozen=True, kw_only=True):
    schema: Literal["weir.clients/1"] = "weir.clients/1"
    date: str
    command: list[str]
    commit: str
    machine: Machine
    versions: dict[str, str]
    levels: list[Level]
    cells: list[Cell]
    rejected: list[Rejected]
    """Disturbed runs that were made again, and runs that failed."""
    musts: list[Must]
    missing: list[str]
    """Clients that did not take part because they are not installed, each with what installs it."""
    unmeasured: list[str]
    """Cells without a result, and why."""
