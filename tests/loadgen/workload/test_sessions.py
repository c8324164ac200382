import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.sessions import Begun, Sessions, requests_of
from loadgen.workload.sharing import reuse


def talking(begin_s=(10.0, 1.0)):
    """A session of three requests, and one of a single request; two known texts in front of each prompt."""
    sessions = Sessions(
        turns=np.array([3, 1]),
        since_s=np.array([0.0, 2.0, 3.0, 0.0]),
        chosen=[np.array([1, 0]), np.array([2, 2])],
        added_tokens=np.array([7, 8, 9, 5]),
        output_tokens=np.array([1, 2, 3, 4]),
    )
    return Begun(sessions=sessions, begin_s=np.array(begin_s), known_tokens=np.array([100, 200, 30]))


def single(begin_s=(11.0, 15.0), known=()):
    sessions = Sessions.of_single_requests(
        [np.zeros(2, dtype=np.int64) for _ in known], np.array([50, 60]), np.array([1, 1])
    )
    return Begun(sessions=sessions, begin_s=np.array(begin_s), known_tokens=np.array(known, dtype=np.int64))


def segments(requests, row):
    part = slice(*requests.segment_offsets[row : row + 2])
    return list(zip(requests.segment_ids[part].tolist(), requests.segment_tokens[part].tolist(), strict=True))


def test_a_prompt_is_what_is_known_and_all_that_was_added_so_far():
    requests = requests_of([talking()], 0.0, 100.0)
    first = [(1, 200), (2, 30)]
    assert [segments(requests, row) for row in range(4)] == [
        [(0, 100), (2, 30), (6, 5)],
        [*first, (3, 7)],
        [*first, (3, 7), (4, 8)],
        [*first, (3, 7), (4, 8), (5, 9)],
    ]
    assert requests.at_s.tolist() == [1, 10, 12, 15]
    assert requests.prompt_tokens.tolist() == [135, 237, 245, 254]
    assert requests.output_tokens.tolist() == [4, 1, 2, 3]
    assert requests.session.tolist() == [-1, 0, 0, 0], "a session of one request is none"


def test_kinds_come_together_in_order_of_time_and_within_the_window():
    """Numbers of known texts come first, those of both kinds."""
    requests = requests_of([single(known=[40]), talking()], 10.0, 15.0)
    assert requests.at_s.tolist() == [0, 1, 2]
    assert [segments(requests, row) for row in range(3)] == [
        [(2, 200), (3, 30), (6, 7)],
        [(0, 40), (4, 50)],
        [(2, 200), (3, 30), (6, 7), (7, 8)],
    ]
    assert requests.prompt_tokens.tolist() == [237, 90, 245]
    assert requests.session.tolist() == [2, -1, 2]


def test_no_session_at_all():
    requests = requests_of([single(), talking()], 50.0, 60.0)
    assert (len(requests), requests.prompt_tokens.tolist(), requests.segment_offsets.tolist()) == (0, [], [0])
    nothing = Sessions.of_single_requests([], np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))
    none = Begun(sessions=nothing, begin_s=np.empty(0), known_tokens=np.array([5]))
    assert len(requests_of([none], 0.0, 10.0)) == 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=20), st.integers(0, 2), st.integers(0, 99))
def test_each_request_finds_the_one_before_it_in_a_cache(turns, places, seed):
    rng = np.random.default_rng(seed)
    count, firsts = sum(turns), np.cumsum(turns) - turns
    since_s = rng.random(count)
    since_s[firsts] = 0
    sessions = Sessions(
        turns=np.array(turns),
        since_s=since_s,
        chosen=[rng.integers(0, 3, len(turns)) for _ in range(places)],
        added_tokens=rng.integers(1, 50, count),
        output_tokens=np.ones(count, dtype=np.int64),
    )
    begun = Begun(sessions=sessions, begin_s=rng.random(len(turns)) * 3, known_tokens=np.array([100, 200, 30]))
    ordered = requests_of([single(), begun], 0, 100)
    shared, _ = reuse(ordered)
    assert np.all(np.diff(ordered.at_s) >= 0)
    assert len(ordered) == count + 2
    for session in set(ordered.session.tolist()) - {-1}:
        mine = np.flatnonzero(ordered.session == session)
        assert shared[mine[1:]] == pytest.approx(ordered.prompt_tokens[mine[:-1]]), "all that was said before"
