"""vLLM's prefix cache: equal blocks found by a hash chained over all tokens before them.

It hides block numbers. Only full blocks are shared; a block nobody holds stays findable until it is the
longest unused one and room is needed. Nothing here knows of time: the order of releases is the age.
Modelled on vLLM's v1/core/kv_cache_manager, with one difference: a duplicate of a findable block is not
kept when it is released.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.cache import CacheUsage

BLOCK_TOKENS = 16
"""vLLM 0.32: --block-size of CUDA backends unless set."""

_ROOT = 0


@dataclass(slots=True, kw_only=True, eq=False)
class BlockLease:
    cached_tokens: int
    blocks: list[int] = field(default_factory=list)
    hashes: list[int] = field(default_factory=list)
    """Chain of the leading blocks that were looked up or published so far."""


class BlockCache:
    """`KvCache` over `capacity_tokens // block_tokens` blocks."""

    def __init__(self, capacity_tokens: int, block_tokens: int = BLOCK_TOKENS) -> None:
        self.page_tokens = block_tokens
        self._block_count = capacity_tokens // block_tokens
        self._blank = list(range(self._block_count - 1, -1, -1))
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._references = [0] * self._block_count
        self._hash_of: dict[int, int] = {}
        self._block_of: dict[int, int] = {}

    def admit(self, tokens: Sequence[int], spare_tokens: int) -> BlockLease | None:
        hashes = self._cached_prefix(tokens)
        lease = BlockLease(cached_tokens=len(hashes) * self.page_tokens, hashes=hashes)
        for block_hash in hashes:
            block = self._block_of[block_hash]
            self._unused.pop(block, None)
            self._references[block] += 1
            lease.blocks.append(block)
        if self._extend(lease, len(tokens), spare_tokens):
            return lease
        self._give_back(lease)
        return None

    def grow(self, lease: BlockLease, length_tokens: int) -> bool:
        return self._extend(lease, length_tokens, 0)

    def publish(self, lease: BlockLease, tokens: Sequence[int]) -> None:
        size = self.page_tokens
        for index in range(len(lease.hashes), len(tokens) // size):
            parent = lease.hashes[-1] if lease.hashes else _ROOT
            block_hash = hash((parent, tuple(tokens[index * size : (index + 1) * size])))
            lease.hashes.append(block_hash)
            if block_hash not in self._block_of:
                self._block_of[block_hash] = lease.blocks[index]
                self._hash_of[lease.blocks[index]] = block_hash

    def release(self, lease: BlockLease, tokens: Sequence[int]) -> None:
        self.publish(lease, tokens)
        self._give_back(lease)

    def usage(self) -> CacheUsage:
        free, cached, size = len(self._blank), len(self._unused), self.page_tokens
        return CacheUsage(
            capacity_tokens=self._block_count * size,
            free_tokens=free * size,
            cached_tokens=cached * size,
            used_tokens=(self._block_count - free - cached) * size,
        )

    def reset(self) -> bool:
        if len(self._blank) + len(self._unused) < self._block_count:
            return False
        while self._unused:
            self._blank.append(self._evict())
        return True

    def _cached_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Hashes of the leading full blocks that are findable; the last token is never among them."""
        size, hashes, parent = self.page_tokens, [], _ROOT
        for start in range(0, len(tokens) - size, size):
            parent = hash((parent, tuple(tokens[start : start + size])))
            if parent not in self._block_of:
                break
            hashes.append(parent)
        return hashes

    def _extend(self, lease: BlockLease, length_tokens: int, spare_tokens: int) -> bool:
        missing = -(-length_tokens // self.page_tokens) - len(lease.blocks)
        available = len(self._blank) + len(self._unused)
        if missing > 0 and missing * self.page_tokens + spare_tokens > available * self.page_tokens:
            return False
        for _ in range(missing):
            block = self._blank.pop() if self._blank else self._evict()
            self._references[block] = 1
            lease.blocks.append(block)
        return True

    def _evict(self) -> int:
        block, _ = self._unused.popitem(last=False)
        del self._block_of[self._hash_of.pop(block)]
        return block

    def _give_back(self, lease: BlockLease) -> None:
        """Last block first: the tail of a sequence is the least shared, so it is evicted first."""
        for block in reversed(lease.blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._unused[block] = None
                else:
                    self._blank.append(block)
        lease.blocks.clear()
