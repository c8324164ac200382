"""Addresses from configured URLs."""

from __future__ import annotations

import pytest

from gateway.config import PoolConfig
from gateway.discovery.static import addresses
from gateway.model import EndpointAddress


def pool(*endpoints: dict[str, str]) -> PoolConfig:
    return PoolConfig.model_validate({"engine": "vllm", "endpoints": list(endpoints)})


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "base_path", "authority"),
    [
        ("http://10.0.0.5:8000", "10.0.0.5", 8000, False, b"", b"10.0.0.5:8000"),
        ("http://engine", "engine", 80, False, b"", b"engine:80"),
        ("https://Engine.example/", "engine.example", 443, True, b"", b"engine.example:443"),
        ("https://engine:8443/models/a//", "engine", 8443, True, b"/models/a", b"engine:8443"),
        ("http://[2001:DB8::1]:9000/x", "2001:db8::1", 9000, False, b"/x", b"[2001:db8::1]:9000"),
    ],
)
def test_an_address_from_a_url(url: str, host: str, port: int, tls: bool, base_path: bytes, authority: bytes) -> None:
    assert addresses("p", pool({"url": url})) == [
        EndpointAddress(name="p-0", host=host, port=port, tls=tls, base_path=base_path, authority=authority)
    ]


def test_endpoints_are_named_by_position_unless_they_have_a_name() -> None:
    named = addresses("p", pool({"url": "http://a"}, {"url": "http://b", "name": "big"}, {"url": "http://c"}))
    assert [address.name for address in named] == ["p-0", "big", "p-2"]
