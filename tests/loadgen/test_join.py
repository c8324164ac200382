"""The join: every record lands in exactly one place."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.join import Pair, join, outside_gateway_ns, phase_durations_ns

US = 1_000


def test_records_pair_by_trace_id(made):
    requests = [made.request(0), made.request(1)]
    found = join(requests, [made.gateway(requests[1]), made.gateway(requests[0])])
    assert [(p.request.index, p.gateway.request_id) for p in found.pairs] == [(0, "run-0"), (1, "run-1")]
    assert (found.requests_without_gateway, found.gateway_without_request, found.unsent) == ((), (), ())


def test_orphans_of_both_sides_are_kept(made):
    here, there = made.request(0), made.request(1)
    found = join([here, made.unsent(2)], [made.gateway(there)])
    assert found.pairs == ()
    assert found.requests_without_gateway == (here,)
    assert [g.request_id for g in found.gateway_without_request] == ["run-1"]
    assert [r.index for r in found.unsent] == [2]


def test_a_repeated_trace_id_pairs_nothing(made):
    one, two = made.request(0), made.request(1)
    seen = [made.gateway(one), made.gateway(one, request_id="again"), made.gateway(two)]
    found = join([one, two], seen)
    assert [p.request.index for p in found.pairs] == [1]
    assert found.duplicate_requests == (one,)
    assert [g.request_id for g in found.duplicate_gateway] == ["run-0", "again"]


def test_unsent_requests_share_an_empty_id_without_being_duplicates(made):
    never = [msgspec.structs.replace(made.unsent(i), trace_id="") for i in range(3)]
    found = join([made.request(3), *never], [made.gateway(made.request(3))])
    assert (len(found.pairs), found.unsent, found.duplicate_requests) == (1, tuple(never), ())


ids = st.lists(st.integers(0, 8), max_size=12)


@given(ids, ids, st.integers(0, 8))
def test_no_record_is_dropped_or_used_twice(made, client_ids, gateway_ids, first_unsent):
    requests = [(made.request if trace < first_unsent else made.unsent)(i) for i, trace in enumerate(client_ids)]
    requests = [msgspec.structs.replace(r, trace_id=str(trace)) for r, trace in zip(requests, client_ids, strict=True)]
    seen = [made.gateway(made.request(0), trace_id=str(t), request_id=f"g{i}") for i, t in enumerate(gateway_ids)]
    found = join(requests, seen)
    client_side = [
        *(p.request for p in found.pairs),
        *found.requests_without_gateway,
        *found.unsent,
        *found.duplicate_requests,
    ]
    gateway_side = [*(p.gateway for p in found.pairs), *found.gateway_without_request, *found.duplicate_gateway]
    assert sorted(r.index for r in client_side) == list(range(len(requests)))
    assert sorted(g.request_id for g in gateway_side) == sorted(f"g{i}" for i in range(len(seen)))
    assert all(p.request.trace_id == p.gateway.trace_id for p in found.pairs)


def test_a_phase_lasts_until_the_next_mark_and_durations_add_up(made):
    record = made.gateway(made.request(0))
    found = phase_durations_ns(record)
    assert list(found) == ["receive", "admit", "route", "connect", "send", "first_byte", "relay", "finish"]
    assert found["receive"] == 10 * US
    assert found["finish"] == 15 * US
    assert sum(found.values()) == record.marks_ns["end"]


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ({"receive": 0, "admit": 5, "finish": 9, "end": 12}, {"receive": 5, "admit": 4, "finish": 3}),
        ({"receive": 0, "admit": 0, "end": 0}, {"receive": 0, "admit": 0}),
        ({"end": 5, "route": 2, "receive": 0, "nap": 1}, {"receive": 2, "route": 3}),
        ({"receive": 0, "send": 4}, {"receive": 4}),
        ({"receive": 0, "end": 7, "finish": 9}, {"receive": 7}),
        ({}, {}),
    ],
    ids=["rejected", "no time at all", "any order, unknown marks", "no end", "a mark after the end", "nothing"],
)
def test_phases_that_were_not_entered_take_no_time(made, marks, expected):
    assert phase_durations_ns(made.gateway(made.request(0), marks_ns=marks)) == expected


def test_time_outside_the_gateway(made):
    request = made.request(0)
    spent = request.end_ns - request.sent_ns

    def outside(of, marks):
        return outside_gateway_ns(Pair(request=of, gateway=made.gateway(request, marks_ns=marks)))

    assert outside(request, {"receive": 0, "finish": spent - 30, "end": spent}) == 30
    assert outside(request, {"receive": 10, "end": spent}) == 10
    assert outside(request, {"receive": 0}) is None
    assert outside(request, {"end": 5}) is None
    assert outside(made.unsent(), {"receive": 0, "end": 5}) is None
    assert outside(made.request(end_ns=None), {"receive": 0, "end": 5}) is None
