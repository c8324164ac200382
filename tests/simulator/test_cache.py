"""Both prefix caches under the same random workloads, checked against a plain model of what was shared."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cache import KvCache
from simulator.cache_sglang import RadixCache
from simulator.cache_vllm import BlockCache

CAPACITY = 96
MAKERS = {
    "vllm-16": lambda: BlockCache(CAPACITY),
    "vllm-4": lambda: BlockCache(CAPACITY, 4),
    "sglang-1": lambda: RadixCache(CAPACITY),
    "sglang-4": lambda: RadixCache(CAPACITY + 3, 4),
}
KINDS = st.sampled_from(sorted(MAKERS))
# Two symbols and short lengths make shared prefixes, splits and evictions frequent.
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40).map(tuple)


def conserved(cache: KvCache[Any]) -> bool:
    usage = cache.usage()
    parts = (usage.free_tokens, usage.cached_tokens, usage.used_tokens)
    return min(parts) >= 0 and sum(parts) == usage.capacity_tokens == CAPACITY


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@settings(max_examples=150, deadline=None)
@given(kind=KINDS, prompts=st.lists(TOKENS, min_size=1, max_size=30), seed=st.integers(0, 2**32))
def test_random_leases_conserve_memory_and_never_match_what_was_not_published(
    kind: str, prompts: list[tuple[int, ...]], seed: int
) -> None:
    cache: KvCache[Any] = MAKERS[kind]()
    rng = Random(seed)
    leases: list[tuple[Any, tuple[int, ...]]] = []
    published: list[tuple[int, ...]] = []
    for prompt in prompts:
        used_before = cache.usage().used_tokens
        lease = cache.admit(prompt, 0)
        if lease is None:
            assert cache.usage().used_tokens == used_before
        else:
            assert lease.cached_tokens % cache.page_tokens == 0
            assert lease.cached_tokens < len(prompt)
            assert lease.cached_tokens <= max((common_prefix(prompt, p) for p in published), default=0)
            leases.append((lease, prompt))
        assert conserved(cache)
        for held in list(leases):
            action = rng.choice(["keep", "grow", "publish", "release"])
            lease, tokens = held
            if action == "grow":
                longer = (*tokens, *(rng.randrange(2) for _ in range(rng.randrange(12))))
                if cache.grow(lease, len(longer)):
                    leases[leases.index(held)] = (lease, longer)
            elif action == "publish":
                cache.publish(lease, tokens)
                published.append(tokens)
            elif action == "release":
                leases.remove(held)
                done = tokens[: rng.randrange(len(tokens) + 1)]
                cache.release(lease, done)
                published.append(done)
            assert conserved(cache)
    for lease, tokens in leases:
        cache.release(lease, tokens)
    assert cache.usage().used_tokens == 0
    assert cache.reset()
    assert cache.usage().free_tokens == CAPACITY


@pytest.fixture(params=sorted(MAKERS))
def cache(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def test_a_released_sequence_is_found_again_up_to_its_last_whole_page(cache: KvCache[Any]) -> None:
    tokens = tuple(range(40))
    lease = cache.admit(tokens, 0)
    assert lease.cached_tokens == 0
    cache.release(lease, tokens)
    again = cache.admit(tokens, 0)
    assert again.cached_tokens == 39 // cache.page_tokens * cache.page_tokens


def test_only_computed_tokens_are_found_again(cache: KvCache[Any]) -> None:
    tokens = tuple(range(40))
    cache.release(cache.admit(tokens, 0), tokens[:16])
    assert cache.admit(tokens, 0).cached_tokens == 16


def test_published_tokens_are_shared_while_their_owner_runs(cache: KvCache[Any]) -> None:
    tokens = tuple(range(48))
    owner = cache.admit(tokens, 0)
    cache.publish(owner, tokens)
    other = cache.admit((*tokens[:32], 7, 7), 0)
    assert other.cached_tokens == 32
    assert cache.usage().used_tokens == 48 + -(-2 // cache.page_tokens) * cache.page_tokens
    cache.release(owner, tokens)
    assert cache.grow(other, 80)
    assert not cache.grow(other, CAPACITY + 1)


def test_locked_prefixes_survive_any_pressure(cache: KvCache[Any]) -> None:
    held = tuple(range(32))
    owner = cache.admit(held, 0)
    cache.publish(owner, held)
    for start in range(100, 1000, 100):
        filler = tuple(range(start, start + 64))
        lease = cache.admit(filler, 0)
        cache.release(lease, filler)
    assert cache.admit((*held, 1), 0).cached_tokens == 32


def test_the_longest_unused_goes_first(cache: KvCache[Any]) -> None:
    old, young = tuple(range(100, 148)), tuple(range(200, 248))
    for tokens in (old, young):
        cache.release(cache.admit(tokens, 0), tokens)
    cache.release(cache.admit(old, 0), old)
    cache.release(cache.admit(tuple(range(300, 316)), 0), ())
    assert cache.admit((*old, 1), 0).cached_tokens == 48
    assert cache.admit((*young, 1), 0) is None


def test_spare_tokens_are_left_over_or_nothing_happens(cache: KvCache[Any]) -> None:
    tokens = tuple(range(32))
    cache.release(cache.admit(tokens, 0), tokens)
    before = cache.usage()
    assert cache.admit(tuple(range(500, 564)), 33) is None
    assert cache.usage() == before
    assert cache.admit(tuple(range(500, 564)), 32) is not None


def test_reset_waits_for_the_last_lease(cache: KvCache[Any]) -> None:
    lease = cache.admit((1, 2, 3), 0)
    assert not cache.reset()
    cache.release(lease, (1, 2, 3))
    assert cache.reset()
