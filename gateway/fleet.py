"""Pools and endpoints as they are now: health, requests in flight, and whose turn it is.

The fleet polls each endpoint's health, model list and load with httpx, off the request path. The request path
only asks for candidates. It opens no connection of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from math import inf
from time import monotonic

import httpx
import msgspec

from gateway.config import Config, HealthConfig, PoolConfig
from gateway.engines.kinds import ENGINES
from gateway.engines.load import read_load
from gateway.model import EndpointAddress, EndpointSnapshot, EngineKind, EngineLoad, LoadSeries
from gateway.policy.breaker import Breaker, usable
from gateway.policy.budget import Budget
from gateway.policy.hedging import RecentLatencies
from gateway.policy.slow_start import POLICIES, weight

Discovery = Callable[[str, PoolConfig], list[EndpointAddress]]
"""Where a pool's endpoints come from: pool name and configuration in, addresses out."""

_log = logging.getLogger("weir.fleet")


class Endpoint:
    """One engine. Assumed healthy until checks say otherwise, so that a fresh gateway serves at once."""

    def __init__(self, address: EndpointAddress, kind: EngineKind, config: PoolConfig) -> None:
        self.address = address
        self.kind = kind
        self.healthy = True
        self.healthy_since_s = -inf
        """When it last became healthy, on the monotonic clock; it may need a slow start from then on."""
        self.draining = False
        """An operator wants it to finish what it has and to get nothing new."""
        self.in_flight = 0
        """Attempts that are there now; every one counts itself in and out (`gateway.exchange.Attempt`)."""
        self.breaker = Breaker(config.breaker)
        self.last_failure: str | None = None
        self.models: list[dict[str, object]] = []
        self.load: EngineLoad | None = None
        """What the engine last said of its own load; None while it does not say."""
        self._health = config.health
        self._streak = 0
        """Checks in a row that disagree with `healthy`."""

    @property
    def welcome(self) -> bool:
        """Whether it may get new requests, as far as its health and the operator go."""
        return self.healthy and not self.draining

    def note_check(self, failure: str | None, now_s: float) -> None:
        """Takes one health check's result; None means it passed."""
        if failure is not None:
            self.last_failure = failure
        if (failure is None) == self.healthy:
            self._streak = 0
            return
        self._streak += 1
        needed = self._health.unhealthy_after if self.healthy else self._health.healthy_after
        if self._streak >= needed:
            self.healthy = not self.healthy
            self._streak = 0
            self.healthy_since_s = now_s
            state = "healthy again" if self.healthy else f"unhealthy: {failure}"
            _log.warning("endpoint %s is %s", self.address.name, state)


class Pool:
    """Endpoints of one engine kind, the policy that orders them, and what their traffic pays for."""

    def __init__(self, name: str, config: PoolConfig, discovery: Discovery) -> None:
        self.name = name
        self.config = config
        kind = ENGINES[config.engine]
        self.endpoints = [Endpoint(address, kind, config) for address in discovery(name, config)]
        self.retries = Budget(config.retry.budget_share, config.retry.budget_min_per_s)
        self.hedges = Budget(config.hedge.budget_share, config.hedge.budget_min_per_s) if config.hedge else None
        self.first_bytes = RecentLatencies()
        self._order = POLICIES[config.policy]
        self._turn = 0

    @property
    def available(self) -> bool:
        return any(endpoint.welcome for endpoint in self.endpoints)

    def advance(self) -> None:
        """A new request: the next turn. Its later tries keep to its order."""
        self._turn += 1

    def candidates(self, now_s: float) -> list[Endpoint]:
        """Endpoints that may get a request now, best first: welcome, not resting after failures, by the policy."""
        found = [endpoint for endpoint in self.endpoints if endpoint.welcome]
        if len(found) < 2:
            return found
        allowed = [endpoint.breaker.allows(now_s) for endpoint in found]
        if not all(allowed):
            until_s = [endpoint.breaker.until_s for endpoint in found]
            found = [found[index] for index in usable(allowed, until_s, self.config.max_ejection_share)]
        weights = [self._weight(endpoint, now_s) for endpoint in found]
        order = self._order([endpoint.in_flight for endpoint in found], self._turn, weights)
        return [found[index] for index in order]

    def _weight(self, endpoint: Endpoint, now_s: float) -> float:
        since_s = max(endpoint.healthy_since_s, endpoint.breaker.closed_s)
        return weight(now_s - since_s, self.config.slow_start_s)

    @property
    def retry_after_s(self) -> int:
        """When an unhealthy endpoint can be back at the earliest, in whole seconds."""
        health = self.config.health
        return max(1, round(health.interval_s * health.healthy_after))


