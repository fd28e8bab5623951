"""Secrets over HTTP: they can be set and deleted, but not read."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from urllib.parse import quote

from runlane.client.http import PREFIX, Http
from runlane.client.wire import parse
from runlane.domain.secret import Secret, check_name

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RotatedSecrets:
    """The result of a rotation. `unreadable` are (tenant, name, key id) of secrets that the server cannot decrypt."""

    key_id: str
    rotated: int
    unreadable: tuple[tuple[str, str, str], ...]


class Secrets:
    """The secrets of the key's tenant; platform admins may name another one."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def set(self, name: str, value: str, *, tenant: str | None = None) -> Secret:
        """Set a secret; workers use the new value within two seconds."""
        body = {"value": value, "tenant": tenant}
        return parse(Secret, await self._http.change("PUT", _path(name), body))

    async def list(self, *, tenant: str | None = None) -> AsyncGenerator[Secret]:
        """Yield names, versions and times, by name."""
        cursor: str | None = None
        while True:
            page = await self._http.read(f"{PREFIX}/secrets", {"tenant": tenant, "cursor": cursor, "limit": _PAGE})
            for item in page["secrets"]:
                yield parse(Secret, item)
            cursor = page["next_cursor"]
            if cursor is None:
                return

    async def delete(self, name: str, *, tenant: str | None = None) -> Secret:
        """Delete a secret and return its last description."""
        query = "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
        return parse(Secret, await self._http.change("DELETE", f"{_path(name)}{query}"))

    async def rotate(self, *, tenant: str | None = None) -> RotatedSecrets:
        """Re-encrypt secrets of older keys with the server's first key."""
        answer = await self._http.change("POST", f"{PREFIX}/secrets/rotate", {"tenant": tenant})
        unreadable = tuple((item["tenant"], item["name"], item["key_id"]) for item in answer["unreadable"])
        return RotatedSecrets(answer["key_id"], answer["rotated"], unreadable)


def _path(name: str) -> str:
    return f"{PREFIX}/secrets/{check_name(name)}"
