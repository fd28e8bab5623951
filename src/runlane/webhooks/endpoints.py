"""Manage webhook endpoints: checks, secrets, rotation and tests, for the API and the command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from runlane.access.keyring import Keyring
from runlane.access.secrets import SecretVault
from runlane.addresses import parse_allow_list
from runlane.domain.ids import new_id
from runlane.domain.text import check_text, dump_json
from runlane.domain.timestamps import format_timestamp
from runlane.domain.webhook import (
    DEFAULT_IN_FLIGHT,
    DEFAULT_OVERLAP_HOURS,
    DEFAULT_RATE,
    INCLUDED,
    MAX_DESCRIPTION,
    MAX_OVERLAP_HOURS,
    SIGNATURES,
    SignatureKind,
    WebhookAttempt,
    WebhookEndpoint,
    WebhookSecret,
    check_filter,
    check_rates,
)
from runlane.domain.webhook_events import WebhookType, check_types
from runlane.errors import InvalidRequest, NotFound, OutboundRefused
from runlane.settings import Settings
from runlane.store.access.tenants import find_tenant
from runlane.store.sql.database import Database, Session, read_clock
from runlane.store.webhooks.deliveries import add_test, read_delivery
from runlane.store.webhooks.endpoints import (
    EndpointFields,
    audit_reveal,
    create_endpoint,
    find_endpoint,
    lock_endpoint,
    rotate_secret,
    set_endpoint,
)
from runlane.store.webhooks.results import record_tries
from runlane.store.webhooks.secrets import (
    StoredSecret,
    audit_default_reveal,
    default_owner,
    rotate_default_secret,
    valid_secrets,
)
from runlane.webhooks.destination import check_destination
from runlane.webhooks.headers import check_headers
from runlane.webhooks.keys import make_secret, open_secret
from runlane.webhooks.sender import WebhookSender

_HOUR_US: Final = 3600 * 1_000_000
# A claim that no other process takes over while a test is sent.
_TEST_LEASE_US: Final = _HOUR_US


class WebhookManager:
    """Changes the endpoints of a database."""

    def __init__(self, database: Database, settings: Settings, keyring: Keyring) -> None:
        self._database = database
        self._settings = settings
        self._keyring = keyring
        self._allowed = parse_allow_list(settings.outbound_allow or "")

    async def create(
        self, tenant: str, fields: EndpointFields, *, signature: str = "hmac", actor: str
    ) -> tuple[WebhookEndpoint, WebhookSecret]:
        """Create an endpoint and return it with its secret. Raises NoSecretKey without an encryption key."""
        if fields.url is None:
            raise InvalidRequest("A webhook endpoint needs a URL.")
        kind = _signature(signature)
        whole = EndpointFields(
            url=fields.url,
            description=fields.description or "",
            types=fields.types or [],
            filter=fields.filter or {},
            include=fields.include or [],
            headers=fields.headers or {},
            rate_per_second=DEFAULT_RATE if fields.rate_per_second is None else fields.rate_per_second,
            max_in_flight=DEFAULT_IN_FLIGHT if fields.max_in_flight is None else fields.max_in_flight,
            ordered=bool(fields.ordered),
        )
        checked = self._checked(whole)
        endpoint_id = new_id("we")
        shown, sealed = await asyncio.to_thread(make_secret, self._keyring, endpoint_id, 1, tenant, kind)
        endpoint = await create_endpoint(
            self._database,
            endpoint_id,
            tenant,
            checked,
            kind,
            sealed,
            most=self._settings.max_webhook_endpoints,
            actor=actor,
        )
        return endpoint, _shown(endpoint_id, 1, shown, sealed.public_key, None)

    async def change(
        self, endpoint_id: str, fields: EndpointFields, *, version: int | None = None, actor: str
    ) -> WebhookEndpoint:
        """Change an endpoint."""
        if fields == EndpointFields():
            raise InvalidRequest("Nothing to change: give a field of the endpoint.")
        return await set_endpoint(self._database, endpoint_id, self._checked(fields), version=version, actor=actor)

    async def rotate(
        self, endpoint_id: str, *, overlap_hours: float = DEFAULT_OVERLAP_HOURS, actor: str
    ) -> WebhookSecret:
        """Create a new secret. For `overlap_hours`, messages are signed with both secrets."""
        overlap_us = _overlap_us(overlap_hours)
        endpoint = await find_endpoint(self._database, endpoint_id)
        version = (await self._required(endpoint_id)).version + 1
        shown, sealed = await asyncio.to_thread(
            make_secret, self._keyring, endpoint_id, version, endpoint.tenant, endpoint.signature
        )
        until = await rotate_secret(self._database, endpoint_id, sealed, overlap_us=overlap_us, actor=actor)
        return _shown(endpoint_id, version, shown, sealed.public_key, until)

    async def reveal(self, endpoint_id: str, *, actor: str) -> WebhookSecret:
        """Return the current secret of an endpoint; this is recorded in the audit log."""
        endpoint = await find_endpoint(self._database, endpoint_id)
        stored = await self._required(endpoint_id)
        secret = await asyncio.to_thread(open_secret, self._keyring, stored)
        await audit_reveal(self._database, endpoint, stored.version, actor=actor)
        return _shown(endpoint_id, stored.version, secret, stored.public_key, None)

    async def rotate_default(
        self, tenant: str, *, overlap_hours: float = DEFAULT_OVERLAP_HOURS, actor: str
    ) -> WebhookSecret:
        """Create or replace the secret that signs the webhooks of a tenant's runs that have no secret of their own."""
        overlap_us = _overlap_us(overlap_hours)
        await find_tenant(self._database, tenant)
        owner = default_owner(tenant)
        current = await self._current(owner)
        version = 1 if current is None else current.version + 1
        shown, sealed = await asyncio.to_thread(make_secret, self._keyring, owner, version, tenant, "hmac")
        until = await rotate_default_secret(self._database, sealed, overlap_us=overlap_us, actor=actor)
        return _shown(None, version, shown, None, until)

    async def reveal_default(self, tenant: str, *, actor: str) -> WebhookSecret:
        """Return the current default secret of a tenant; this is recorded in the audit log."""
        stored = await self._current(default_owner(tenant))
        if stored is None:
            raise NotFound(
                f'The tenant "{tenant}" has no default webhook secret. Create it: runlane webhooks rotate, '
                "or POST /webhooks/secret/rotate"
            )
        secret = await asyncio.to_thread(open_secret, self._keyring, stored)
        await audit_default_reveal(self._database, stored, actor=actor)
        return _shown(None, stored.version, secret, None, None)

    async def test(self, endpoint_id: str, *, actor: str) -> WebhookAttempt:
        """Send a test message once and return the attempt. It does not change the endpoint's health."""
        at = format_timestamp(await read_clock(self._database))
        kind = WebhookType.TEST_PING.value
        body = dump_json({"type": kind, "timestamp": at, "data": {"endpoint_id": endpoint_id, "sent_by": actor}})

        async def work(session: Session) -> Any:
            endpoint = await lock_endpoint(session, endpoint_id)
            return await add_test(session, endpoint_id, endpoint.tenant, kind, body, _TEST_LEASE_US)

        delivery = await self._database.transact(work)
        vault = SecretVault(self._database, self._settings)
        sender = WebhookSender(self._settings, self._keyring, vault.values)
        try:
            result = await sender.send(delivery, time.monotonic())
        finally:
            await sender.close()
        await self._database.transact(lambda session: record_tries(session, [(delivery, result)]))
        return (await read_delivery(self._database, delivery.id)).attempts[-1]

    async def _required(self, endpoint_id: str) -> StoredSecret:
        found = await self._current(endpoint_id)
        if found is None:
            raise NotFound(f"The webhook endpoint {endpoint_id} has no secret.")
        return found

    async def _current(self, owner: str) -> StoredSecret | None:
        async def work(session: Session) -> Sequence[StoredSecret]:
            return (await valid_secrets(session, [owner]))[owner]

        found = await self._database.transact(work)
        return found[0] if found else None

    def _checked(self, fields: EndpointFields) -> EndpointFields:
        if fields.url is not None:
            try:
                check_destination(fields.url, self._allowed)
            except OutboundRefused as refused:
                raise InvalidRequest(str(refused)) from None
        if fields.description:
            check_text(fields.description, "The description", MAX_DESCRIPTION)
        check_rates(fields.rate_per_second, fields.max_in_flight)
        for name in fields.include or ():
            if name not in INCLUDED:
                raise InvalidRequest(f'"{name}" cannot be included. Choose from: {", ".join(INCLUDED)}.')
        return EndpointFields(
            url=fields.url,
            description=fields.description,
            types=None if fields.types is None else check_types(fields.types),
            filter=None if fields.filter is None else check_filter(fields.filter),
            include=None if fields.include is None else sorted(set(fields.include)),
            headers=None if fields.headers is None else check_headers(fields.headers),
            rate_per_second=fields.rate_per_second,
            max_in_flight=fields.max_in_flight,
            ordered=fields.ordered,
        )


def endpoint_fields(given: Mapping[str, Any]) -> EndpointFields:
    """Return the fields that a request names."""
    return EndpointFields(**{name: value for name, value in given.items() if value is not None})


def _overlap_us(hours: float) -> int:
    if not 0 <= hours <= MAX_OVERLAP_HOURS:
        raise InvalidRequest(f"overlap_hours={hours:g} must be between 0 and {MAX_OVERLAP_HOURS}.")
    return int(hours * _HOUR_US)


def _signature(name: str) -> SignatureKind:
    for kind in SIGNATURES:
        if kind == name:
            return kind
    raise InvalidRequest(f'"{name}" is not a kind of signature. Choose from: {", ".join(SIGNATURES)}.')


def _shown(
    endpoint_id: str | None, version: int, secret: str, public_key: str | None, until_us: int | None
) -> WebhookSecret:
    # A private key never leaves the server: receivers need only the public one.
    return WebhookSecret(endpoint_id, version, None if public_key else secret, public_key, until_us)
