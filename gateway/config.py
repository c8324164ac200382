"""The configuration: one frozen tree, every unknown key an error.

The rules of the policies are sections of it, so that a setting, its default and its limits are said once.
`config_file.py` reads it from YAML. Nothing here opens sockets or looks at the environment.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VISIBLE = re.compile(r"[!-~]+")


def _name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError("a name is 1 to 63 letters, digits, dots, dashes or underscores, a letter or digit first")
    return name


def _host(host: str) -> str:
    try:
        host.encode("idna")
    except UnicodeError:
        host = ""
    if not host:
        raise ValueError("not a host name or an IP address")
    return host


def _engine_url(url: str) -> str:
    # urlsplit lets blanks and control characters pass, which would end up in the request line.
    parts = urlsplit(url if _VISIBLE.fullmatch(url) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("not an engine URL; write it like http://10.0.0.5:8000")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("an engine URL has no query, fragment or credentials; remove them")
    if parts.path.rstrip("/").endswith("/v1"):
        raise ValueError("the gateway adds /v1 itself; remove it from the URL")
    _host(parts.hostname)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the port must be between 1 and 65535")
    return url


Seconds = Annotated[float, Field(gt=0, le=86_400)]
Name = Annotated[str, AfterValidator(_name)]


class ListenConfig(_Section):
    """Where clients connect."""

    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    keep_alive_s: Seconds = 75.0
    """How long an idle client connection is kept; longer than nginx keeps its own (60 s)."""


class LimitsConfig(_Section):
    """What one gateway process takes on."""

    body_bytes: Annotated[int, Field(ge=1)] = 64 * 1024 * 1024
    receive_s: Seconds = 60.0
    in_flight: Annotated[int, Field(ge=1)] = 10_000


class EndpointConfig(_Section):
    url: Annotated[str, AfterValidator(_engine_url)]
    name: Name | None = None


class TimeoutsConfig(_Section):
    """How long a request may take: to connect, to the first byte, between two chunks, and in all."""

    connect_s: Seconds = 2.0
    first_byte_s: Seconds = 300.0
    chunk_gap_s: Seconds = 120.0
    total_s: Seconds = 3600.0

    @model_validator(mode="after")
    def _parts_fit_the_whole(self) -> TimeoutsConfig:
        for part in ("connect_s", "first_byte_s", "chunk_gap_s"):
            if getattr(self, part) > self.total_s:
                raise ValueError(
                    f"{part} is {getattr(self, part):g} but total_s is only {self.total_s:g}, so it can never "
                    f"expire; lower {part} or raise total_s"
                )
        return self


class HealthConfig(_Section):
    """Active checks of one pool's endpoints. Each state change needs that many equal results in a row."""

    interval_s: Seconds = 2.0
    timeout_s: Seconds = 1.5
    unhealthy_after: Annotated[int, Field(ge=1)] = 2
    healthy_after: Annotated[int, Field(ge=1)] = 1


class RetryRules(_Section):
    """Trying again before the client's first byte: how often, how soon, and what share of the traffic may be extra."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Of one request that an engine may have seen. All tries, those that reached no engine included, are at most
    twice as many."""
    max_crashes: Annotated[int, Field(ge=1, le=10)] = 2
    """Attempts after which the engine may have died of the request; one that kills engines must not meet them all."""
    budget_share: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.2
    budget_min_per_s: Annotated[float, Field(ge=0, le=1000, strict=False)] = 1.0
    base_delay_s: Seconds = 0.05
    max_delay_s: Seconds = 2.0
    max_retry_after_s: Annotated[float, Field(ge=0, le=3600, strict=False)] = 5.0
    """Longest Retry-After that is waited for here; a client is better told of a longer one."""


class BreakerRules(_Section):
    """When an endpoint is left alone because requests to it fail, and how it comes back.

    Two rules, because either alone is blind: at one request every few seconds the window never holds `min_volume`,
    and under load an engine that fails every second request has no row of failures.
    """

    window_s: Seconds = 30.0
    min_volume: Annotated[int, Field(ge=1)] = 10
    """Reports in the window below which a share says nothing."""
    failure_ratio: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.5
    consecutive_failures: Annotated[int, Field(ge=1)] = 5
    """Envoy's default for outlier detection (`consecutive_gateway_failure`)."""
    open_s: Seconds = 5.0
    """Rest after the first opening; the n-th in a row lasts n times as long, as Envoy's `base_ejection_time`."""
    max_open_s: Seconds = 20.0
    half_open_probes: Annotated[int, Field(ge=1)] = 1
    """Requests that may be out at once while nobody knows whether the endpoint works again."""
    probe_timeout_s: Seconds = 30.0
    """A probe that has not reported by then no longer holds its place."""


