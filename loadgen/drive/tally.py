"""How a run is going, as a worker tells it and as it is shown: small counts, told twice a second.

It measures nothing: what it says is taken from records that are kept anyway.
"""

from __future__ import annotations

import msgspec

from protocol.records import RequestRecord

_MOST = 1000
"""Of more first tokens or sends between two tellings, the first."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """One worker's state. Counts are since its start, lists since the last telling."""

    sent: int
    in_flight: int
    failed: int
    ttft_ns: list[tuple[int, int]]
    """When a first token came, since the start of the run, and how long it took from the intended time."""
    late_ns: list[int]


class Counting:
    """Takes finished requests, and tells of them."""

    def __init__(self) -> None:
        self._failed = 0
        self._ttft_ns: list[tuple[int, int]] = []
        self._late_ns: list[int] = []

    def finished(self, record: RequestRecord) -> None:
        """Notes a finished request; its latencies count from the intended time."""
        if record.outcome != "ok":
            self._failed += 1
        if record.first_token_ns is not None and len(self._ttft_ns) < _MOST:
            self._ttft_ns.append((record.first_token_ns, record.first_token_ns - record.intended_ns))
        if record.sent_ns is not None and len(self._late_ns) < _MOST:
            self._late_ns.append(record.sent_ns - record.intended_ns)

    def tell(self, *, sent: int, in_flight: int) -> Tally:
        """The state now; the lists begin anew."""
        told = Tally(sent=sent, in_flight=in_flight, failed=self._failed, ttft_ns=self._ttft_ns, late_ns=self._late_ns)
        self._ttft_ns, self._late_ns = [], []
        return told
