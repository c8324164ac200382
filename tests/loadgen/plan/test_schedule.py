import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.schedule import check, materialise
from loadgen.workload.traffic import Requests
from protocol.records import ScheduledRequest, ScheduleHeader

HEADER = ScheduleHeader(source="s", source_sha256="0" * 64, seed=1, text_seed=1, requests=0, duration_ns=10**12)

PROMPTS = st.lists(st.lists(st.tuples(st.integers(-3, 5), st.integers(0, 9)), max_size=4), max_size=12)


def requests(prompts, *, at_s=None, outputs=None, sessions=None):
    """Requests whose prompts are lists of (id, tokens)."""
    segments = [segment for prompt in prompts for segment in prompt]
    ids, tokens = np.array(segments, dtype=np.int64).reshape(-1, 2).T
    count = len(prompts)
    return Requests(
        at_s=np.arange(count, dtype=float) if at_s is None else np.array(at_s, dtype=float),
        prompt_tokens=np.array([sum(length for _, length in prompt) for prompt in prompts], dtype=np.int64),
        output_tokens=np.full(count, 7) if outputs is None else np.array(outputs),
        session=np.full(count, -1) if sessions is None else np.array(sessions),
        segment_offsets=np.concatenate(([0], np.cumsum([len(prompt) for prompt in prompts], dtype=np.int64))),
        segment_ids=ids,
        segment_tokens=tokens,
    )


@given(PROMPTS)
def test_every_request_keeps_its_lengths_and_none_is_empty(prompts):
    schedule = materialise(requests(prompts), HEADER)
    assert schedule.header.requests == len(schedule) == len(prompts)
    assert schedule.header.raised == sum(not sum(length for _, length in prompt) for prompt in prompts)
    for made, prompt in zip(schedule, prompts, strict=True):
        kept = [length for _, length in prompt if length]
        assert [length for _, length in made.segments] == (kept or [1])
        assert made.prompt_tokens == max(1, sum(kept))


@given(PROMPTS)
def test_text_is_shared_exactly_where_ids_are(prompts):
    made = [segment for request in materialise(requests(prompts), HEADER) for segment in request.segments]
    given_ids = [segment for prompt in prompts for segment in ([(i, n) for i, n in prompt if n] or [(-1, 1)])]
    assert all(made_id >= 0 for made_id, _ in made)
    for (first, _), (given_first, _) in zip(made, given_ids, strict=True):
        alike = [
            other for (other, _), (given_other, _) in zip(made, given_ids, strict=True) if given_other == given_first
        ]
        assert set(alike) == {first} if given_first >= 0 else made.count(first) <= 1


def ids(prompts, **seeds):
    header = ScheduleHeader(**{"source": "s", "source_sha256": "", "requests": 0, "duration_ns": 1, **seeds})
    return materialise(requests(prompts), header).segment_ids.tolist()


def test_two_seeds_share_no_text_unless_asked_and_then_only_what_is_shared_within():
    prompts = [[(4, 9), (-1, 5)], [(4, 9), (-1, 5)], [(0, 3), (-7, 5)]]
    mine, theirs = ids(prompts, seed=1, text_seed=1), ids(prompts, seed=2, text_seed=2)
    assert not set(mine) & set(theirs)
    asked = ids(prompts, seed=2, text_seed=1)
    assert set(mine) & set(asked) == {mine[0], mine[4]}
    assert ids(prompts, seed=1, text_seed=1) == mine
    assert ids(prompts[:1], seed=1, text_seed=1) == mine[:2]


def test_ids_do_not_collide_among_many():
    shared = [[(number, 1)] for number in range(5_000)]
    found = ids(shared + [[(-1, 1)]] * 5_000, seed=3, text_seed=3)
    assert len(set(found)) == 10_000
    assert max(found) < 2**63


def test_times_are_rounded_to_nanoseconds_and_other_columns_kept():
    schedule = materialise(requests([[(1, 2)], [(1, 2)]], at_s=[0.1, 1 / 3], outputs=[0, 3], sessions=[5, -1]), HEADER)
    assert schedule.at_ns.tolist() == [100_000_000, 333_333_333]
    assert [(r.output_tokens, r.session, r.index) for r in schedule] == [(1, 5, 0), (3, -1, 1)]
    assert schedule.header == ScheduleHeader(
        source="s", source_sha256="0" * 64, seed=1, text_seed=1, requests=2, duration_ns=10**12, raised=1
    )


def test_a_schedule_is_a_sequence_and_its_parts_keep_their_numbers():
    schedule = materialise(requests([[(k, 1 + k % 3)] * (k % 4) for k in range(10_000)]), HEADER)
    listed = list(schedule)
    assert [schedule[at] for at in (0, 4095, 4096, 9999, -1)] == [listed[at] for at in (0, 4095, 4096, 9999, 9999)]
    assert isinstance(listed[0], ScheduledRequest)
    shares = [schedule[worker::3] for worker in range(3)]
    assert sorted((r for share in shares for r in share), key=lambda r: r.index) == listed
    assert [r.index for r in shares[1][2:4]] == [7, 10]
    assert list(schedule[:0]) == []
    assert shares[2].header == schedule.header
    assert list(pickle.loads(pickle.dumps(shares[2]))) == list(shares[2])
    assert schedule[np.int64(3)] == listed[3]
    with pytest.raises(IndexError):
        schedule[10_000]


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"at_s": [2.0, 1.0]}, "request 1: at_ns goes back, to 1000000000"),
        ({"at_s": [-1.0, 1.0]}, "request 0: at_ns is -1000000000, before the start of the run"),
        ({"outputs": [1, -1]}, "request 1: output_tokens is -1: at least 1"),
        ({"outputs": [2**31, 1]}, "output_tokens has 2147483648: a schedule holds up to 2147483647"),
        ({"sessions": [0, -2]}, "request 1: session is -2: at least 0, or -1 for none"),
    ],
)
def test_requests_that_make_no_schedule_are_refused(given_, message):
    with pytest.raises(ValueError, match=message):
        materialise(requests([[(1, 2)], [(1, 2)]], **given_), HEADER)


def test_lengths_that_do_not_add_up_are_refused():
    wrong = replace(requests([[(1, 2)], [(1, 2), (2, 3)]]), prompt_tokens=np.array([2, 9]))
    with pytest.raises(ValueError, match="request 1: has segments of 5 tokens in all, not its prompt_tokens"):
        materialise(wrong, HEADER)
    wrong = replace(requests([[]]), prompt_tokens=np.array([4]))
    with pytest.raises(ValueError, match="request 0: has segments of 1 tokens in all"):
        materialise(wrong, HEADER)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"indices": np.array([0, 2])}, "request 1: says it is 2: number requests from 0, in order"),
        ({"segment_ids": np.array([0, -1])}, "a segment has the id -1: ids are at least 0"),
        ({"segment_tokens": np.array([2, 0], dtype=np.int32)}, "a segment has 0 tokens: at least 1"),
        ({"header": HEADER}, "the header promises 0 requests, there are 2"),
    ],
)
def test_a_check_finds_what_no_reader_expects(changes, message):
    schedule = replace(materialise(requests([[(1, 2)], [(1, 2)]]), HEADER), **changes)
    with pytest.raises(ValueError, match=message):
        check(schedule)
