from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.workload.sharing import Sharing, hit_ratio, reuse
from loadgen.workload.traffic import Requests

CHAT = Sharing(
    block_tokens=16,
    common_blocks=2,
    common_share=0.9,
    continue_share=[0.4, 0.6],
    reused=[0.2, 0.5, 0.9],
    delay_s=[5.0, 30.0, 60.0],
    fit=None,
)


def changed(**fields):
    return msgspec.structs.replace(CHAT, **fields)


def draw(sharing, seed=1, count=3000, tokens=(1, 2000)):
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(0.5, count))
    prompt, output = rng.integers(*tokens, count, endpoint=True), rng.integers(1, 100, count)
    return sharing.draw(rng, at_s, prompt, output)


def prompts(requests):
    """The segments of each prompt."""
    pairs = list(zip(requests.segment_ids.tolist(), requests.segment_tokens.tolist(), strict=True))
    edges = requests.segment_offsets.tolist()
    return [pairs[begin:end] for begin, end in pairwise(edges)]


def made(*rows):
    """Requests a second apart; each row is the ids of its blocks of 10 tokens."""
    counts = [len(row) for row in rows]
    tokens = np.full(sum(counts), 10)
    return Requests(
        at_s=np.arange(len(rows), dtype=float),
        prompt_tokens=np.array(counts) * 10,
        output_tokens=np.ones(len(rows), dtype=np.int64),
        session=np.full(len(rows), -1),
        segment_offsets=np.concatenate(([0], np.cumsum(counts))),
        segment_ids=np.array([identity for row in rows for identity in row], dtype=np.int64),
        segment_tokens=tokens,
    )


@given(st.integers(0, 1000), st.integers(1, 64), st.integers(0, 5), st.integers(1, 300))
def test_segments_add_up_to_the_prompt_and_are_blocks(seed, block, common, count):
    requests = draw(changed(block_tokens=block, common_blocks=common), seed, count, (1, 500))
    assert np.add.reduceat(requests.segment_tokens, requests.segment_offsets[:-1]).tolist() == (
        requests.prompt_tokens.tolist()
    )
    for segments in prompts(requests):
        assert all(tokens == block for _, tokens in segments[:-1])
        assert 1 <= segments[-1][1] <= block
    assert (requests.segment_ids >= 0).all()


def test_equal_text_is_always_a_prefix_of_whole_blocks():
    """A block that was seen before follows the same blocks as it did then: text is shared from the start or not."""
    before = {}
    for segments in prompts(draw(CHAT, count=800)):
        ids = tuple(identity for identity, _ in segments)
        for depth, (identity, tokens) in enumerate(segments):
            assert before.setdefault(identity, (ids[:depth], tokens)) == (ids[:depth], tokens)
            assert before[identity][1] == CHAT.block_tokens or depth == len(segments) - 1


def test_as_many_go_on_and_begin_alike_as_is_said():
    requests = draw(CHAT, tokens=(64, 2000))
    shared, _ = reuse(requests)
    assert np.mean(shared > 32) == pytest.approx(0.5, abs=0.04)
    assert np.mean(requests.segment_ids[requests.segment_offsets[:-1]] == 0) == pytest.approx(0.9, abs=0.07)


def test_longer_prompts_go_on_more_often_where_it_is_said_so():
    requests = draw(changed(continue_share=[0.0, 1.0], common_blocks=0))
    shared, _ = reuse(requests)
    short = requests.prompt_tokens < 500
    assert np.mean(shared[short] > 0) < 0.25
    assert np.mean(shared[~short] > 0) > 0.5


def test_what_is_gone_on_from_came_about_as_long_ago_as_is_said():
    requests = draw(changed(common_blocks=0, continue_share=[0.5], delay_s=[20.0, 20.0], reused=[0.5, 0.5]))
    _, since_s = reuse(requests)
    known = since_s[~np.isnan(since_s)]
    # 64 requests are looked at, one in half a second.
    assert np.mean((known > 2) & (known < 38)) > 0.95


def test_nothing_is_shared_where_nothing_is_said_to_be():
    requests = draw(changed(continue_share=[0.0], common_share=0.0))
    assert hit_ratio(requests) == 0
    assert len(np.unique(requests.segment_ids)) == len(requests.segment_ids)


def test_equal_generators_give_equal_text():
    first, second = draw(CHAT, 7, 400), draw(CHAT, 7, 400)
    assert first.segment_ids.tolist() == second.segment_ids.tolist()


def test_a_million_blocks_are_drawn_in_seconds():
    requests = draw(CHAT, count=20_000)
    assert len(requests.segment_ids) > 1_000_000


def test_a_prefix_is_reused_as_far_as_all_of_it_was_there():
    requests = made([1, 2, 3], [1, 2, 4], [1, 9, 3], [5, 2], [1, 2, 4, 6], [-1, 2], [1, -2, 2], [5, 2])
    # Of another length it is another text.
    requests.segment_tokens[requests.segment_offsets[7]] = 7
    shared, since_s = reuse(requests)
    assert shared.tolist() == [0, 20, 10, 0, 30, 0, 10, 0]
    assert since_s[[1, 2, 4, 6]].tolist() == [1, 1, 3, 2]
    assert np.isnan(since_s[[0, 3, 5, 7]]).all()
    assert hit_ratio(requests) == pytest.approx(70 / requests.prompt_tokens.sum())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block_tokens": 0}, "block_tokens is 0"),
        ({"common_blocks": -1}, "common_blocks -1"),
        ({"common_share": 1.5}, r"common_share is \[1\.5\]: give shares from 0 to 1"),
        ({"continue_share": [0.2, -0.1]}, r"continue_share is \[0\.2, -0\.1\]"),
        ({"continue_share": []}, r"continue_share is \[\]"),
        ({"reused": [0.5]}, r"reused is \[0\.5\]: expected two or more"),
        ({"reused": [0.5, 0.4]}, "never fall"),
        ({"reused": [0.5, 1.4]}, r"reused ends at 1\.4"),
        ({"delay_s": [-1.0, 4.0]}, r"delay_s is \[-1\.0, 4\.0\]"),
    ],
)
def test_sharing_that_makes_no_sense_says_why(change, message):
    with pytest.raises(ValueError, match=message):
        Sharing(**{**msgspec.structs.asdict(CHAT), **change})
