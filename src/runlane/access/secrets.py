"""Secrets by name, decrypted for the runs that use them.

Values are read when they are needed and cached for a short time, so that every worker uses a new value within two
seconds and does not query the database for each call. If the database is unavailable, values that were read shortly
before are still used. While a returned value is the value of its secret, it is redacted from the logs and traces of
this process. The caller redacts it from the data that a run stores and emits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from runlane.access.keyring import Keyring
from runlane.domain.secret import RotatedSecrets, Secret, UnreadableSecret, check_name, check_value
from runlane.errors import NoSecretKey, SecretUnreadable, Unavailable
from runlane.redaction import LOGS
from runlane.settings import Settings
from runlane.store.access.secrets import (
    EncryptedSecret,
    SecretQuota,
    delete_secret,
    put_secret,
    read_of_other_keys,
    read_sealed,
    reseal,
)
from runlane.store.sql.database import Database
from runlane.store.webhooks.secrets import (
    NewSecret,
    StoredSecret,
    reseal_webhook_secrets,
    secret_name,
    webhook_secrets_of_other_keys,
)

KEEP_SECONDS: Final = 1.0
AWAY_SECONDS: Final = 30.0
# The batch size of a rotation. Small batches keep locks short.
AT_ONCE = 50
_MAX_KEPT: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Kept:
    sealed: str | None
    value: str | None
    checked_at: float


class SecretVault:
    """The secrets of a database."""

    def __init__(self, database: Database, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._reading = asyncio.Lock()
        self._quota = SecretQuota(settings.max_secrets, settings.max_secrets_bytes)
        self.keyring = Keyring(settings)

    async def values(self, tenant: str, names: Collection[str]) -> dict[str, str]:
        """Return the existing secrets of these names. Raise SecretUnreadable if the key of one is missing."""
        wanted = set(names)
        if not self._fresh(tenant, wanted, KEEP_SECONDS):
            # One query serves all waiting callers. Otherwise each second would start with one query per step.
            async with self._reading:
                if not self._fresh(tenant, wanted, KEEP_SECONDS):
                    await self._read(tenant, wanted)
        kept = {name: self._kept[tenant, name].value for name in wanted}
        found = {name: value for name, value in kept.items() if value is not None}
        for name, value in found.items():
            LOGS.learn_secret((tenant, name), value)
        return found

    async def set(self, tenant: str, name: str, value: str, *, actor: str) -> tuple[Secret | None, Secret]:
        """Store a value. Return the secret before and after the change.

        Raise NoSecretKey without an encryption key, and SecretQuotaExceeded if the tenant has too many secrets.
        """
        check_name(name)
        check_value(value)
        key_id, sealed = await asyncio.to_thread(self.keyring.seal, tenant, name, value)
        stored = await put_secret(
            self._database, tenant, name, key_id=key_id, value=sealed, quota=self._quota, actor=actor
        )
        # The value in the cache of this process is no longer the secret's value.
        self._kept.pop((tenant, name), None)
        LOGS.learn_secret((tenant, name), value)
        return stored

    async def delete(self, tenant: str, name: str, *, actor: str) -> Secret:
        """Delete a secret and return its last record. Raise NotFound if it does not exist."""
        deleted = await delete_secret(self._database, tenant, name, actor=actor)
        self._kept.pop((tenant, name), None)
        LOGS.forget_secret((tenant, name))
        return deleted

    async def rotate(self, *, actor: str, tenant: str | None = None) -> RotatedSecrets:
        """Encrypt all secrets with the first key, of all tenants or of one, in small batches.

        The rotation may be interrupted and repeated, and secrets may be set and read meanwhile. Committed batches are
        kept.
        """
        current = next(iter(await asyncio.to_thread(lambda: self.keyring.key_ids)), None)
        if current is None:
            raise NoSecretKey
        rotated, unreadable = 0, list[UnreadableSecret]()
        after = ("", "")
        while found := await read_of_other_keys(self._database, current, tenant=tenant, after=after, limit=AT_ONCE):
            after = (found[-1].tenant, found[-1].name)
            changes: list[tuple[EncryptedSecret, EncryptedSecret]] = []
            for old in found:
                try:
                    value = self.keyring.open(old.tenant, old.name, old.value)
                except SecretUnreadable:
                    unreadable.append(UnreadableSecret(old.tenant, old.name, old.key_id))
                    continue
                key_id, sealed = self.keyring.seal(old.tenant, old.name, value)
                changes.append((old, EncryptedSecret(old.tenant, old.name, key_id, sealed, old.version)))
            if changes:
                rotated += await reseal(self._database, changes, actor=actor)
        rotated += await self._rotate_webhooks(current, tenant, actor, unreadable)
        return RotatedSecrets(current, rotated, tuple(unreadable))

    async def _rotate_webhooks(
        self, current: str, tenant: str | None, actor: str, unreadable: list[UnreadableSecret]
    ) -> int:
        """Encrypt the secrets of webhooks with the first key. Add those that cannot be decrypted to `unreadable`."""
        rotated, after = 0, ("", 0)
        while found := await webhook_secrets_of_other_keys(
            self._database, current, tenant=tenant, after=after, limit=AT_ONCE
        ):
            after = (found[-1].owner, found[-1].version)
            changes: list[tuple[StoredSecret, NewSecret]] = []
            for old in found:
                name = secret_name(old.owner, old.version)
                try:
                    key_id, value = self.keyring.seal(old.tenant, name, self.keyring.open(old.tenant, name, old.value))
                except SecretUnreadable:
                    unreadable.append(UnreadableSecret(old.tenant, name, old.key_id))
                    continue
                changes.append((old, NewSecret(old.owner, old.version, old.tenant, key_id, value, old.public_key)))
            if changes:
                rotated += await reseal_webhook_secrets(self._database, changes, actor=actor)
        return rotated

    def _fresh(self, tenant: str, names: Collection[str], seconds: float) -> bool:
        oldest = self._clock() - seconds
        return all((kept := self._kept.get((tenant, name))) is not None and kept.checked_at >= oldest for name in names)

    async def _read(self, tenant: str, names: Collection[str]) -> None:
        read_at = self._clock()
        try:
            found = {sealed.name: sealed.value for sealed in await read_sealed(self._database, tenant, names)}
        except Unavailable:
            if self._fresh(tenant, names, AWAY_SECONDS):
                return
            raise
        if len(self._kept) > _MAX_KEPT:
            self._kept.clear()
        read: dict[str, _Kept] = {}
        for name in names:
            sealed, before = found.get(name), self._kept.get((tenant, name))
            if before is not None and before.sealed == sealed:
                read[name] = _Kept(sealed, before.value, read_at)
            else:
                value = None if sealed is None else self.keyring.open(tenant, name, sealed)
                read[name] = _Kept(sealed, value, read_at)
        for name, kept in read.items():
            if kept.value is None:
                LOGS.forget_secret((tenant, name))
        self._kept |= {(tenant, name): kept for name, kept in read.items()}
