"""Secrets: a name, a version, times. The value can be set and used, but never read back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from runlane import redaction
from runlane.domain.wire import Timestamp
from runlane.errors import InvalidRequest

# The names that definitions can refer to as {secret.NAME}.
NAME_PATTERN: Final = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
MAX_BYTES: Final = 64 * 1024
MIN_CHARACTERS: Final = redaction.MIN_CHARACTERS


@dataclass(frozen=True, slots=True)
class Secret:
    """A stored secret without its value. `version` counts its values; `key_id` is the key that encrypts it."""

    tenant: str
    name: str
    key_id: Annotated[str, Field(description="The key that it is encrypted with.")]
    version: Annotated[int, Field(description="How many values it has had.")]
    created_at_us: Annotated[Timestamp, Field(alias="created_at")]
    updated_at_us: Annotated[Timestamp, Field(alias="updated_at")]
    updated_by: str


@dataclass(frozen=True, slots=True)
class UnreadableSecret:
    """A secret whose encryption key the server does not have, or whose row was changed from outside."""

    tenant: str
    name: str
    key_id: str


@dataclass(frozen=True, slots=True)
class RotatedSecrets:
    """The result of a rotation."""

    key_id: Annotated[str, Field(description="The current encryption key.")]
    rotated: int
    unreadable: Annotated[tuple[UnreadableSecret, ...], Field(description="Unchanged; the API lists at most 1,000.")]


@dataclass(frozen=True, slots=True)
class SecretUser:
    """A definition that refers to a secret."""

    kind: str
    id: str
    name: str


def check_name(name: str) -> str:
    """Return the name if definitions can refer to it."""
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise InvalidRequest(
            f"{name[:140]!r} is not a valid secret name: it must have 1 to 128 of A-Z, a-z, 0-9 and '_', and not begin "
            "with a digit."
        )
    return name


def check_value(value: str) -> str:
    """Return the value if it can be stored and redacted. Errors do not contain it."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidRequest("The value contains half of a surrogate pair, which is not text.") from None
    if size > MAX_BYTES:
        raise InvalidRequest(f"The value has {size} bytes; at most {MAX_BYTES} are allowed.")
    # White space around a value is removed where it is sent.
    if not redaction.is_hidable(value.strip()):
        raise InvalidRequest(
            f"The value must have at least {MIN_CHARACTERS} characters, {redaction.MIN_DIFFERENT} of them different: "
            "a shorter or plainer one occurs in ordinary text by chance, so it could not be kept out of logs and "
            "results."
        )
    return value
