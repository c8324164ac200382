"""The endpoints beside generation: health, models, load, tokenizer, cache and abort, as each kind has them.

Each handler is one short function of the deployment and the exchange; which path leads where is in the wires.
"""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime

from prometheus_client import CONTENT_TYPE_LATEST

from simulator.answer import compact
from simulator.deployment import Deployment
from simulator.exchange import JSON, Exchange
from simulator.intake import AbortRequestBody, AbortRequestsBody, Rejected, TokenizeBody, check
from simulator.metrics_sglang import SglangMeters

_HEALTH_DEADLINE_S = 20
"""SGLANG_HEALTH_CHECK_TIMEOUT."""


async def health(deployment: Deployment, exchange: Exchange) -> None:
    """vLLM's /health and both kinds' /ping: the process is there."""
    await exchange.reply(200)


async def health_generate(deployment: Deployment, exchange: Exchange) -> None:
    """SGLang's /health: waits a second before its first look, and needs the scheduler to move."""
    for _ in range(0 if deployment.told_to_stop.is_set() else _HEALTH_DEADLINE_S):
        before = deployment.steps.steps
        await asyncio.sleep(1)
        if deployment.steps.idle or deployment.steps.steps > before:
            await exchange.reply(200)
            return
    await exchange.reply(503)


async def ready(deployment: Deployment, exchange: Exchange) -> None:
    await exchange.reply(503 if deployment.told_to_stop.is_set() else 200)


async def version(deployment: Deployment, exchange: Exchange) -> None:
    await exchange.reply(200, compact({"version": "0.32.0"}))


async def load(deployment: Deployment, exchange: Exchange) -> None:
    """0 unless the engine was told to track it."""
    tracked = deployment.generating if deployment.options.server_load_tracking else 0
    await exchange.reply(200, compact({"server_load": tracked}))


async def models(deployment: Deployment, exchange: Exchange) -> None:
    created_s = int(deployment.unix_s())
    entry: dict[str, object] = {
        "id": deployment.model,
        "object": "model",
        "created": created_s,
        "owned_by": deployment.options.kind,
        "root": deployment.model,
        "parent": None,
        "max_model_len": deployment.limits.max_model_tokens,
    }
    if deployment.options.kind == "vllm":
        entry["permission"] = [_permission(created_s)]
    await exchange.reply(200, compact({"object": "list", "data": [entry]}))


def _permission(created_s: int) -> dict[str, object]:
    """vLLM's, the same for every model."""
    allowed = {"sampling": True, "logprobs": True, "search_indices": False, "view": True, "fine_tuning": False}
    return {
        "id": f"modelperm-{uuid.uuid4().hex[:16]}",
        "object": "model_permission",
        "created": created_s,
        "allow_create_engine": False,
        **{f"allow_{what}": whether for what, whether in allowed.items()},
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }


async def tokenize(deployment: Deployment, exchange: Exchange) -> None:
    raw = await exchange.body()
    try:
        ids = check(raw, exchange.header(b"content-type") or "", TokenizeBody).ids()
    except Rejected as rejected:
        await exchange.reply(*deployment.wire.rejection(rejected))
        return
    count = {"count": len(ids), "max_model_len": deployment.limits.max_model_tokens}
    if deployment.options.kind == "vllm":
        await exchange.reply(200, compact({**count, "tokens": ids, "token_strs": None}))
    else:
        await exchange.reply(200, compact({"tokens": ids, **count}))


async def metrics(deployment: Deployment, exchange: Exchange) -> None:
    await exchange.reply(200, deployment.meters.render(), CONTENT_TYPE_LATEST.encode())


async def abort_requests(deployment: Deployment, exchange: Exchange) -> None:
    """vLLM: answers by their ids, completions also as `<id>-<choice>`; none means all."""
    raw = await exchange.body()
    try:
        body = check(raw, exchange.header(b"content-type") or "", AbortRequestsBody)
    except Rejected as rejected:
        await exchange.reply(*deployment.wire.rejection(rejected))
        return
    wanted = set(body.request_ids)

    def matches(request_id: str) -> bool:
        answer_id, _, number = request_id.rpartition("#")
        return not wanted or not wanted.isdisjoint({answer_id, f"{answer_id}-{number.partition('.')[2]}"})

    deployment.steps.abort_matching(matches)
    await exchange.reply(200)


async def abort_request(deployment: Deployment, exchange: Exchange) -> None:
    """SGLang: every answer whose id starts with the rid; an empty rid is ignored."""
    raw = await exchange.body()
    try:
        body = check(raw, exchange.header(b"content-type") or "", AbortRequestBody)
    except Rejected as rejected:
        await exchange.reply(*deployment.wire.rejection(rejected))
        return
    if body.abort_all or body.rid:
        prefix = "" if body.abort_all else body.rid
        deployment.steps.abort_matching(lambda request_id: request_id.startswith(prefix))
    await exchange.reply(200)


async def reset_prefix_cache(deployment: Deployment, exchange: Exchange) -> None:
    await exchange.reply(200, compact({"success": deployment.steps.engine.reset_cache()}))


async def flush_cache(deployment: Deployment, exchange: Exchange) -> None:
    """SGLang refuses while requests run or wait."""
    if deployment.steps.idle and deployment.steps.engine.reset_cache():
        text = (
            b"Cache flushed.\nPlease check backend logs for more details. (When there are running or "
            b"waiting requests, the operation will not be performed.)\n"
        )
        await exchange.reply(200, text, None)
    else:
        await exchange.reply(400, b"Flush cache failed.\n", None)


async def loads(deployment: Deployment, exchange: Exchange) -> None:
    """SGLang's view of itself for routers."""
    assert isinstance(deployment.meters, SglangMeters)
    now_s = deployment.unix_s()
    body = {
        "timestamp": datetime.fromtimestamp(now_s, UTC).isoformat(),
        "version": "0.5.23",
        "accelerator": deployment.profile.gpu.name,
        "num_accelerators": deployment.profile.gpus,
        "loads": [{"timestamp": now_s, **deployment.meters.loads(deployment.limits.max_running)}],
    }
    await exchange.reply(200, compact(body))


async def server_info(deployment: Deployment, exchange: Exchange) -> None:
    body = {
        "model_path": deployment.profile.model.name,
        "served_model_name": deployment.model,
        "context_length": deployment.limits.max_model_tokens,
        "max_running_requests": deployment.limits.max_running,
        "max_queued_requests": deployment.limits.max_queued,
        "max_total_tokens": deployment.steps.engine.snapshot().kv.capacity_tokens,
        "chunked_prefill_size": deployment.limits.max_step_tokens,
        "page_size": deployment.page_tokens,
        "tp_size": deployment.profile.gpus,
        "random_seed": deployment.options.seed,
        "schedule_policy": "fcfs",
        "radix_eviction_policy": "lru",
        "version": "0.5.23",
    }
    await exchange.reply(200, compact(body))


async def model_info(deployment: Deployment, exchange: Exchange) -> None:
    body = {
        "model_path": deployment.profile.model.name,
        "served_model_name": deployment.model,
        "tokenizer_path": deployment.profile.model.name,
        "is_generation": True,
        "weight_version": "default",
        "disaggregation_mode": "null",
    }
    await exchange.reply(200, compact(body), JSON)
