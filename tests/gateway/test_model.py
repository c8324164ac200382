"""The little behaviour that shared values have."""

from __future__ import annotations

import pytest

from gateway.model import EndpointAddress, ResponseHead


@pytest.mark.parametrize(
    ("tls", "authority", "base_path", "url"),
    [
        (False, b"10.0.0.5:8000", b"", "http://10.0.0.5:8000"),
        (True, b"engine.example:443", b"/a/b", "https://engine.example:443/a/b"),
        (False, b"[::1]:80", b"", "http://[::1]:80"),
    ],
)
def test_the_url_of_an_address(tls: bool, authority: bytes, base_path: bytes, url: str) -> None:
    address = EndpointAddress(name="e", host="h", port=1, tls=tls, base_path=base_path, authority=authority)
    assert address.url == url


def test_the_first_value_of_a_response_field() -> None:
    head = ResponseHead(status=200, headers=[(b"a", b"1"), (b"a", b"2")], length=None)
    assert (head.header(b"a"), head.header(b"b")) == (b"1", None)
