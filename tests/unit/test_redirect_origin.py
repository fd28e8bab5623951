"""Redirects to another origin carry no credentials; the scheme is a part of the origin."""

from __future__ import annotations

import httpx2
import pytest

from runlane.outbound.transport import _followed

SECRETS = {"authorization": "Bearer canary", "x-api-key": "canary", "cookie": "session=canary"}


@pytest.mark.parametrize(
    ("source", "target", "kept"),
    [
        ("https://host.example:8443/a", "http://host.example:8443/b", False),
        ("http://host.example:8080/a", "https://host.example:8080/b", False),
        ("https://host.example/a", "https://host.example:444/b", False),
        ("https://host.example/a", "https://other.example/b", False),
        ("https://host.example/a", "https://HOST.example:443/b", True),
        ("http://host.example/a", "http://host.example:80/b", True),
    ],
)
def test_credentials_follow_a_redirect_within_the_origin_only(source: str, target: str, kept: bool) -> None:
    request = httpx2.Request("GET", source, headers=SECRETS)
    following = _followed(request, 307, httpx2.URL(target))
    assert [name for name in SECRETS if name in following.headers] == (list(SECRETS) if kept else [])
