import asyncio
import sys

from loadgen.drive.chat import Outgoing
from loadgen.drive.client import Client, Exchange, parse_target
from loadgen.drive.evidence import record
from protocol.records import ScheduledRequest


async def test_it_streams_a_chunk_a_millisecond_and_ends_with_its_standard_input():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadgen.drive.null_server", "5"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        port = int(await process.stdout.readline())
        client = await Client.open(parse_target(f"http://127.0.0.1:{port}"))
        request = ScheduledRequest(index=0, at_ns=0, prompt_tokens=1, output_tokens=5, segments=((0, 1),))
        for _ in range(2):
            exchange = Exchange(b"POST / HTTP/1.1\r\nhost: null\r\ncontent-length: 0\r\n\r\n")
            await client.send(exchange)
            answer, chunks = await record(
                request, Outgoing(request_id="", trace_id="", wire=b""), exchange, origin_ns=0
            )
            assert (answer.outcome, sum(chunks.content_events)) == ("ok", 5)
            # Four waits of a millisecond, however late the reads are.
            assert answer.end_ns - exchange.sent_ns >= 4_000_000
        assert not exchange.new_connection
        client.close()
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 10) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
