"""Prefix sharing: how much of each prompt had been there before, from where, and how long ago."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from loadgen.workload.sharing import Sharing, SharingFit, hit_ratio, reuse
from loadgen.workload.traffic import Floats, Ints, Requests

_TABLE = np.linspace(0, 1, 41)
_COMMON = 0.5
"""Share of requests that have to begin alike to call it the common beginning."""
_CLOSE = 0.05
"""Difference of hit ratios, in share of prompt tokens, up to which the model is adequate."""
_SEED = 0


def fit_sharing(requests: Requests, times_s: Floats) -> Sharing | None:
    """None for a log whose prompts have nothing in common, or that does not say."""
    shared, since_s = reuse(requests)
    if not shared.any():
        return None
    block = int(np.median(requests.segment_tokens[requests.segment_ids >= 0]))
    common_blocks, common_share = _common(requests)
    # What is common is no conversation; how far beyond it a prompt goes on is.
    beyond = shared > common_blocks * block
    continues = beyond & ~np.isnan(since_s)
    prompts = requests.prompt_tokens[continues]
    # By tokens, not by requests: it is tokens that a cache spares.
    reused = _weighted_quantiles(shared[continues] / prompts, prompts) if continues.any() else np.zeros(2)
    delay = np.quantile(since_s[continues], _TABLE) if continues.any() else np.zeros(2)
    model = Sharing(
        block_tokens=block,
        common_blocks=common_blocks,
        common_share=round(common_share, 4),
        continue_share=_shares_by_length(continues, requests.prompt_tokens),
        reused=[round(value, 4) for value in reused.tolist()],
        delay_s=[round(value, 3) for value in delay.tolist()],
        fit=None,
    )
    prompt, output = np.maximum(1, requests.prompt_tokens), np.maximum(1, requests.output_tokens)
    drawn = model.draw(np.random.default_rng(_SEED), times_s, prompt, output)
    trace_ratio, model_ratio = hit_ratio(requests), hit_ratio(drawn)
    close = abs(trace_ratio - model_ratio) <= _CLOSE
    verdict = "adequate" if close else "use empirical: replay the log where the prefix cache matters"
    fit = SharingFit(trace_hit_ratio=round(trace_ratio, 4), model_hit_ratio=round(model_ratio, 4), verdict=verdict)
    return msgspec.structs.replace(model, fit=fit)


def _weighted_quantiles(values: Floats, weights: Ints) -> Floats:
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    return np.interp(_TABLE, reached, values[order])


def _shares_by_length(chosen: npt.NDArray[np.bool_], prompt_tokens: Ints) -> list[float]:
    """The share of the chosen in each tenth of the requests by length, from the shortest to the longest."""
    tenths = np.array_split(chosen[np.argsort(prompt_tokens, kind="stable")], 10)
    return [round(float(tenth.mean()), 4) for tenth in tenths]


def _common(requests: Requests) -> tuple[int, float]:
    """How many first segments most requests have in common, and how many of them have all of these."""
    offsets, ids = requests.segment_offsets, requests.segment_ids
    depth, share = 0, 0.0
    begins_so = np.ones(len(requests), dtype=bool)
    while True:
        long_enough = begins_so & (np.diff(offsets) > depth)
        at = ids[offsets[:-1][long_enough] + depth]
        if not len(at) or (at < 0).all():
            return depth, share
        values, counts = np.unique(at[at >= 0], return_counts=True)
        if counts.max() < _COMMON * len(requests):
            return depth, share
        frequent = values[counts.argmax()]
        begins_so[long_enough] = at == frequent
        begins_so &= np.diff(offsets) > depth
        share = float(begins_so.mean())
        depth += 1
