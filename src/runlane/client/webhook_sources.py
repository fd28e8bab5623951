"""Sources of incoming webhooks over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.webhook_source import WebhookSource


class SourceAccess(NamedTuple):
    """A source after a change. The path of its URL and its generated secret are set if they are new."""

    source: WebhookSource
    hook_path: str | None
    secret: str | None


class WebhookSources:
    """The sources of the key's tenant. Platform admins may name another tenant."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def set(self, name: str, verifier: str, **settings: Any) -> SourceAccess:
        """Create a source or replace its settings, which are those of `PUT /api/v2/webhook-sources/{name}`."""
        return _access(await self._http.change("PUT", _path(name), {"verifier": verifier, **settings}))

    async def list(self, *, tenant: str | None = None) -> Sequence[WebhookSource]:
        """Return the sources by name."""
        path = f"{PREFIX}/webhook-sources"
        return await self._http.read_list(WebhookSource, path, "webhook_sources", {"tenant": tenant})

    async def get(self, name: str, *, tenant: str | None = None) -> WebhookSource:
        """Return a source."""
        return parse(WebhookSource, await self._http.read(_path(name), {"tenant": tenant}))

    async def rotate_token(self, name: str, *, tenant: str | None = None) -> SourceAccess:
        """Create a new path for a source. Requests to the old path are rejected."""
        return _access(await self._http.change("POST", f"{_path(name)}/token{_query(tenant)}"))

    async def delete(self, name: str, *, tenant: str | None = None) -> WebhookSource:
        """Delete a source. Its events are kept."""
        return parse(WebhookSource, await self._http.change("DELETE", f"{_path(name)}{_query(tenant)}"))


def _access(answer: Any) -> SourceAccess:
    return SourceAccess(parse(WebhookSource, answer["source"]), answer["hook_path"], answer["secret"])


def _path(name: str) -> str:
    return f"{PREFIX}/webhook-sources/{part(name)}"


def _query(tenant: str | None) -> str:
    return "" if tenant is None else f"?tenant={quote(tenant, safe='')}"
