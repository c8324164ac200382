"""What the scheduler needs from a KV cache, whatever engine it belongs to.

A lease is the KV memory of one admitted sequence. The scheduler admits, grows, publishes and releases;
it never sees blocks or tree nodes. Two implementations: `cache_vllm` (hashed blocks) and `cache_sglang`
(radix tree).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """Where the tokens of KV memory are; `capacity == free + cached + used`, always."""

    capacity_tokens: int
    free_tokens: int
    cached_tokens: int
    """Not in use, kept for a later request with the same prefix; given up when room is needed."""
    used_tokens: int


class AnyLease(Protocol):
    cached_tokens: int
    """Leading tokens that were found in the cache at admission."""


LeaseT = TypeVar("LeaseT", bound=AnyLease)


class KvCache(Protocol[LeaseT]):
    """KV memory with a prefix cache. A token sequence is a tuple of ids; lengths are in tokens."""

    page_tokens: int
    """Memory is handed out in pages of this many tokens."""

    def admit(self, tokens: Sequence[int], spare_tokens: int) -> LeaseT | None:
        """Lock the longest cached prefix of `tokens` and make room for the rest, or change nothing: None.

        `spare_tokens` must be left free or cached afterwards. At least the last token is left to compute,
        because its output is what comes next.
        """

    def grow(self, lease: LeaseT, length_tokens: int) -> bool:
        """Make room for `length_tokens` in all; False changes nothing."""

    def publish(self, lease: LeaseT, tokens: Sequence[int]) -> None:
        """Let others share `tokens`, the leading part of the sequence whose KV has been computed."""

    def release(self, lease: LeaseT, tokens: Sequence[int]) -> None:
        """Give the memory back; the KV of `tokens` stays cached until its room is needed."""

    def usage(self) -> CacheUsage: ...

    def reset(self) -> bool:
        """Forget all cached prefixes; False, changing nothing, while any lease is out."""
