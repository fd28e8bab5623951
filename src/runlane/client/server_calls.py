"""Calls about the server itself and the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runlane.client.http import PREFIX, Http
from runlane.domain.search_hit import SearchHit


class ServerCalls:
    """Version, identity, registered tasks and search. A part of Client."""

    _http: Http

    async def server_info(self) -> Mapping[str, Any]:
        """Return the version of the server. With a valid key, add its features, limits and retention."""
        return await self._http.read(f"{PREFIX}/info")

    async def identity(self) -> Mapping[str, Any]:
        """Return the tenant, the role and the permissions of the key."""
        return await self._http.read(f"{PREFIX}/me")

    async def tasks(self) -> Sequence[Mapping[str, Any]]:
        """Return the tasks that are registered with the server, by name."""
        return (await self._http.read(f"{PREFIX}/tasks"))["tasks"]

    async def search(self, text: str, *, tenant: str | None = None) -> Sequence[SearchHit]:
        """Find runs, conversations, definitions and schedules by id or name; at most 20.

        Platform admins also find lanes and workers.
        """
        return await self._http.read_list(SearchHit, f"{PREFIX}/search", "hits", {"q": text, "tenant": tenant})
