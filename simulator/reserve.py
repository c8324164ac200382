"""SGLang's guess of how much output the running requests will still need, which admission leaves free.

It hides the new-token ratio: optimistic admission fills the batch but ends in retractions, so the guess
falls while all goes well and is corrected when it did not. Numbers only; no queue and no cache.
Source: sglang/srt/managers/scheduler.py and schedule_policy.py (`new_token_ratio`, `PrefillAdder`).
"""

from __future__ import annotations

from collections.abc import Iterable

INITIAL_RATIO = 0.7
"""SGLANG_INIT_NEW_TOKEN_RATIO, at --schedule-conservativeness 1."""
LEAST_RATIO = INITIAL_RATIO * 0.14
"""SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR."""
DECAY_STEPS = 600
"""SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS: decode steps from the initial to the least ratio."""
LONGEST_GUESS_TOKENS = 4096
"""SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION: no request counts for more."""
RETRACTION_LOOKAHEAD = 20
"""SGLANG_RETRACT_DECODE_STEPS: decode steps that a corrected ratio should last."""


class OutputReserve:
    """The ratio of allowed output that running requests are expected to use."""

    def __init__(self) -> None:
        self.ratio = INITIAL_RATIO

    def tokens(self, running_remaining: Iterable[int], candidate_remaining: int) -> int:
        """Tokens that must stay free when a request with `candidate_remaining` output joins the running."""
        running = sum(min(remaining, LONGEST_GUESS_TOKENS) for remaining in running_remaining)
        return int(self.ratio * running) + min(candidate_remaining, LONGEST_GUESS_TOKENS)

    def decoded(self) -> None:
        """A decode step went through without a retraction."""
        self.ratio = max(LEAST_RATIO, self.ratio - (INITIAL_RATIO - LEAST_RATIO) / DECAY_STEPS)

    def retracted(self, running: int, produced_tokens: int, allowed_tokens: int) -> None:
        """Requests had to go; what the `running` ones left produced so far corrects the ratio."""
        expected = produced_tokens + RETRACTION_LOOKAHEAD * running
        self.ratio = min(1.0, expected / (allowed_tokens + 1))
