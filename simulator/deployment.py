"""Everything the handlers of one running engine share, and how it is put together from options.

It hides which cache, limits, wire format and meters belong to which kind of engine.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from simulator import wire_sglang, wire_vllm
from simulator.answer import Wire
from simulator.cache import KvCache
from simulator.cache_sglang import RadixCache
from simulator.cache_vllm import BLOCK_TOKENS, BlockCache
from simulator.exchange import Recorder
from simulator.metrics_sglang import SglangMeters
from simulator.metrics_vllm import VllmMeters
from simulator.model import Engine
from simulator.options import ServerOptions
from simulator.profile import Profile, load_profile
from simulator.step_loop import Meters, StepLoop
from simulator.steps import Limits

_WIRES: dict[str, Wire] = {"vllm": wire_vllm, "sglang": wire_sglang}


@dataclass(slots=True, kw_only=True)
class Deployment:
    """One engine being served."""

    options: ServerOptions
    profile: Profile
    model: str
    limits: Limits
    page_tokens: int
    wire: Wire
    meters: Meters
    steps: StepLoop
    recorder: Recorder | None
    told_to_stop: asyncio.Event = field(default_factory=asyncio.Event)
    generating: int = 0
    """Generation requests in progress."""
    quiet: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `generating` is 0."""
    answer_ids: set[str] = field(default_factory=set)
    """Ids of the answers in progress."""
    jobs: int = 0
    """Started so far; makes ids inside the engine unique."""
    unix_origin_s: float = field(default_factory=lambda: time.time_ns() / 1e9 - time.monotonic())

    def __post_init__(self) -> None:
        self.quiet.set()

    @contextmanager
    def generation(self) -> Iterator[None]:
        """Around the handling of one generation request."""
        self.generating += 1
        self.quiet.clear()
        try:
            yield
        finally:
            self.generating -= 1
            if not self.generating:
                self.quiet.set()

    @property
    def fingerprint(self) -> str:
        """`vllm-<version>[-tpN]-<8 hex>` over what determines the engine's behaviour."""
        parallel = f"-tp{self.profile.gpus}" if self.profile.gpus > 1 else ""
        digest = hashlib.sha256(f"{self.model}{self.profile}{self.limits}".encode()).hexdigest()[:8]
        return f"vllm-0.32.0{parallel}-{digest}"

    def unix_s(self) -> float:
        """Wall clock, from one reading at the start."""
        return self.unix_origin_s + time.monotonic()


def build(options: ServerOptions) -> Deployment:
    """An engine as the options want it.

    Raises ProfileError for a profile that cannot be used, ValueError for limits that do not fit its memory,
    OSError when the record file cannot be opened.
    """
    profile = load_profile(options.profile)
    capacity = options.kv_tokens or profile.kv_capacity_tokens
    page = options.page_size or (BLOCK_TOKENS if options.kind == "vllm" else 1)
    cache: KvCache[Any]
    cache = BlockCache(capacity, page) if options.kind == "vllm" else RadixCache(capacity, page)
    limits = _limits(options, profile, cache.usage().capacity_tokens)
    engine: Engine[Any] = Engine(profile, cache, limits, Random(options.seed))
    model = options.model or profile.model.name
    make_meters: Callable[..., Meters] = VllmMeters if options.kind == "vllm" else SglangMeters
    meters = make_meters(
        model=model,
        profile=profile,
        page_tokens=page,
        max_model_tokens=limits.max_model_tokens,
        snapshot=engine.snapshot,
    )
    return Deployment(
        options=options,
        profile=profile,
        model=model,
        limits=limits,
        page_tokens=page,
        wire=_WIRES[options.kind],
        meters=meters,
        steps=StepLoop(engine, meters),
        recorder=Recorder(options.record_streams) if options.record_streams else None,
    )


def _limits(options: ServerOptions, profile: Profile, capacity_tokens: int) -> Limits:
    """The kind's own defaults where the options are silent (engine contracts, section 8)."""
    max_model_tokens = options.max_model_len or min(profile.model.context_tokens, capacity_tokens)
    if options.kind == "vllm":
        # vLLM tells apart large GPUs that are not A100s from all others.
        large = profile.gpu.memory_bytes >= 70 * 2**30 and "a100" not in profile.gpu.name.lower()
        return Limits(
            max_model_tokens=max_model_tokens,
            max_running=options.max_num_seqs or (1024 if large else 256),
            max_step_tokens=options.max_num_batched_tokens or (8192 if large else 2048),
            max_queued=options.max_queued,
        )
    # SGLang: 512 sequences of full context, but at least 2,048 and at most 4,096 requests.
    fitting = min(max(512 * capacity_tokens // max_model_tokens, 2048), 4096)
    return Limits(
        max_model_tokens=max_model_tokens,
        max_running=options.max_num_seqs or fitting,
        max_step_tokens=options.max_num_batched_tokens or 8192,
        max_queued=options.max_queued,
        queued_counts_running=False,
        prefill_first=True,
        victim="least_output",
        reserves_output=True,
    )
