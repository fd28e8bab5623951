"""Secrets over HTTP: they can be set and deleted, but not read."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote

from runlane.client.http import PREFIX, Http
from runlane.client.wire import parse
from runlane.domain.secret import RotatedSecrets, Secret, SecretUser, check_name

_PAGE = 1000


class Secrets:
    """The secrets of the key's tenant. Platform admins may name another tenant."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def set(self, name: str, value: str, *, tenant: str | None = None) -> Secret:
        """Set a secret. Workers use the new value within two seconds."""
        body = {"value": value, "tenant": tenant}
        return parse(Secret, await self._http.change("PUT", _path(name), body))

    def list(self, *, tenant: str | None = None) -> AsyncGenerator[Secret]:
        """Yield the secrets by name, with versions and times, without their values."""
        return self._http.pages(Secret, f"{PREFIX}/secrets", "secrets", {"tenant": tenant, "limit": _PAGE})

    async def used_by(self, name: str, *, tenant: str | None = None) -> Sequence[SecretUser]:
        """Return the definitions that refer to a secret, even if the secret does not exist; at most 500."""
        return await self._http.read_list(SecretUser, f"{_path(name)}/used-by", "used_by", {"tenant": tenant})

    async def delete(self, name: str, *, tenant: str | None = None) -> Secret:
        """Delete a secret and return its last record."""
        query = "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
        return parse(Secret, await self._http.change("DELETE", f"{_path(name)}{query}"))

    async def rotate(self, *, tenant: str | None = None) -> RotatedSecrets:
        """Re-encrypt secrets of older keys with the server's first key."""
        return parse(RotatedSecrets, await self._http.change("POST", f"{PREFIX}/secrets/rotate", {"tenant": tenant}))


def _path(name: str) -> str:
    return f"{PREFIX}/secrets/{check_name(name)}"
