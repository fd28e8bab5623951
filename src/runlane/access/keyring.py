"""The keyring: the keys that encrypt secrets, and the format of stored secrets.

A sealed value is base64 of a version byte, the key's id, a nonce, and AES-256-GCM cipher text. Version, key id, tenant
and name are authenticated as well, so a row that was changed, or copied to another tenant or name, cannot be decrypted.
The first key encrypts and all keys decrypt, so a key can be rotated without downtime.
"""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from runlane.errors import InvalidSettings, NoSecretKey, SecretUnreadable
from runlane.private_files import make_folder
from runlane.redaction import LOGS
from runlane.settings import EMBEDDED_KEY_FILE, SECRET_KEY_BYTES, Settings, parse_secret_keys

_SIGNING: Final = b"runlane stream token"
_VERSION: Final = b"\x01"
_ID_BYTES: Final = 6
_NONCE_BYTES: Final = 12
_HEAD: Final = len(_VERSION) + _ID_BYTES + _NONCE_BYTES


def new_key() -> str:
    """Return a new key in the format that the settings accept."""
    return base64.b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode()


def key_id_of(key: bytes) -> str:
    """Return the public id of a key, which discloses nothing of the key."""
    return sha256(b"runlane secret key" + key).hexdigest()[: 2 * _ID_BYTES]


class Keyring:
    """The keys of this process, from the settings. A key file is read again if it has changed."""

    def __init__(self, settings: Settings) -> None:
        self._given = settings.secret_key
        self._file = settings.secret_key_file
        # Without any setting, a key is generated only beside the embedded SQLite file.
        self._own = self._given is None and self._file is None and settings.database_url is None
        self._keys: dict[str, Any] = {}
        self._signing: dict[str, bytes] = {}
        self._read: tuple[int, int] | None = None

    @property
    def key_ids(self) -> list[str]:
        """The ids of the keys. The first key encrypts."""
        self._load()
        return list(self._keys)

    @property
    def usable(self) -> bool:
        """Whether secrets can be stored: a key exists, or will be generated for the first secret."""
        return self._own or bool(self.key_ids)

    def seal(self, tenant: str, name: str, value: str) -> tuple[str, str]:
        """Encrypt a value with the first key. Return the key's id and the result. Raise NoSecretKey without a key."""
        self._load_or_make()
        key_id, key = next(iter(self._keys.items()))
        head = _VERSION + bytes.fromhex(key_id)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed = key.encrypt(nonce, value.encode(), _bound_to(head, tenant, name))
        return key_id, base64.b64encode(head + nonce + sealed).decode()

    def open(self, tenant: str, name: str, sealed: str) -> str:
        """Decrypt a value. Raise SecretUnreadable if its key is missing or the stored value was changed."""
        from cryptography.exceptions import InvalidTag

        try:
            raw = base64.b64decode(sealed, validate=True)
        except ValueError:
            raise _damaged(tenant, name) from None
        if len(raw) <= _HEAD or raw[:1] != _VERSION:
            raise _damaged(tenant, name)
        head = raw[: _HEAD - _NONCE_BYTES]
        key_id = head[1:].hex()
        self._load()
        if key_id not in self._keys:
            raise SecretUnreadable(
                f'The secret "{name}" of tenant "{tenant}" is encrypted with the key {key_id}, which this process '
                "does not have. Add it after the current key in RUNLANE_SECRET_KEY or its file, or set a new value."
            )
        try:
            return (
                self._keys[key_id].decrypt(raw[len(head) : _HEAD], raw[_HEAD:], _bound_to(head, tenant, name)).decode()
            )
        except InvalidTag:
            raise _damaged(tenant, name) from None

    def sign(self, message: bytes) -> tuple[str, bytes]:
        """Return the id of the first key, and a signature for a stream token with a key derived from the first key."""
        self._load_or_make()
        key_id, key = next(iter(self._signing.items()))
        return key_id, hmac.digest(key, message, "sha256")

    def verify(self, key_id: str, message: bytes, signature: bytes) -> bool:
        """Return whether one of the keys has signed the message."""
        self._load()
        key = self._signing.get(key_id)
        return key is not None and hmac.compare_digest(hmac.digest(key, message, "sha256"), signature)

    def _load_or_make(self) -> None:
        """Load the keys. Beside an embedded database, create a key if none exists. Raise NoSecretKey without a key."""
        self._load()
        if not self._keys and self._own:
            _make_file(EMBEDDED_KEY_FILE)
            self._load()
        if not self._keys:
            raise NoSecretKey

    def _load(self) -> None:
        if self._given is not None:
            if not self._keys:
                self._take(self._given.get_secret_value())
            return
        file = self._file if self._file is not None else EMBEDDED_KEY_FILE if self._own else None
        if file is None:
            return
        try:
            status = file.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if mark == self._read:
                return
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            if self._own:
                return
            raise InvalidSettings(f"RUNLANE_SECRET_KEY_FILE: the file {file} does not exist.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidSettings(f"The key file {file} cannot be read: {type(error).__name__}.") from None
        try:
            self._take(text)
        except ValueError as error:
            raise InvalidSettings(f"The key file {file} is not valid: {error}.") from None
        self._read = mark

    def _take(self, text: str) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        for key in text.replace(",", " ").split():
            LOGS.learn(key)
        keys = parse_secret_keys(text)
        self._keys = {key_id_of(key): AESGCM(key) for key in keys}
        self._signing = {key_id_of(key): hmac.digest(key, _SIGNING, "sha256") for key in keys}


def _bound_to(head: bytes, tenant: str, name: str) -> bytes:
    # Neither a tenant's id nor a secret's name can contain NUL.
    return b"\0".join((head, tenant.encode(), name.encode()))


def _damaged(tenant: str, name: str) -> SecretUnreadable:
    return SecretUnreadable(
        f'The secret "{name}" of tenant "{tenant}" cannot be authenticated: its row was changed, or copied from '
        f"another one. Set it again: runlane secrets set {name}"
    )


def _make_file(file: Path) -> None:
    """Create a key file that only its owner can read.

    If several processes create it concurrently, the first file is kept.
    """
    make_folder(file.parent)
    draft = file.with_name(f"{file.name}.{secrets.token_hex(6)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as writing:
        writing.write(f"{new_key()}\n")
        writing.flush()
        os.fsync(writing.fileno())
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
