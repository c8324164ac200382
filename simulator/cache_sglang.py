"""SGLang's prefix cache: a radix tree over token ids whose least recently used leaves are evicted.

It hides nodes and slots. Memory is counted, not numbered: free, cached (in the tree, unlocked), locked
(in the tree, under a lease) and private (held by one lease, not in the tree yet). Age is the order of
calls, not a clock. Modelled on sglang/srt/mem_cache/radix_cache.py with the default LRU policy.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.cache import CacheUsage


class _Node:
    __slots__ = ("children", "key", "last_use", "locks", "offered", "parent")

    def __init__(self, key: tuple[int, ...], parent: _Node | None) -> None:
        self.key = key
        self.parent = parent
        self.children: dict[tuple[int, ...], _Node] = {}
        self.locks = 0
        self.last_use = 0
        self.offered = False


@dataclass(slots=True, kw_only=True, eq=False)
class RadixLease:
    cached_tokens: int
    node: _Node
    """Deepest locked node; the path to it holds `shared_tokens`."""
    shared_tokens: int
    private_tokens: int = 0


class RadixCache:
    """`KvCache` over `capacity_tokens` slots, shared and handed out in pages of `page_tokens`."""

    def __init__(self, capacity_tokens: int, page_tokens: int = 1) -> None:
        self.page_tokens = page_tokens
        self._capacity = capacity_tokens - capacity_tokens % page_tokens
        self._free = self._capacity
        self._cached = 0
        self._root = _Node((), None)
        self._root.locks = 1
        self._clock = 0
        self._leases = 0
        self._leaves: list[tuple[int, int, _Node]] = []
        """Heap of (last use, order of offer, node), one entry a node; what changed since is seen at eviction."""
        self._offers = 0

    def admit(self, tokens: Sequence[int], spare_tokens: int) -> RadixLease | None:
        node, length = self._match(self._root, tuple(tokens[: self._whole_pages(len(tokens) - 1)]))
        lease = RadixLease(cached_tokens=length, node=node, shared_tokens=length)
        self._lock(node)
        if self._extend(lease, len(tokens), spare_tokens):
            self._leases += 1
            return lease
        self._unlock(node)
        return None

    def grow(self, lease: RadixLease, length_tokens: int) -> bool:
        return self._extend(lease, length_tokens, 0)

    def publish(self, lease: RadixLease, tokens: Sequence[int]) -> None:
        end = self._whole_pages(len(tokens))
        if end <= lease.shared_tokens:
            return
        key = tuple(tokens[lease.shared_tokens : end])
        node, length = self._match(lease.node, key)
        lease.private_tokens -= len(key)
        self._free += length
        if length < len(key):
            node = self._append(node, key[length:])
        self._lock(node)
        self._unlock(lease.node)
        lease.node, lease.shared_tokens = node, end

    def release(self, lease: RadixLease, tokens: Sequence[int]) -> None:
        self.publish(lease, tokens)
        self._free += lease.private_tokens
        self._unlock(lease.node)
        self._leases -= 1

    def usage(self) -> CacheUsage:
        return CacheUsage(
            capacity_tokens=self._capacity,
            free_tokens=self._free,
            cached_tokens=self._cached,
            used_tokens=self._capacity - self._free - self._cached,
        )

    def reset(self) -> bool:
        if self._leases:
            return False
        self._evict(self._cached)
        return True

    def _extend(self, lease: RadixLease, length_tokens: int, spare_tokens: int) -> bool:
        pages = -(-length_tokens // self.page_tokens)
        missing = pages * self.page_tokens - lease.shared_tokens - lease.private_tokens
        if missing > 0:
            if missing + spare_tokens > self._free + self._cached:
                return False
            self._evict(missing - self._free)
            self._free -= missing
            lease.private_tokens += missing
        return True

    def _whole_pages(self, length: int) -> int:
        return length - length % self.page_tokens

    def _match(self, node: _Node, key: tuple[int, ...]) -> tuple[_Node, int]:
        """Deepest node below `node` whose path is a prefix of `key`, and that length; splits a node."""
        self._clock += 1
        length = 0
        while length < len(key):
            child = node.children.get(key[length : length + self.page_tokens])
            if child is None:
                break
            common = self._common(child.key, key[length : length + len(child.key)])
            node = child if common == len(child.key) else self._split(child, common)
            self._touch(node)
            length += common
        return node, length

    def _common(self, left: tuple[int, ...], right: tuple[int, ...]) -> int:
        """Length of the common prefix in whole pages; equal tuples, the usual case, compare at C speed."""
        if left == right:
            return len(left)
        unequal = (index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
        return self._whole_pages(next(unequal, min(len(left), len(right))))

    def _split(self, child: _Node, length: int) -> _Node:
        """Put a new node for the first `length` tokens of `child` above it, equally locked."""
        assert child.parent is not None
        upper = _Node(child.key[:length], child.parent)
        upper.locks, upper.last_use = child.locks, child.last_use
        child.parent.children[upper.key[: self.page_tokens]] = upper
        child.key, child.parent = child.key[length:], upper
        upper.children[child.key[: self.page_tokens]] = child
        return upper

    def _append(self, parent: _Node, key: tuple[int, ...]) -> _Node:
        node = _Node(key, parent)
        parent.children[key[: self.page_tokens]] = node
        self._cached += len(key)
        self._touch(node)
        return node

    def _touch(self, node: _Node) -> None:
        node.last_use = self._clock
        self._offer(node)

    def _offer(self, node: _Node) -> None:
        """Make an unlocked leaf a candidate for eviction."""
        if not (node.locks or node.children or node.offered):
            self._offers += 1
            node.offered = True
            heapq.heappush(self._leaves, (node.last_use, self._offers, node))

    def _evict(self, wanted_tokens: int) -> None:
        """Drop unlocked leaves, longest unused first, until `wanted_tokens` more are free."""
        while wanted_tokens > 0:
            last_use, _, node = heapq.heappop(self._leaves)
            node.offered = False
            if node.last_use != last_use:
                self._offer(node)
                continue
            if node.locks or node.children or node.parent is None:
                continue
            del node.parent.children[node.key[: self.page_tokens]]
            self._offer(node.parent)
            node.parent = None
            self._cached -= len(node.key)
            self._free += len(node.key)
            wanted_tokens -= len(node.key)

    def _lock(self, node: _Node) -> None:
        """Lock the path from `node` to the root, whose own lock is never taken away."""
        while node.parent is not None:
            if node.locks == 0:
                self._cached -= len(node.key)
            node.locks += 1
            node = node.parent

    def _unlock(self, node: _Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self._cached += len(node.key)
                self._offer(node)
            node = node.parent
