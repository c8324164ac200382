"""What a running engine says of itself: which kind it is, and the arguments that it runs with.

The one module of preflight that asks over HTTP. SGLang tells everything at /server_info; vLLM only to developers
(`VLLM_SERVER_DEV_MODE=1`), and else a little in its metrics and model list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx

from loadgen.preflight.settings import Value
from protocol.prometheus import parse

TIMEOUT_S = 30.0


class EngineUnknown(Exception):
    """There is no engine to ask; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """An engine that answered. `hint` says how to see more of it, where there is more."""

    kind: str
    version: str
    effective: dict[str, Value]
    hint: str = ""


def ask(url: str) -> Engine:
    """The engine at `url`, without `/v1`. Raises EngineUnknown."""
    try:
        with httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client:
            info = _json(client, "/server_info")
            if info is not None and "vllm_config" not in info:
                return Engine(kind="sglang", version=str(info.get("version", "?")), effective=_flat(info))
            version = _json(client, "/version")
            if version is None:
                raise EngineUnknown(f"{url}: answers neither /server_info nor /version: neither SGLang nor vLLM")
            return _vllm(client, str(version.get("version", "?")))
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise EngineUnknown(f"{url}: {str(error) or type(error).__name__}") from error


def _vllm(client: httpx.Client, version: str) -> Engine:
    info = _json(client, "/server_info?config_format=json")
    if info is not None:
        return Engine(kind="vllm", version=version, effective=_flat(info.get("vllm_config")))
    effective: dict[str, Value] = {}
    for sample in parse(client.get("/metrics").text):
        if sample.name == "vllm:cache_config_info":
            effective |= sample.labels
    models = (_json(client, "/v1/models") or {}).get("data")
    if isinstance(models, list) and models and isinstance(models[0], dict):
        first = models[0]
        effective |= {"served_model_name": first.get("id"), "model": first.get("root")}
        effective["max_model_len"] = first.get("max_model_len")
    hint = "vLLM shows the rest only when it is started with VLLM_SERVER_DEV_MODE=1, which also opens its admin routes"
    return Engine(kind="vllm", version=version, effective=effective, hint=hint)


def _json(client: httpx.Client, path: str) -> dict[str, object] | None:
    """An object, or None where there is no such route."""
    answer = client.get(path)
    if answer.status_code != 200:
        return None
    try:
        content = answer.json()
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def _flat(config: object) -> dict[str, Value]:
    """Every single value by its name, whatever group it is in; by group and name where two groups share the name."""
    leaves = list(_leaves(config, ""))
    seen = Counter(name for _, name, _ in leaves)
    return {name if seen[name] == 1 or not group else f"{group}.{name}": value for group, name, value in leaves}


def _leaves(config: object, group: str) -> Iterator[tuple[str, str, Value]]:
    if isinstance(config, Mapping):
        for name, value in config.items():
            if isinstance(value, Mapping):
                yield from _leaves(value, str(name))
            elif isinstance(value, str | int | float | bool | None):
                yield group, str(name), value
