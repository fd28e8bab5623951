"""The client's view of this server: client address, scheme, host and prefix of the URL, and the origin of its pages.

A proxy reports them in X-Forwarded headers, which every client can send. So these headers are used only if the
connection comes from an address that a setting trusts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fastapi import Request
from starlette.types import Scope

from runlane.addresses import Network, literal, normal_host, parse_networks
from runlane.settings import Settings

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_HOST: Final = re.compile(r"[A-Za-z0-9._\-:\[\]]{1,255}")


@dataclass(frozen=True, slots=True)
class ClientSide:
    """A request from the view of its client. `prefix` is the path before /ui/ and /api/, without a trailing slash."""

    address: str
    scheme: str
    host: str
    prefix: str

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> str:
        """The origin of the pages of this server."""
        return f"{self.scheme}://{self.host}".lower()


class ProxyTrust:
    """Reads requests behind the proxies that the settings trust."""

    def __init__(self, settings: Settings) -> None:
        self._networks: Sequence[Network] = parse_networks(settings.trusted_proxies or "")
        self._base_path = settings.ui_base_path

    def read(self, scope: Scope) -> ClientSide:
        """Return the client's view of a request."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        client: Any = scope.get("client")
        address = client[0] if client else ""
        host = _text(headers, b"host")
        scheme = str(scope.get("scheme", "http"))
        prefix = self._base_path or ""
        if self.trusts(address):
            forwarded = _last(_text(headers, b"x-forwarded-proto")).lower()
            scheme = forwarded if forwarded in ("http", "https") else scheme
            given = _last(_text(headers, b"x-forwarded-host"))
            host = given if _HOST.fullmatch(given) else host
            path = _text(headers, b"x-forwarded-prefix").strip().removesuffix("/")
            if self._base_path is None and len(path) <= 200 and _PREFIX.fullmatch(path):
                prefix = path
            address = self._first_untrusted(_text(headers, b"x-forwarded-for")) or address
        return ClientSide(address, scheme, host, prefix)

    def trusts(self, address: str) -> bool:
        """Return whether this is the address of a proxy."""
        known = literal(normal_host(address))
        return known is not None and any(known in network for network in self._networks)

    def _first_untrusted(self, chain: str) -> str | None:
        """Return the last address of the chain that is not a trusted proxy. Addresses before it may be forged."""
        for part in reversed([part.strip() for part in chain.split(",") if part.strip()]):
            if not self.trusts(part):
                return part if literal(normal_host(part)) is not None else None
        return None


def client_side(request: Request) -> ClientSide:
    """Return the client's view of this request."""
    trust: ProxyTrust = request.app.state.proxy_trust
    return trust.read(request.scope)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str:
    return headers.get(name, b"").decode("latin-1")


def _last(value: str) -> str:
    """Return the last value of the list, which the nearest proxy has added."""
    return value.rpartition(",")[2].strip()
