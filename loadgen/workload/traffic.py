"""Requests as columns: when they come, how long they are, and which text their prompts share.

What importers read, workloads draw and plans write down. Columns, since a schedule may have a million requests
with dozens of prompt segments each. Values only; nothing here draws, fits or reads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """n requests in order of time.

    The prompt of request i is the segments `segment_offsets[i]` to `segment_offsets[i + 1]`, one after another. Two
    segments with the same id and length are the same text wherever they are, so prompts share a prefix exactly as
    far as their first segments agree; an id below 0 is text that nothing else has.
    """

    at_s: Floats
    """Seconds from a common origin, ascending. Shape (n,)."""
    prompt_tokens: Ints
    """The sum of the lengths of the prompt's segments. Shape (n,)."""
    output_tokens: Ints
    session: Ints
    """Requests of one conversation have the same number; -1 for a request of its own. Shape (n,)."""
    segment_offsets: Ints
    """Shape (n + 1,), from 0."""
    segment_ids: Ints
    segment_tokens: Ints

    def __len__(self) -> int:
        return len(self.at_s)

    @classmethod
    def unshared(cls, at_s: Floats, prompt_tokens: Ints, output_tokens: Ints) -> Requests:
        """Requests whose prompts have nothing in common."""
        count = len(at_s)
        return cls(
            at_s=at_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            session=np.full(count, -1, dtype=np.int64),
            segment_offsets=np.arange(count + 1, dtype=np.int64),
            segment_ids=np.full(count, -1, dtype=np.int64),
            segment_tokens=prompt_tokens,
        )
