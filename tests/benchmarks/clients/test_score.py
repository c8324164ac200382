import math

import numpy as np
import pytest

from benchmarks.clients.score import Account, Sight, accuracy, rate_per_s, truth
from benchmarks.clients.server import Log, Stream

MS = 1_000_000


def stream(number: int, *, at_ms: float, written_ms: tuple[float, ...] = (50, 60, 70), chunks: int = 3) -> Stream:
    arrived_ns = int(at_ms * MS)
    return Stream(
        request_id=str(number),
        arrived_ns=arrived_ns,
        due_ns=arrived_ns + 50 * MS,
        written_ns=[arrived_ns + int(after_ms * MS) for after_ms in written_ms],
        chunks=chunks,
    )


def log(*streams: Stream) -> Log:
    return Log(real_time=True, streams=list(streams))


FOUR = log(*(stream(number, at_ms=1000 * number) for number in range(4)))


def account(sights: list[Sight], rate: float = 1.0) -> Account:
    return Account(sights=sights, rate_per_s=rate, scheduled=len(sights))


def test_a_client_that_is_right_has_no_errors() -> None:
    sights = [
        Sight(request_id=str(n), intended_ns=1000 * n * MS, ttft_ns=50 * MS, gaps_ns=[10 * MS] * 2) for n in range(4)
    ]
    found = accuracy(FOUR, account(sights))
    assert (found.requests, found.scheduled, found.unanswered, found.joined) == (4, 4, 0, "id")
    assert found.rate_ratio == pytest.approx(1)
    assert (found.cv, found.idc) == (0, 0)
    assert found.arrival_error_ms is not None
    assert (found.arrival_error_ms.p50, found.arrival_error_ms.max) == (0, 0)
    assert (found.ttft_bias_ms, found.ttft_error_p99_ms, found.gap_error_p99_ms) == (0, 0, 0)


def test_errors_are_the_clients_figures_less_the_servers() -> None:
    sights = [
        Sight(request_id=str(n), intended_ns=(1000 * n - 3) * MS, ttft_ns=52 * MS, gaps_ns=[6 * MS, 14 * MS])
        for n in range(4)
    ]
    found = accuracy(FOUR, account(sights, rate=2))
    assert found.rate_ratio == pytest.approx(0.5)
    assert found.arrival_error_ms is not None
    assert found.arrival_error_ms.p99 == pytest.approx(3)
    assert found.ttft_bias_ms == pytest.approx(2)
    assert found.ttft_error_p99_ms == pytest.approx(2)
    assert found.gap_error_p99_ms == pytest.approx(4)


def test_with_ids_the_order_of_the_report_does_not_matter_and_other_requests_are_left_out() -> None:
    streams = [stream(9, at_ms=0, written_ms=(500,), chunks=1), *FOUR.streams]
    sights = [Sight(request_id=str(n), ttft_ns=50 * MS) for n in (2, 0, 3, 1)]
    found = accuracy(log(*streams), account(sights))
    assert (found.requests, found.joined, found.ttft_error_p99_ms) == (4, "id", 0)


def test_without_ids_the_last_to_arrive_are_the_load_in_order() -> None:
    early = stream(0, at_ms=-5000, written_ms=(500,), chunks=1)
    found = accuracy(log(early, *FOUR.streams), account([Sight(ttft_ns=51 * MS) for _ in range(4)]))
    assert (found.requests, found.joined) == (4, "order")
    assert found.ttft_error_p99_ms == pytest.approx(1)
    assert found.arrival_error_ms is None
    assert found.gap_error_p99_ms is None


def test_requests_that_a_client_cut_off_before_they_arrived_are_left_out() -> None:
    sights = [*(Sight(intended_ns=1000 * n * MS, ttft_ns=51 * MS) for n in range(4)), Sight(intended_ns=4001 * MS)]
    found = accuracy(FOUR, account(sights))
    assert (found.requests, found.joined) == (4, "order")
    assert found.arrival_error_ms is not None
    assert found.arrival_error_ms.max == 0


def test_what_cannot_be_joined_is_compared_as_a_whole() -> None:
    # More sights than streams, so no order can be right.
    found = accuracy(FOUR, account([Sight(ttft_ns=53 * MS) for _ in range(5)]))
    assert (found.requests, found.joined) == (4, "no")
    assert found.ttft_bias_ms == pytest.approx(3)
    assert found.ttft_error_p99_ms == pytest.approx(3)
    # Nobody knows which came, so the four that did are taken to be the first four intended.
    late = [Sight(intended_ns=(1000 * n - 7) * MS, ttft_ns=MS) for n in (4, 3, 2, 1, 0)]
    kth = accuracy(FOUR, account(late)).arrival_error_ms
    assert kth is not None
    assert kth.p50 == kth.max == pytest.approx(7)
    # An id that the server never saw.
    unknown = [Sight(request_id=f"x{n}", ttft_ns=50 * MS) for n in range(4)]
    assert accuracy(FOUR, account(unknown)).joined == "no"


def test_nothing_said_gives_no_figure() -> None:
    found = accuracy(FOUR, account([Sight() for _ in range(4)]))
    assert (found.ttft_bias_ms, found.ttft_error_p99_ms, found.gap_error_p99_ms) == (None, None, None)


def test_gaps_count_only_when_most_streams_have_all_of_theirs() -> None:
    whole, short = Sight(ttft_ns=1, gaps_ns=[10 * MS] * 2), Sight(ttft_ns=1, gaps_ns=[10 * MS])
    assert accuracy(FOUR, account([whole, whole, whole, short])).gap_error_p99_ms == 0
    assert accuracy(FOUR, account([whole, whole, short, short])).gap_error_p99_ms is None


def test_streams_that_the_client_left_are_counted() -> None:
    cut = log(*FOUR.streams, stream(4, at_ms=4000, written_ms=(50,)), stream(5, at_ms=5000, written_ms=()))
    assert accuracy(cut, account([Sight(ttft_ns=1) for _ in range(6)])).unanswered == 2


def test_too_few_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="only 2 requests arrived"):
        accuracy(log(*FOUR.streams[:2]), account([]))


def test_poisson_arrivals_have_a_cv_and_a_dispersion_of_about_one() -> None:
    at_ms = np.cumsum(np.random.default_rng(1).exponential(10, 20_000))
    found = accuracy(log(*(stream(n, at_ms=at) for n, at in enumerate(at_ms))), account([], rate=100))
    assert found.cv == pytest.approx(1, abs=0.05)
    # 200 windows: the standard deviation of the dispersion is 0.1.
    assert found.idc == pytest.approx(1, abs=0.35)
    assert found.rate_ratio == pytest.approx(1, abs=0.03)


def test_one_second_says_nothing_of_dispersion() -> None:
    assert accuracy(log(*(stream(n, at_ms=100 * n) for n in range(5))), account([])).idc == 0


def test_the_servers_own_lateness_is_over_all_its_chunks() -> None:
    late = truth(log(stream(0, at_ms=0, written_ms=(51, 60, 73)), stream(1, at_ms=7, written_ms=(50, 60, 70))))
    assert (late.real_time, late.streams) == (True, 2)
    assert late.late_ms.max == pytest.approx(3)
    assert late.late_ms.p50 == 0
    assert 1 < late.late_ms.p99 < 3


def test_a_rate_is_gaps_per_second() -> None:
    assert math.isclose(rate_per_s(np.array([0, 5e8, 1e9, 1.5e9])), 2)
