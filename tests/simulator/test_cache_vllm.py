"""What only the block cache does; what both caches do is in test_cache.py."""

from simulator.cache_vllm import BlockCache


def test_two_computations_of_one_prefix_leave_one_cached_copy() -> None:
    cache = BlockCache(128, 16)
    tokens = tuple(range(32))
    first, second = cache.admit(tokens, 0), cache.admit(tokens, 0)
    assert first is not None
    assert second is not None
    for lease in (first, second):
        cache.release(lease, tokens)
    assert cache.usage().cached_tokens == 32


def test_of_one_sequence_the_tail_is_given_up_first() -> None:
    cache = BlockCache(64, 16)
    tokens = tuple(range(64))
    lease = cache.admit(tokens, 0)
    assert lease is not None
    cache.release(lease, tokens)
    other = cache.admit(tuple(range(100, 132)), 0)
    assert other is not None
    cache.release(other, ())
    again = cache.admit((*tokens[:33],), 0)
    assert again is not None
    assert again.cached_tokens == 32


def test_a_block_depends_on_all_tokens_before_it() -> None:
    cache = BlockCache(128, 16)
    lease = cache.admit((*range(16), *range(50, 66)), 0)
    assert lease is not None
    cache.release(lease, (*range(16), *range(50, 66)))
    elsewhere = cache.admit((*range(1, 17), *range(50, 66), 9), 0)
    assert elsewhere is not None
    assert elsewhere.cached_tokens == 0


def test_capacity_is_whole_blocks() -> None:
    assert BlockCache(100).usage().capacity_tokens == 96
