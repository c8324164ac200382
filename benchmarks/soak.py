"""A long run of mixed, faulty and abandoned traffic through weir, and whether anything of it stays behind.

`python -m benchmarks.soak` starts weir and misbehaving engines, sends what soak_traffic.py describes for ten minutes,
lets everything settle, and prints one line per check. Exit status 1 when a check fails, 2 when something did not start.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import uvloop

from benchmarks import contestants, cpu, soak_checks, soak_traffic
from benchmarks.children import child, line
from benchmarks.contestants import ContestantError
from benchmarks.faulty_engine import Stats
from benchmarks.soak_checks import Evidence, Gateway
from benchmarks.soak_traffic import Sent
from protocol.records import GatewayRecord, read_lines

_CLIENTS = 32
_SAMPLES = 60
_START_S = 20.0
_STOP_S = 10.0
_SETTLE_S = 20.0
"""Longer than idle connections to engines are kept, and than any limit of the gateway below."""

_CONFIG = """\
listen: {host: 127.0.0.1, port: @port@}
pools:
  steady:
    engine: vllm
    endpoints: [{url: "http://127.0.0.1:@steady@"}]
    timeouts: &short {connect_s: 0.5, first_byte_s: 1, chunk_gap_s: 1, total_s: 10}
  shaky:
    engine: vllm
    endpoints: [{url: "http://127.0.0.1:@shaky_a@"}, {url: "http://127.0.0.1:@shaky_b@"}]
    timeouts: *short
  # Nothing accepts there. Health checks that would take it out of the pool are all but off.
  walled:
    engine: vllm
    endpoints: [{url: "http://127.0.0.1:@walled@"}]
    timeouts: *short
    health: {interval_s: 86400, unhealthy_after: 1000}
routes:
  - {model: steady, split: {steady: 1}}
  - {model: shaky, split: {shaky: 1}}
  - {model: walled, split: {walled: 1}}
records: {path: @dir@/gateway.jsonl}
"""


@contextmanager
def _wall() -> Iterator[int]:
    """A port that listens and where nobody gets through: its queue of one connection is full."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port: int = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            yield port


class _Weir:
    """The gateway under test as a process. Use as a context; `stop` before its records are read."""

    def __init__(self, directory: Path, engines: dict[str, int]) -> None:
        self.port = contestants.free_port()
        self.directory = directory
        config = _CONFIG.replace("@port@", str(self.port)).replace("@dir@", str(directory))
        for name, port in engines.items():
            config = config.replace(f"@{name}@", str(port))
        (directory / "weir.yaml").write_text(config, encoding="utf-8")
        self._log = directory / "weir.log"
        command = [sys.executable, "-m", "weir", "serve", "--config", str(directory / "weir.yaml")]
        self._process = contestants.start(command, log=self._log, environment={})
        # It leads the process group; setpriv has replaced itself by it.
        self.pid = self._process.pid

    def wait_until_ready(self) -> None:
        deadline_s = time.monotonic() + _START_S
        while not self._ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise ContestantError(f"weir did not start; the end of its log:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def _ready(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            return _get(self.port, "/readyz")[0] == 200
        return False

    def observe(self) -> Gateway:
        """Its ledgers by its own account, and its open files by the kernel's."""
        in_flight: dict[str, float] = {}
        dropped = 0.0
        for entry in msgspec.json.decode(_get(self.port, "/admin/endpoints")[1], type=list[_Ledger]):
            in_flight[f"/admin/endpoints {entry.name}"] = entry.in_flight
        for text in _get(self.port, "/metrics")[1].decode().splitlines():
            series, _, value = text.rpartition(" ")
            if series.startswith(("weir_in_flight_requests", "weir_endpoint_in_flight_requests")):
                in_flight[series] = float(value)
            elif series == "weir_records_dropped_total":
                dropped = float(value)
        files = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        return Gateway(in_flight=in_flight, records_dropped=dropped, open_files=files)

    def stop(self) -> int | None:
        """Its exit status after SIGTERM; None when it had to be killed."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_STOP_S)
        contestants.stop(self._process)
        return None

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def records(self) -> list[GatewayRecord]:
        return list(read_lines(self.directory / "gateway.jsonl", GatewayRecord))


class _Ledger(msgspec.Struct):
    """What is read of an entry of /admin/endpoints."""

    name: str
    in_flight: int


def _get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def soak(seconds: float, *, seed: int) -> Evidence:
    """Runs everything once. Raises ContestantError when something does not start or does not live through it."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weir-soak-")))
        engine = stack.enter_context(child("benchmarks.faulty_engine", "3"))
        steady, shaky_a, shaky_b = map(int, line(engine).split())
        walled = stack.enter_context(_wall())
        weir = _Weir(directory, {"steady": steady, "shaky_a": shaky_a, "shaky_b": shaky_b, "walled": walled})
        stack.callback(weir.stop)
        weir.wait_until_ready()
        before = weir.observe()
        sent, rss_bytes = uvloop.run(_drive(weir, seconds, seed))
        stats, after = _settle(weir, steady, before)
        exit_status = weir.stop()
        return Evidence(
            sent=sent,
            records=weir.records(),
            engine=stats,
            before=before,
            after=after,
            rss_bytes=rss_bytes,
            log=weir.log(),
            exit_status=exit_status,
        )


async def _drive(weir: _Weir, seconds: float, seed: int) -> tuple[list[Sent], list[int]]:
    rss_bytes: list[int] = []

    async def sample() -> None:
        for _ in range(_SAMPLES):
            await asyncio.sleep(seconds / _SAMPLES)
            rss_bytes.append(cpu.rss_bytes(weir.pid))

    async with asyncio.TaskGroup() as group:
        traffic = group.create_task(soak_traffic.drive(weir.port, clients=_CLIENTS, seconds=seconds, seed=seed))
        group.create_task(sample())
    return traffic.result(), rss_bytes


def _settle(weir: _Weir, engine_port: int, before: Gateway) -> tuple[Stats, Gateway]:
    """Engine and gateway once nothing is left in flight, or as they still are after _SETTLE_S."""
    deadline_s = time.monotonic() + _SETTLE_S
    while True:
        after = weir.observe()
        stats = msgspec.json.decode(_get(engine_port, "/stats")[1], type=Stats)
        busy = stats.at_work or any(after.in_flight.values()) or after.open_files > before.open_files
        if not busy or time.monotonic() > deadline_s:
            return stats, after
        time.sleep(0.5)


def main(arguments: list[str]) -> int:
    """Exit status as the module says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, metavar="S", help="of traffic (default: 600)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the traffic's mix (default: 1)")
    options = parser.parse_args(arguments)
    if options.seconds <= 0:
        parser.error("--seconds must be more than 0")
    try:
        evidence = soak(options.seconds, seed=options.seed)
    except (ContestantError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    checks = [check(evidence) for check in soak_checks.CHECKS]
    for check in checks:
        print(f"{'ok  ' if check.passed else 'FAIL'}  {check.title}: {check.found}")
    passed = all(check.passed for check in checks)
    print(f"{'PASSED' if passed else 'FAILED'}: {len(evidence.sent)} requests in {options.seconds:g} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
