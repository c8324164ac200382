"""Opens many streams through a contestant and holds them, silent after their first chunk, to see what memory they cost.

Plain blocking sockets, a batch at a time: what the clients cost does not matter here, only what the contestant holds.
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from contextlib import ExitStack

from benchmarks import cpu, wire
from benchmarks.contestants import Running
from benchmarks.results import IdleResult, IdleScenario

_SILENT = wire.Shape(ttft_ms=0, gap_ms=3_600_000, chunks=2)
"""One chunk, and the next in an hour."""

_BATCH = 100
"""Streams that are being opened at once: fewer than any listener's backlog."""

_WARM_UP_BATCHES = 2


def hold(target: Running, scenario: IdleScenario) -> IdleResult:
    """Memory of `target` before and with the streams. Those of a warm-up are gone when it is first read."""
    with ExitStack() as warm_up:
        for _ in range(_WARM_UP_BATCHES):
            _open(target.port, min(_BATCH, scenario.streams), warm_up, Counter(), within_s=scenario.limit_s)
    time.sleep(scenario.settle_s)
    before_bytes = _memory(target)
    failed: Counter[str] = Counter()
    opened = 0
    started_s = time.monotonic()
    with ExitStack() as streams:
        while opened + failed.total() < scenario.streams and time.monotonic() - started_s < scenario.limit_s:
            batch = min(_BATCH, scenario.streams - opened - failed.total())
            within_s = max(0.1, started_s + scenario.limit_s - time.monotonic())
            opened += _open(target.port, batch, streams, failed, within_s=within_s)
        opened_s = time.monotonic() - started_s
        time.sleep(scenario.settle_s)
        after_bytes = _memory(target)
    return IdleResult(
        streams=opened,
        failed=dict(failed),
        opened_s=opened_s,
        rss_before_bytes=before_bytes,
        rss_after_bytes=after_bytes,
    )


def _memory(target: Running) -> int | None:
    return cpu.rss_bytes(target.pid) or None if target.pid else None


def _open(port: int, count: int, streams: ExitStack, failed: Counter[str], *, within_s: float) -> int:
    """How many of `count` new streams got their first chunk; the others are counted in `failed`, by reason."""
    request = wire.request(port, wire.request_body(_SILENT))
    until_s = time.monotonic() + within_s
    opened = []
    for _ in range(count):
        try:
            client = streams.enter_context(socket.create_connection(("127.0.0.1", port), within_s))
            client.sendall(request)
        except OSError as error:
            failed[str(error)] += 1
        else:
            opened.append(client)
    reasons = [reason for client in opened if (reason := _why_not_streaming(client, until_s))]
    failed.update(reasons)
    return len(opened) - len(reasons)


def _why_not_streaming(client: socket.socket, until_s: float) -> str | None:
    """Reads to the end of the first chunk's event; None when it came."""
    answer = b""
    try:
        while not (wire.STAMP.search(answer) and b"\n\n" in answer):
            client.settimeout(max(1e-3, until_s - time.monotonic()))
            data = client.recv(1 << 16)
            if not data:
                return "closed before the first chunk"
            answer += data
            if not answer.startswith(b"HTTP/1.1 200"[: len(answer)]):
                return answer.splitlines()[0].decode(errors="replace")
    except OSError as error:
        return str(error)
    return None