class HedgeRules(_Section):
    """Asking a second endpoint after `delay_s` where given, else after the `quantile` of recent first bytes."""

    delay_s: Seconds | None = None
    quantile: Annotated[float, Field(gt=0, le=1, strict=False)] = 0.95
    """The choice of Dean and Barroso's paper; about one request in twenty is then hedged."""
    min_samples: Annotated[int, Field(ge=0)] = 100
    """Below this the quantile is a guess, and nothing is hedged."""
    budget_share: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.05
    budget_min_per_s: Annotated[float, Field(ge=0, le=1000, strict=False)] = 0.1


class PoolConfig(_Section):
    """Engines of one kind that serve one model."""

    engine: Literal["vllm", "sglang", "openai"]
    endpoints: Annotated[tuple[EndpointConfig, ...], Field(min_length=1, strict=False)]
    policy: Literal["round_robin", "least_in_flight"] = "least_in_flight"
    timeouts: TimeoutsConfig = TimeoutsConfig()
    health: HealthConfig = HealthConfig()
    load_interval_s: Seconds | None = 5.0
    """How often each engine's own load is read from its `/metrics`; null: never. A scrape costs vLLM some
    milliseconds of the loop that also writes its streams."""
    retry: RetryRules = RetryRules()
    breaker: BreakerRules = BreakerRules()
    max_ejection_share: Annotated[float, Field(ge=0, le=1, strict=False)] = 0.5
    """Part of the pool that breakers may leave out at once; the last endpoint never."""
    slow_start_s: Annotated[float, Field(ge=0, le=3600, strict=False)] = 10.0
    """An endpoint that has just become healthy gets a tenth of its share, rising to all of it over this time."""
    hedge: HedgeRules | None = None

    def endpoint_names(self, pool: str) -> list[str]:
        """The endpoints' names in order: their own, or `<pool>-<position>`."""
        return [endpoint.name or f"{pool}-{position}" for position, endpoint in enumerate(self.endpoints)]


class RouteConfig(_Section):
    """Requests for `model` go to these pools, in proportion to their weights."""

    model: Annotated[str, Field(min_length=1)]
    keep_alive_s: Seconds | None = None
    """While a stream waits for its first byte, a comment goes to the client this often; the status is 200 then."""
    continuation: bool = False
    """A stream whose engine fails after the first byte goes on from another endpoint where the join is certain."""
    split: Annotated[dict[str, Annotated[int, Field(ge=0)]], Field(min_length=1)]

    @model_validator(mode="after")
    def _some_weight(self) -> RouteConfig:
        if not any(self.split.values()):
            raise ValueError("every weight of the split is 0; give at least one pool a weight")
        return self


class RecordsConfig(_Section):
    """One JSON line per finished request (`docs/formats.md`). Without a path none is written."""

    path: str | None = None


class TraceConfig(_Section):
    """`sample_ratio` of the requests that arrive without a trace context are marked as sampled."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 0.01


class UsageConfig(_Section):
    """With `inject`, engines are asked for the usage of every stream, and clients that did not ask do not see it."""

    inject: bool = True


class DrainConfig(_Section):
    """SIGTERM: not ready for `settle_s` while still serving, then no new requests, then up to `timeout_s`."""

    settle_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    timeout_s: Seconds = 30.0


class Config(_Section):
    listen: ListenConfig = ListenConfig()
    limits: LimitsConfig = LimitsConfig()
    pools: Annotated[dict[Name, PoolConfig], Field(min_length=1)]
    routes: Annotated[tuple[RouteConfig, ...], Field(min_length=1, strict=False)]
    records: RecordsConfig = RecordsConfig()
    trace: TraceConfig = TraceConfig()
    usage: UsageConfig = UsageConfig()
    drain: DrainConfig = DrainConfig()
