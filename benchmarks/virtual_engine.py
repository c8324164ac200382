"""Stand-in engines in virtual time: requests in, times of their tokens out, as fast as the model can step.

The engine is the one that `weir engine` serves, and no clock or socket is involved.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np

from loadgen.workload.traffic import Floats, Requests
from simulator.cache_vllm import BlockCache, BlockLease
from simulator.model import Engine
from simulator.profile import Profile
from simulator.steps import Finished, Limits, Request

_BLOCK_TOKENS = 16
_ID_STRIDE = 1 << 22
"""More tokens than any segment has, so that two segments never have a token in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What became of each request, in seconds, in the order in which they finished. Shape (n,)."""

    arrived_s: Floats
    ttft_s: Floats
    e2e_s: Floats
    cached_share: float
    """Of all prompt tokens."""


def slowed(profile: Profile, factor: float) -> Profile:
    """The same engine on hardware that takes `factor` times as long for arithmetic and memory."""
    reach = profile.efficiency
    changed = msgspec.structs.replace(
        reach,
        compute=reach.compute / factor,
        bandwidth=reach.bandwidth / factor,
        step_overhead_s=reach.step_overhead_s * factor,
    )
    return msgspec.structs.replace(profile, efficiency=changed)


def serve(requests: Requests, profile: Profile, *, seed: int, max_running: int = 256) -> Served:
    """One engine, from the first arrival to the last token."""
    cache = BlockCache(profile.kv_capacity_tokens, _BLOCK_TOKENS)
    longest = int((requests.prompt_tokens + requests.output_tokens).max())
    limits = Limits(max_model_tokens=longest, max_running=max_running, max_step_tokens=2048)
    engine = Engine(profile, cache, limits, Random(seed))
    finished = _run(engine, requests)
    return Served(
        arrived_s=np.array([one.arrived_s for one in finished]),
        ttft_s=np.array([one.first_token_s - one.arrived_s for one in finished]),
        e2e_s=np.array([one.finished_s - one.arrived_s for one in finished]),
        cached_share=sum(one.cached_tokens for one in finished) / sum(one.prompt_tokens for one in finished),
    )


def _run(engine: Engine[BlockLease], requests: Requests) -> list[Finished]:
    finished: list[Finished] = []
    arrivals = requests.at_s.tolist()
    number, due_s = 0, None
    while due_s is not None or number < len(arrivals):
        now = arrivals[number] if due_s is None else due_s
        while number < len(arrivals) and arrivals[number] <= now:
            engine.add(_request(requests, number), arrivals[number])
            number += 1
        result = engine.step(now)
        finished += result.finished
        due_s = None if result.duration_s is None else now + result.duration_s
    return finished


def _request(requests: Requests, number: int) -> Request:
    begin, end = requests.segment_offsets[number : number + 2].tolist()
    prompt: list[int] = []
    for position in range(begin, end):
        identity = int(requests.segment_ids[position])
        # A text of its own begins where no shared one does.
        first = (identity + 1) * _ID_STRIDE if identity >= 0 else -(position + 1) * _ID_STRIDE
        prompt += range(first, first + int(requests.segment_tokens[position]))
    output_tokens = int(requests.output_tokens[number])
    return Request(
        request_id=str(number),
        prompt=tuple(prompt),
        output=(0,) * output_tokens,
        finish_reason="length",
        max_tokens=output_tokens,
    )
