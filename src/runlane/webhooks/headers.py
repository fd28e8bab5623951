"""Custom headers of webhook endpoints: their validation, and their values at the time of a delivery.

A header refers to secrets as {secret.NAME}. Endpoints, audit entries and the log of deliveries have the reference; the
value exists only in the request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from runlane.definitions.secret_references import SECRET, is_wrong_reference, plain_credential, secret_name
from runlane.errors import InvalidRequest

MAX_HEADERS: Final = 20
MAX_NAME: Final = 100
MAX_VALUE: Final = 1000
# The limit for all names and values with their secrets: many servers reject more than 8 kB of headers.
MAX_SENT_BYTES: Final = 6 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
# Headers of the connection, and headers that Runlane sets.
_RESERVED: Final = frozenset(
    {
        "accept-encoding", "connection", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding",
        "upgrade", "user-agent",
    }
)  # fmt: skip
_RESERVED_PREFIXES: Final = ("content-", "proxy-", "webhook-")


class HeaderRefused(InvalidRequest):
    """A header cannot be sent. The message contains no value of a secret."""


def check_headers(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers if an endpoint may have them."""
    if len(given) > MAX_HEADERS:
        raise InvalidRequest(f"{len(given)} headers are too many; at most {MAX_HEADERS} are allowed.")
    seen: set[str] = set()
    for name, value in given.items():
        lower = name.lower()
        if len(name) > MAX_NAME or _NAME.fullmatch(name) is None:
            raise InvalidRequest(
                f'"{name[:MAX_NAME]}" is not a valid name of a header: use 1 to {MAX_NAME} letters, digits and -.'
            )
        if lower in _RESERVED or lower.startswith(_RESERVED_PREFIXES):
            raise InvalidRequest(f'The header "{name}" is set by Runlane or by the connection. Remove it.')
        if lower in seen:
            raise InvalidRequest(f'The header "{name}" is given twice. Names of headers ignore case.')
        seen.add(lower)
        _check_value(name, value)
    return dict(given)


def names_in(headers: Mapping[str, str]) -> set[str]:
    """Return the names of the secrets that headers refer to."""
    return {name for value in headers.values() for name in SECRET.findall(value)}


def fill_headers(headers: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Return the headers with the values of their secrets. Raises HeaderRefused if one cannot be sent."""
    filled: dict[str, str] = {}
    for name, value in headers.items():
        for secret in SECRET.findall(value):
            if secret not in values:
                raise HeaderRefused(
                    f'The secret "{secret}", which the header "{name}" refers to, does not exist. Set it (runlane '
                    f"secrets set {secret}) and replay the delivery."
                )
        filled[name] = SECRET.sub(lambda found: values[found[1]], value)
        if _VALUE.fullmatch(filled[name]) is None:
            raise HeaderRefused(
                f'The header "{name}" cannot be sent: with its secrets, it has characters other than printable ASCII. '
                "Correct the secrets and replay the delivery."
            )
    if sum(len(name) + len(value) for name, value in filled.items()) > MAX_SENT_BYTES:
        raise HeaderRefused(f"The headers, with their secrets, are larger than {MAX_SENT_BYTES} bytes. Remove some.")
    return filled


def _check_value(name: str, value: str) -> None:
    if len(value) > MAX_VALUE or _VALUE.fullmatch(value) is None:
        raise InvalidRequest(
            f'The value of the header "{name}" must have 1 to {MAX_VALUE} printable ASCII characters, without spaces '
            "at its ends."
        )
    if is_wrong_reference(value):
        raise InvalidRequest(f'The header "{name}" has an invalid reference. Write {{secret.NAME}}.')
    if plain_credential(name, value) is not None:
        raise InvalidRequest(
            f'The header "{name}" looks like a credential. It would be stored and shown in plain text. Store it as a '
            f"secret and write {{secret.{secret_name(name)}}}."
        )
