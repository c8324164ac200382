"""What each latency metric means, exactly, and how it is read off the records.

Latency counts from the intended send time, so a client that falls behind cannot hide it (coordinated
omission: Tene, "How NOT to Measure Latency"; wrk2); service time, from the actual send, stands beside it.
Token counts come from the engine's usage object and never from counting chunks: a chunk is not a token.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.analyze.stats import Distribution, Values, describe
from protocol.records import ChunkRecord, RequestRecord

NS_PER_S = 1e9


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Every latency metric of one group of requests, in seconds; `DEFINITIONS` says what each means."""

    ttft_s: Distribution
    ttfo_s: Distribution
    ttft_service_s: Distribution
    e2e_s: Distribution
    e2e_service_s: Distribution
    tpot_s: Distribution
    chunk_gap_s: Distribution
    chunk_gap_max_s: Distribution
    send_lateness_s: Distribution


class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A metric's name in the data, its short name for people, and its exact meaning."""

    name: str
    label: str
    meaning: str


DEFINITIONS = (
    Definition(
        name="ttft_s",
        label="TTFT",
        meaning="Time to first token: from the intended send time to the read that carried the first "
        "non-empty token text (a role-only event does not count). Over every request that received a "
        "token, whatever became of it later.",
    ),
    Definition(
        name="ttfo_s",
        label="TTFO",
        meaning="Time to first output token: from the intended send time to the first read that carried the answer "
        "itself, text or tool-call arguments; reasoning, which TTFT counts, is left out. Shown where it differs.",
    ),
    Definition(
        name="ttft_service_s",
        label="TTFT, service",
        meaning="The same from the actual send. It leaves out the wait that a late client adds; shown to tell "
        "the system under test from the load generator, never as the headline.",
    ),
    Definition(
        name="e2e_s",
        label="End to end (E2E)",
        meaning="From the intended send time to the end of the response, over requests that succeeded.",
    ),
    Definition(
        name="e2e_service_s",
        label="E2E, service",
        meaning="The same from the actual send.",
    ),
    Definition(
        name="tpot_s",
        label="TPOT",
        meaning="Time per output token, one value per successful request: (last token − first token) / "
        "(output tokens − 1), with output tokens from the usage object. Needs two tokens or more in two "
        "reads or more: tokens that arrive in one read show no spacing.",
    ),
    Definition(
        name="chunk_gap_s",
        label="Chunk gap",
        meaning="Time between two successive reads that carried token text, pooled over all requests. One "
        "read may carry several tokens, so this is not the time between tokens. Gaps of one stream depend "
        "on each other, so no interval is given.",
    ),
    Definition(
        name="chunk_gap_max_s",
        label="Longest gap",
        meaning="The longest chunk gap of each request: the worst stall its reader saw.",
    ),
    Definition(
        name="send_lateness_s",
        label="Send lateness",
        meaning="Actual send minus intended send, over every request sent: the load generator's own error.",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentReads:
    """The reads of one response that completed token text: times (ns, ascending) and events in each."""

    t_ns: npt.NDArray[np.int64]
    events: npt.NDArray[np.int64]

    def gaps_s(self) -> Values:
        """Times between successive reads, seconds; one fewer than reads, none for a single read."""
        return np.diff(self.t_ns) / NS_PER_S


def content_reads(record: ChunkRecord) -> ContentReads:
    """The part of a chunk record that latency is defined on; reads without token text drop out."""
    events = np.asarray(record.content_events, dtype=np.int64)
    carried = events > 0
    return ContentReads(t_ns=np.asarray(record.t_ns, dtype=np.int64)[carried], events=events[carried])


def ttft_ns(request: RequestRecord) -> int | None:
    """Intended send to first token; None without a token."""
    if request.first_token_ns is None:
        return None
    return request.first_token_ns - request.intended_ns


def ttfo_ns(request: RequestRecord) -> int | None:
    """Intended send to the first token of the answer; None without one."""
    return None if request.first_answer_ns is None else request.first_answer_ns - request.intended_ns


def ttft_service_ns(request: RequestRecord) -> int | None:
    """Actual send to first token; None without either."""
    if request.first_token_ns is None or request.sent_ns is None:
        return None
    return request.first_token_ns - request.sent_ns


def e2e_ns(request: RequestRecord) -> int | None:
    """Intended send to end; None unless the request succeeded."""
    if request.outcome != "ok" or request.end_ns is None:
        return None
    return request.end_ns - request.intended_ns


def e2e_service_ns(request: RequestRecord) -> int | None:
    """Actual send to end; None unless the request succeeded."""
    if request.outcome != "ok" or request.end_ns is None or request.sent_ns is None:
        return None
    return request.end_ns - request.sent_ns


def tpot_ns(request: RequestRecord) -> float | None:
    """Mean time per output token after the first; None where tokens or their spacing are unknown."""
    if request.outcome != "ok" or request.output_tokens is None or request.output_tokens < 2:
        return None
    if request.first_token_ns is None or request.last_token_ns is None:
        return None
    span_ns = request.last_token_ns - request.first_token_ns
    return span_ns / (request.output_tokens - 1) if span_ns else None


def send_lateness_ns(request: RequestRecord) -> int | None:
    """Actual minus intended send; None for a request that was never sent."""
    return None if request.sent_ns is None else request.sent_ns - request.intended_ns


def seconds(requests: Iterable[RequestRecord], metric: Callable[[RequestRecord], float | None]) -> Values:
    """`metric` (ns) of each request it applies to, in seconds, in the order given."""
    values = (metric(request) for request in requests)
    return np.array([value for value in values if value is not None], dtype=np.float64) / NS_PER_S


def pooled_gaps_s(requests: Iterable[RequestRecord], reads: Mapping[int, ContentReads]) -> Values:
    """Chunk gaps of these requests in one array, seconds; `reads` by request index."""
    gaps = [reads[request.index].gaps_s() for request in requests if request.index in reads]
    return np.concatenate(gaps) if gaps else np.empty(0)


def longest_gaps_s(requests: Iterable[RequestRecord], reads: Mapping[int, ContentReads]) -> Values:
    """The longest gap of each request that has one, seconds."""
    gaps = (reads[request.index].gaps_s() for request in requests if request.index in reads)
    return np.array([of_one.max() for of_one in gaps if len(of_one)], dtype=np.float64)


def latencies(requests: Sequence[RequestRecord], reads: Mapping[int, ContentReads]) -> Latencies:
    """Every latency metric of these requests; `reads` holds their chunk records by request index."""
    return Latencies(
        ttft_s=describe(seconds(requests, ttft_ns)),
        ttfo_s=describe(seconds(requests, ttfo_ns)),
        ttft_service_s=describe(seconds(requests, ttft_service_ns)),
        e2e_s=describe(seconds(requests, e2e_ns)),
        e2e_service_s=describe(seconds(requests, e2e_service_ns)),
        tpot_s=describe(seconds(requests, tpot_ns)),
        chunk_gap_s=describe(pooled_gaps_s(requests, reads), interval=False),
        chunk_gap_max_s=describe(longest_gaps_s(requests, reads)),
        send_lateness_s=describe(seconds(requests, send_lateness_ns)),
    )
