import pytest

from loadgen.drive.calibrate import NullServer, busiest_per_s, calibrate
from loadgen.plan.arrivals import parse_arrivals
from loadgen.plan.making import make, make_closed
from loadgen.plan.sources import Lengths, Part


def planned(lengths="10:20", arrivals="constant:rate=7", duration_s=10):
    return make(Lengths.parse(lengths), Part(seed=1, duration_s=duration_s), parse_arrivals(arrivals)).schedule


async def test_what_the_client_can_do_is_measured_in_its_own_cpu_time():
    requests = planned()
    async with NullServer(requests) as server:
        found = await calibrate(server, requests, workers=1)
    assert (found.requests, found.chunks, found.busiest_per_s) == (16, 20, 7)
    assert 0 < found.cpu_s < 10
    assert found.capacity_per_s == pytest.approx(16 / found.cpu_s, rel=0.05)


async def test_longer_answers_cost_in_proportion_and_workers_share_the_load():
    requests = planned("10:400", "constant:rate=8")
    async with NullServer(requests) as server:
        found = await calibrate(server, requests, workers=2)
    assert found.chunks == 100
    assert found.capacity_per_s == pytest.approx(16 / found.cpu_s / 4, rel=0.05)
    assert found.busiest_per_s == 4


async def test_a_server_that_is_gone_is_an_error():
    requests = planned()
    async with NullServer(requests) as server:
        server._process.kill()
        await server._process.wait()
        with pytest.raises(OSError, match=r"did not come up|Connect"):
            await calibrate(server, requests, 1)


def test_the_busiest_second_counts_and_a_closed_loop_has_none():
    assert busiest_per_s(planned(arrivals="constant:rate=2.5", duration_s=4)) == 3
    closed = make_closed(Lengths.parse("5:5"), Part(seed=1, duration_s=60), concurrency=2, requests=9)
    assert busiest_per_s(closed) == 0
