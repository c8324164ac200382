from loadgen.drive.tally import Counting


def test_counts_go_on_and_lists_begin_anew(made):
    counting = Counting()
    counting.finished(made.request(0, at_ms=10, late_ms=1, ttft_ms=5))
    counting.finished(made.failed(1, at_ms=20))
    counting.finished(made.unsent(2))
    first = counting.tell(sent=2, in_flight=1)
    assert (first.sent, first.in_flight, first.failed) == (2, 1, 2)
    assert first.ttft_ns == [(16 * made.MS, 6 * made.MS)]
    assert first.late_ns == [made.MS, 0]
    second = counting.tell(sent=3, in_flight=0)
    assert (second.failed, second.ttft_ns, second.late_ns) == (2, [], [])


def test_a_tally_stays_small(made):
    counting = Counting()
    for number in range(1500):
        counting.finished(made.request(number))
    told = counting.tell(sent=1500, in_flight=0)
    assert len(told.ttft_ns) == len(told.late_ns) == 1000
