"""What may be an admin address."""

from __future__ import annotations

import pytest

from sbproxy.client.core.target import admin_target
from sbproxy.errors.client import AdminUrlInvalid


@pytest.mark.parametrize(
    ("url", "base", "loopback"),
    [
        ("http://127.0.0.1:9090", "http://127.0.0.1:9090", True),
        ("http://localhost:9090/", "http://localhost:9090", True),
        ("http://[::1]:1/", "http://[::1]:1", True),
        ("https://gpu-1.example.org/sbproxy/", "https://gpu-1.example.org/sbproxy", False),
        (" http://10.0.0.4 ", "http://10.0.0.4", False),
    ],
)
def test_accepted(url: str, base: str, loopback: bool) -> None:
    target = admin_target(url)
    assert (target.base, target.loopback) == (base, loopback)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("127.0.0.1:9090", "http://"),
        ("ftp://127.0.0.1", "http://"),
        ("http://", "no host"),
        ("http://127.0.0.1:99999", "ort"),
        ("http://127.0.0.1/?a=1", "query"),
        ("", "http://"),
    ],
)
def test_refused_with_the_reason(url: str, word: str) -> None:
    with pytest.raises(AdminUrlInvalid) as refused:
        admin_target(url)
    assert word in refused.value.reason
    assert "http://127.0.0.1:9090" in str(refused.value)


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(AdminUrlInvalid) as refused:
        admin_target("http://admin:hunter2@127.0.0.1:9090")
    assert "hunter2" not in str(refused.value)
    assert "hunter2" not in repr(refused.value)
