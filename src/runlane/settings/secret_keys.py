"""The keys that encrypt secrets, as they are written in a variable or a file."""

from __future__ import annotations

import base64
import contextlib
import re
from typing import Final

SECRET_KEY_BYTES: Final = 32


def parse_secret_keys(text: str) -> list[bytes]:
    """Return the keys in a string, separated by commas or line breaks. A ValueError contains no part of a key."""
    keys = [_parse_key(part) for part in re.split(r"[\s,]+", text) if part]
    if not keys:
        raise ValueError("it contains no key. Create one: runlane secrets new-key")
    return keys


def _parse_key(text: str) -> bytes:
    with contextlib.suppress(ValueError):
        if re.fullmatch(r"[0-9A-Fa-f]{64}", text):
            return bytes.fromhex(text)
        key = base64.b64decode(text.translate(str.maketrans("-_", "+/")) + "=" * (-len(text) % 4), validate=True)
        if len(key) == SECRET_KEY_BYTES:
            return key
    raise ValueError("a key must be 32 bytes as base64 or hex. Create one: runlane secrets new-key")
