"""Endpoints as the configuration lists them: the simplest source of addresses."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.config import PoolConfig
from gateway.model import EndpointAddress


def addresses(pool: str, config: PoolConfig) -> list[EndpointAddress]:
    """The pool's endpoints in order, named `<pool>-<position>` unless the configuration names them."""
    names = config.endpoint_names(pool)
    return [_address(name, endpoint.url) for name, endpoint in zip(names, config.endpoints, strict=True)]


def _address(name: str, url: str) -> EndpointAddress:
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    host = parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    bracketed = f"[{host}]" if ":" in host else host
    return EndpointAddress(
        name=name,
        host=host,
        port=port,
        tls=tls,
        base_path=parts.path.rstrip("/").encode("ascii"),
        authority=f"{bracketed}:{port}".encode("ascii"),
    )
