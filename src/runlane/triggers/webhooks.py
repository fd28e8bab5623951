"""Incoming webhooks: sources are managed, and verified requests become events of their tenant."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from runlane.access.keyring import Keyring
from runlane.access.webhook_signatures import HookRequest, verify
from runlane.domain.tenant_event import EventReceipt, new_event
from runlane.domain.webhook_source import (
    DEFAULT_RATE,
    MAX_SECRET,
    VENDORS,
    SourceOptions,
    Verifier,
    WebhookSource,
    check_source,
    check_source_name,
    event_name,
    new_token,
    token_hash,
)
from runlane.errors import InvalidRequest, NotFound
from runlane.redaction import LOGS
from runlane.settings import Settings
from runlane.store.events.rates import pay_rate
from runlane.store.events.sending import EventLimits, store_events
from runlane.store.events.sources import NewSource, find_by_token, put_source, set_token
from runlane.store.sql.database import Database, Session


@dataclass(frozen=True, slots=True)
class SourceCreated:
    """A source after a change. The path and a generated secret are shown once."""

    source: WebhookSource
    hook_path: Annotated[
        str | None,
        Field(description="Where the sender posts to; null if it has not changed, and in a repeated response."),
    ]
    secret: Annotated[str | None, Field(description="The generated secret; null if one was given.")]


@dataclass(frozen=True, slots=True)
class SourceChange:
    """The settings of a source."""

    verifier: Verifier
    secret: str | None = None
    event: str | None = None
    options: SourceOptions = field(default_factory=SourceOptions)
    enabled: bool = True
    rate_per_minute: int = DEFAULT_RATE


async def set_source(
    database: Database, keyring: Keyring, tenant: str, name: str, change: SourceChange, *, actor: str
) -> SourceCreated:
    """Create a source, or replace its settings and its secret. A new one gets a token for its URL."""
    check_source_name(name)
    event = change.event if change.event is not None else name
    check_source(event, change.options, change.rate_per_minute)
    secret, generated = _secret(change)
    key_id, sealed = await asyncio.to_thread(keyring.seal, tenant, _sealed_name(name), secret)
    token = new_token()
    new = NewSource(
        change.verifier, event, change.options, change.enabled, change.rate_per_minute, key_id, sealed,
        token_hash(token),
    )  # fmt: skip
    source, created = await put_source(database, tenant, name, new, actor=actor)
    return SourceCreated(source, hook_path(token) if created else None, secret if generated else None)


async def rotate_token(database: Database, tenant: str, name: str, *, actor: str) -> SourceCreated:
    """Give a source a new URL; the old one is rejected from then on."""
    token = new_token()
    source = await set_token(database, tenant, name, token_hash(token), actor=actor)
    return SourceCreated(source, hook_path(token), None)


async def receive(
    database: Database,
    settings: Settings,
    keyring: Keyring,
    token: str,
    read: Callable[[], Awaitable[HookRequest]],
) -> EventReceipt | str:
    """Verify a request and store its event; or return the challenge that the sender expects.

    `read` returns the request, whose body is not read for an unknown token. Raises NotFound for such a token,
    SignatureRejected, and RateLimited.
    """
    found = await find_by_token(database, token_hash(token))
    if found is None:
        raise NotFound("No webhook source has this address. Check the URL; it changes when the token is rotated.")
    source = found.source
    secret = await asyncio.to_thread(keyring.open, source.tenant, _sealed_name(source.name), found.secret)
    request = await read()
    LOGS.learn_secret((source.tenant, _sealed_name(source.name)), secret)
    hook = await asyncio.to_thread(verify, source.verifier, secret, source.options, request, found.now_us / 1_000_000)
    if hook.challenge is not None:
        return hook.challenge
    sent_id = None if hook.sent_id is None else f"{source.name}:{hook.sent_id}"
    event = new_event(event_name(source.event, hook.kind), hook.data, sent_id)
    limits = EventLimits(settings.event_id_hours * 3600, settings.events_per_minute)

    async def work(session: Session) -> EventReceipt:
        about = f'The webhook source "{source.name}"'
        await pay_rate(session, f"source:{source.tenant}:{source.name}", 1, source.rate_per_minute, about)
        stored = await store_events(session, source.tenant, [event], source=f"webhook:{source.name}", limits=limits)
        return stored[0]

    return await database.transact(work)


def hook_path(token: str) -> str:
    """Return the path of a source."""
    return f"/hooks/{token}"


def _secret(change: SourceChange) -> tuple[str, bool]:
    """Return the secret, and whether it was generated."""
    if change.secret is None:
        if change.verifier in VENDORS:
            raise InvalidRequest(f"A source of the verifier {change.verifier} needs the secret that its sender shows.")
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        return (f"whsec_{key}" if change.verifier is Verifier.STANDARD else key), True
    if not 8 <= len(change.secret) <= MAX_SECRET or not change.secret.isprintable():
        raise InvalidRequest(f"The secret must have 8 to {MAX_SECRET} printable characters.")
    if change.verifier is Verifier.STANDARD:
        try:
            base64.b64decode(change.secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise InvalidRequest("The secret of a standard webhook is whsec_ and base64.") from None
    return change.secret, False


def _sealed_name(name: str) -> str:
    # No secret of definitions has a slash in its name.
    return f"webhook-source/{name}"
