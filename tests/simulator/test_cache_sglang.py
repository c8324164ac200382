"""What only the radix tree does; what both caches do is in test_cache.py."""

from simulator.cache_sglang import RadixCache


def cached(cache: RadixCache, tokens: tuple[int, ...]) -> int:
    lease = cache.admit(tokens, 0)
    assert lease is not None
    found = lease.cached_tokens
    cache.release(lease, tokens[:found])
    return found


def store(cache: RadixCache, tokens: tuple[int, ...]) -> None:
    lease = cache.admit(tokens, 0)
    assert lease is not None
    cache.release(lease, tokens)


def test_branches_share_their_common_part_to_the_token() -> None:
    cache = RadixCache(100)
    store(cache, (1, 2, 3, 4, 5))
    store(cache, (1, 2, 3, 9, 9, 9))
    assert cache.usage().cached_tokens == 8
    assert cached(cache, (1, 2, 3, 9, 9, 9, 0)) == 6
    assert cached(cache, (1, 2, 3, 4, 5, 0)) == 5
    assert cached(cache, (1, 2, 8)) == 2


def test_a_leaf_is_dropped_before_the_branch_it_hangs_on() -> None:
    cache = RadixCache(8)
    store(cache, (1, 2, 3, 4))
    store(cache, (1, 2, 7, 8))
    lease = cache.admit((50, 51, 52, 53), 0)
    assert lease is not None
    cache.release(lease, ())
    assert cached(cache, (1, 2, 3, 4, 0)) == 2
    assert cached(cache, (1, 2, 7, 8, 0)) == 4


def test_what_was_used_again_outlives_what_was_not() -> None:
    cache = RadixCache(9)
    store(cache, (1, 1, 1))
    store(cache, (2, 2, 2))
    assert cached(cache, (1, 1, 1, 0)) == 3
    store(cache, (3, 3, 3, 3, 3, 3))
    assert cached(cache, (1, 1, 1, 0)) == 3
    assert cache.admit((2, 2, 2, 0), 0).cached_tokens == 0


def test_two_computations_of_one_prefix_are_stored_once() -> None:
    cache = RadixCache(100)
    first, second = cache.admit((1, 2, 3), 0), cache.admit((1, 2, 3, 4), 0)
    assert first is not None
    assert second is not None
    cache.publish(first, (1, 2, 3))
    cache.publish(second, (1, 2, 3, 4))
    assert cache.usage().used_tokens == 4
    cache.release(first, (1, 2, 3))
    cache.release(second, (1, 2, 3, 4))
    assert cache.usage().cached_tokens == 4
