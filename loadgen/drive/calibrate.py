"""What this client can do: some streams from a server that does nothing else, and the CPU time that they cost here.

Measured before every run, on the machine and with the code that it will use, in about a quarter of a second.
"""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np

from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Client, Exchange, Target
from loadgen.drive.evidence import record
from loadgen.plan.schedule import Schedule
from protocol.records import Calibration, ScheduledRequest, encode_line

_STREAMS = 16
_MOST_CHUNKS = 100
"""Of longer answers, a part: they are taken to cost in proportion."""
_TIMEOUT_S = 10.0


class NullServer:
    """The server's process. It is started early, so that it is there when it is needed."""

    def __init__(self, requests: Schedule) -> None:
        self.mean_chunks = max(1.0, float(np.mean(requests.output_tokens))) if len(requests) else 1.0
        self.chunks = min(_MOST_CHUNKS, round(self.mean_chunks))

    async def __aenter__(self) -> NullServer:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen.drive.null_server", str(self.chunks)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def port(self) -> int:
        """Raises OSError when it did not come up."""
        assert self._process.stdout is not None
        text = await self._process.stdout.readline()
        if not text.strip():
            raise OSError("the server to calibrate with did not come up")
        return int(text)


async def calibrate(server: NullServer, requests: Schedule, workers: int) -> Calibration:
    """How many such requests a second keep this client's core busy, and how many each worker will have to send.

    Raises OSError when the server cannot be reached, TimeoutError when it does not answer.
    """
    async with asyncio.timeout(_TIMEOUT_S):
        target = Target(tls=False, host="127.0.0.1", port=await server.port(), path="")
        client = await Client.open(target)
        try:
            # The first round opens the connections, which a run keeps, and warms what every later one has warm.
            await _round(client)
            before_s = time.process_time()
            await _round(client)
            cpu_s = time.process_time() - before_s
        finally:
            client.close()
    each_s = cpu_s / _STREAMS * server.mean_chunks / server.chunks
    return Calibration(
        requests=_STREAMS,
        chunks=server.chunks,
        cpu_s=round(cpu_s, 4),
        capacity_per_s=round(1 / each_s, 1),
        busiest_per_s=busiest_per_s(requests) / max(1, workers),
    )


async def _round(client: Client) -> None:
    await asyncio.gather(*(_stream(client) for _ in range(_STREAMS)))


async def _stream(client: Client) -> None:
    """All that a request of a run costs after its prompt was made."""
    exchange = Exchange(b"POST / HTTP/1.1\r\nhost: null\r\ncontent-length: 0\r\n\r\n")
    await client.send(exchange)
    request = ScheduledRequest(index=0, at_ns=0, prompt_tokens=1, output_tokens=1, segments=((0, 1),))
    for line in await record(request, Outgoing(request_id="0", trace_id="0", wire=b""), exchange, origin_ns=0):
        if line is not None:
            encode_line(line)


def busiest_per_s(requests: Schedule) -> float:
    """Requests in the busiest whole second of a schedule; 0 for a closed loop, which has no times."""
    if requests.header.concurrency is not None or not len(requests):
        return 0.0
    return float(np.bincount(np.asarray(requests.at_ns) // 1_000_000_000).max())