class Fleet:
    """Every pool, and the checks that keep them true. `run` must be running for health to change."""

    def __init__(self, config: Config, discovery: Discovery) -> None:
        self.pools = {name: Pool(name, pool, discovery) for name, pool in config.pools.items()}
        self.available = set(self.pools)
        """Names of the pools with an endpoint that may get requests."""

    def refresh(self) -> None:
        """Brings `available` up to date after an endpoint's state has changed."""
        self.available = {pool.name for pool in self.pools.values() if pool.available}

    def endpoint(self, name: str) -> Endpoint | None:
        """The endpoint of that name, the first if several pools have one."""
        endpoints = (endpoint for pool in self.pools.values() for endpoint in pool.endpoints)
        return next((endpoint for endpoint in endpoints if endpoint.address.name == name), None)

    def snapshot(self) -> list[EndpointSnapshot]:
        now_s = monotonic()
        return [
            EndpointSnapshot(
                pool=pool.name,
                name=endpoint.address.name,
                url=endpoint.address.url,
                engine=endpoint.kind.name,
                healthy=endpoint.healthy,
                draining=endpoint.draining,
                breaker=endpoint.breaker.state(now_s).name.lower(),
                in_flight=endpoint.in_flight,
                last_failure=endpoint.last_failure,
                models=endpoint.models,
                load=endpoint.load,
            )
            for pool in self.pools.values()
            for endpoint in pool.endpoints
        ]

    async def run(self) -> None:
        """Checks every endpoint at its pool's interval until cancelled."""
        # No limit of connections: a check that waited for its turn behind hanging engines would fail for their sake.
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, limits=limits) as client, asyncio.TaskGroup() as checks:
            for pool in self.pools.values():
                for endpoint in pool.endpoints:
                    checks.create_task(self._watch(client, endpoint, pool.config.health))
                    if endpoint.kind.load is not None and pool.config.load_interval_s is not None:
                        checks.create_task(_watch_load(client, endpoint, endpoint.kind.load, pool.config))

    async def _watch(self, client: httpx.AsyncClient, endpoint: Endpoint, health: HealthConfig) -> None:
        while True:
            failure = await _check(client, endpoint, health.timeout_s)
            endpoint.note_check(failure, monotonic())
            self.refresh()
            if failure is None and not endpoint.models:
                endpoint.models = await _models(client, endpoint, health.timeout_s)
            elif failure is not None:
                endpoint.models = []
            await asyncio.sleep(health.interval_s)


async def _watch_load(client: httpx.AsyncClient, endpoint: Endpoint, series: LoadSeries, config: PoolConfig) -> None:
    assert config.load_interval_s is not None
    while True:
        try:
            response = await _get(client, endpoint.address.url + "/metrics", config.health.timeout_s)
            endpoint.load = read_load(response.text, series) if response.status_code == 200 else None
        except Exception:  # noqa: BLE001 - old figures would be worse than none, and health is checked elsewhere
            endpoint.load = None
        await asyncio.sleep(config.load_interval_s)


async def _check(client: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> str | None:
    """Why the endpoint cannot take requests, or None when it can."""
    try:
        response = await _get(client, endpoint.address.url + endpoint.kind.health_path, timeout_s)
    except Exception as error:  # noqa: BLE001 - whatever a check trips over is the endpoint's failure, not ours
        return f"{endpoint.kind.health_path}: {str(error) or type(error).__name__}"
    if response.status_code != 200:
        return f"{endpoint.kind.health_path} answered {response.status_code}"
    return None


class _ModelList(msgspec.Struct):
    data: list[dict[str, object]]


async def _models(client: httpx.AsyncClient, endpoint: Endpoint, timeout_s: float) -> list[dict[str, object]]:
    """The engine's own model cards; empty when it does not say."""
    try:
        response = await _get(client, endpoint.address.url + "/v1/models", timeout_s)
        return msgspec.json.decode(response.content, type=_ModelList).data
    except Exception:  # noqa: BLE001 - an engine that does not say it properly may say it in any way
        return []


async def _get(client: httpx.AsyncClient, url: str, timeout_s: float) -> httpx.Response:
    """httpx's own timeouts are for each read: an answer that trickles would never end."""
    async with asyncio.timeout(timeout_s):
        return await client.get(url, timeout=None)
