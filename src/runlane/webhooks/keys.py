"""The secrets that sign webhooks, encrypted with the keyring that also encrypts the secrets of definitions."""

from __future__ import annotations

from collections.abc import Sequence

from runlane.access.keyring import Keyring
from runlane.domain.webhook import SignatureKind
from runlane.store.webhooks.secrets import NewSecret, StoredSecret, secret_name
from runlane.webhooks.signing import check_secret, new_secret


def make_secret(keyring: Keyring, owner: str, version: int, tenant: str, kind: SignatureKind) -> tuple[str, NewSecret]:
    """Return a new secret of an endpoint: as it is shown once, and encrypted. Raises NoSecretKey without a key."""
    secret, public_key = new_secret(kind)
    key_id, value = keyring.seal(tenant, secret_name(owner, version), secret)
    return secret, NewSecret(owner, version, tenant, key_id, value, public_key)


def seal_run_secret(keyring: Keyring, run_id: str, tenant: str, secret: str) -> NewSecret:
    """Return the secret that a caller gave for a run's webhook, encrypted. Raises NoSecretKey without a key."""
    key_id, value = keyring.seal(tenant, secret_name(run_id, 1), check_secret(secret))
    return NewSecret(run_id, 1, tenant, key_id, value)


def open_secret(keyring: Keyring, stored: StoredSecret) -> str:
    """Return a secret. Raises SecretUnreadable if its key is missing, or the stored value was changed."""
    return keyring.open(stored.tenant, secret_name(stored.owner, stored.version), stored.value)


def open_secrets(keyring: Keyring, stored: Sequence[StoredSecret]) -> list[str]:
    """Return the secrets in their order."""
    return [open_secret(keyring, secret) for secret in stored]
