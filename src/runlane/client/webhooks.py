"""Webhooks over HTTP: endpoints, secrets, tests, the log of deliveries, and replays."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from runlane.client.http import PREFIX, Http, part
from runlane.client.wire import parse
from runlane.domain.webhook import (
    WebhookAttempt,
    WebhookDelivery,
    WebhookDeliveryLog,
    WebhookEndpoint,
    WebhookKey,
    WebhookReplay,
    WebhookSecret,
)

_PAGE = 1000
_ROOT = f"{PREFIX}/webhooks"


class Webhooks:
    """The webhooks of the key's tenant. Platform admins may name another tenant."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def event_types(self) -> Sequence[Mapping[str, Any]]:
        """Return every type of messages, with its JSON Schema and an example."""
        return (await self._http.read(f"{_ROOT}/event-types"))["event_types"]

    async def keys(self, *, tenant: str | None = None) -> Sequence[WebhookKey]:
        """Return the public keys of endpoints with ed25519 signatures."""
        return await self._http.read_list(WebhookKey, f"{_ROOT}/keys", "webhook_keys", {"tenant": tenant})

    async def create(
        self, url: str, *, tenant: str | None = None, **fields: Any
    ) -> tuple[WebhookEndpoint, WebhookSecret | None]:
        """Create an endpoint. Only this call returns its secret. `fields` are those of `POST /webhooks/endpoints`."""
        answer = await self._http.change("POST", f"{_ROOT}/endpoints", {"url": url, "tenant": tenant, **fields})
        secret = answer["secret"]
        return parse(WebhookEndpoint, answer["endpoint"]), None if secret is None else parse(WebhookSecret, secret)

    def list(self, *, tenant: str | None = None) -> AsyncGenerator[WebhookEndpoint]:
        """Yield the endpoints."""
        return self._http.pages(WebhookEndpoint, f"{_ROOT}/endpoints", "endpoints", {"tenant": tenant, "limit": _PAGE})

    async def get(self, endpoint_id: str) -> WebhookEndpoint:
        """Return an endpoint with its health."""
        return parse(WebhookEndpoint, await self._http.read(_endpoint(endpoint_id)))

    async def set(self, endpoint_id: str, fields: Mapping[str, Any]) -> WebhookEndpoint:
        """Change an endpoint. `fields` are those of `PATCH /webhooks/endpoints/{id}`."""
        return parse(WebhookEndpoint, await self._http.change("PATCH", _endpoint(endpoint_id), fields))

    async def enable(self, endpoint_id: str, *, held: str) -> tuple[WebhookEndpoint, int]:
        """Enable an endpoint. `held` is "send" or "discard". Return the endpoint and the number of held messages."""
        answer = await self._http.change("POST", _endpoint(endpoint_id, "enable"), {"held": held})
        return parse(WebhookEndpoint, answer["endpoint"]), answer["deliveries"]

    async def disable(self, endpoint_id: str, reason: str = "disabled by an operator") -> WebhookEndpoint:
        """Disable an endpoint. Its messages are held."""
        answer = await self._http.change("POST", _endpoint(endpoint_id, "disable"), {"reason": reason})
        return parse(WebhookEndpoint, answer)

    async def rotate(self, endpoint_id: str, *, overlap_hours: float = 24.0) -> WebhookSecret:
        """Replace the secret. During the overlap, messages have both signatures."""
        body = {"overlap_hours": overlap_hours}
        return parse(WebhookSecret, await self._http.change("POST", _endpoint(endpoint_id, "rotate"), body))

    async def secret(self, endpoint_id: str) -> WebhookSecret:
        """Return the secret. The key needs secrets:manage."""
        return parse(WebhookSecret, await self._http.read(_endpoint(endpoint_id, "secret")))

    async def default_secret(self, *, tenant: str | None = None) -> WebhookSecret:
        """Return the secret that signs the webhooks of runs without their own secret."""
        return parse(WebhookSecret, await self._http.read(f"{_ROOT}/secret", {"tenant": tenant}))

    async def rotate_default_secret(self, *, overlap_hours: float = 24.0, tenant: str | None = None) -> WebhookSecret:
        """Create or replace the secret for runs without their own.

        During the overlap, messages have both signatures.
        """
        body = {"overlap_hours": overlap_hours, "tenant": tenant}
        return parse(WebhookSecret, await self._http.change("POST", f"{_ROOT}/secret/rotate", body))

    async def test(self, endpoint_id: str) -> WebhookAttempt:
        """Send a test message once and return the attempt."""
        return parse(WebhookAttempt, await self._http.change("POST", _endpoint(endpoint_id, "test")))

    async def delete(self, endpoint_id: str) -> WebhookEndpoint:
        """Delete an endpoint and return its last state."""
        return parse(WebhookEndpoint, await self._http.change("DELETE", _endpoint(endpoint_id)))

    async def deliveries(
        self, *, before: str | None = None, limit: int = 50, **filters: Any
    ) -> Sequence[WebhookDelivery]:
        """Return deliveries, newest first. Filters: endpoint_id, status, type, run_id, since, tenant."""
        query = {"cursor": before, "limit": limit, **filters}
        return await self._http.read_list(WebhookDelivery, f"{_ROOT}/deliveries", "deliveries", query)

    async def delivery(self, delivery_id: str) -> WebhookDeliveryLog:
        """Return a delivery with its body and every attempt."""
        return parse(WebhookDeliveryLog, await self._http.read(f"{_ROOT}/deliveries/{part(delivery_id)}"))

    async def replay(self, delivery_id: str, *, max_tries: int = 1) -> WebhookDelivery:
        """Send the message of a delivery again and return the new delivery."""
        path = f"{_ROOT}/deliveries/{part(delivery_id)}/replay"
        return parse(WebhookDelivery, await self._http.change("POST", path, {"max_tries": max_tries}))

    async def replay_many(self, **filters: Any) -> WebhookReplay:
        """Send the newest matching messages again, at most 1,000. Filters are those of `POST /webhooks/replay`."""
        return parse(WebhookReplay, await self._http.change("POST", f"{_ROOT}/replay", filters))

    async def replay_all(self, **filters: Any) -> int:
        """Send all matching messages again, newest first, 1,000 per request. Return the number of deliveries."""
        done = await self.replay_many(**filters)
        replayed = done.replayed
        while done.more:
            done = await self.replay_many(**{**filters, "before": done.before})
            replayed += done.replayed
        return replayed


def _endpoint(endpoint_id: str, action: str = "") -> str:
    return f"{_ROOT}/endpoints/{part(endpoint_id)}{f'/{action}' if action else ''}"
