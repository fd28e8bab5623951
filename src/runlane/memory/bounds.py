"""Validate the values that callers store in memories, before anything is queued."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from runlane.domain.memory import (
    MAX_DESCRIPTION,
    MAX_ENTRIES_AT_ONCE,
    MAX_ENTRY_CHARACTERS,
    MAX_ENTRY_TAGS,
    MAX_FRAGMENT_CHARACTERS,
    MAX_METADATA_BYTES,
    MAX_SUMMARY_CHARACTERS,
    MAX_TAG_CHARACTERS,
    NewEntry,
)
from runlane.domain.memory_names import FRAGMENT_PATTERN, TITLE_PATTERN, TYPE_PATTERN, USER_PATTERN
from runlane.domain.text import check_text, utf8_size
from runlane.errors import InputTooLarge, InvalidInput

_MAX_KEY: Final = 255
_MAX_NAME: Final = 200
_EMAIL: Final = re.compile(r"[^@\s]{1,64}@[^@\s]{1,190}")
# Control characters other than tab, line feed and carriage return; the characters that Unicode reserves: a range, and
# the last two of each plane.
_RESERVED: Final = "".join(f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000))
_UNPRINTABLE: Final = re.compile(f"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufdd0-\ufdef{_RESERVED}]")


def check_entries(entries: tuple[NewEntry, ...], now_us: int) -> tuple[NewEntry, ...]:
    """Return the entries if each of them can be stored."""
    if not 1 <= len(entries) <= MAX_ENTRIES_AT_ONCE:
        raise InvalidInput(f"{len(entries)} entries were given; a request adds 1 to {MAX_ENTRIES_AT_ONCE}.")
    for entry in entries:
        check_entry(entry, now_us)
    return entries


def check_entry(entry: NewEntry, now_us: int) -> NewEntry:
    """Return the entry if it can be stored."""
    check_text(entry.text, "The text of the entry", MAX_ENTRY_CHARACTERS)
    if entry.summary:
        check_text(entry.summary, "The summary of the entry", MAX_SUMMARY_CHARACTERS)
    if entry.metadata:
        check_metadata(entry.metadata)
    if entry.tags:
        check_tags(entry.tags)
    if entry.expires_at_us is not None and entry.expires_at_us <= now_us:
        raise InvalidInput("The expiry of the entry is in the past. Give a later time, or leave it out.")
    return entry


def check_metadata(metadata: Mapping[str, Any]) -> None:
    """Raise if metadata is not JSON, or is too large."""
    try:
        size = len(orjson.dumps(metadata))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The metadata of the entry is not JSON: {error}.") from None
    if size > MAX_METADATA_BYTES:
        raise InputTooLarge(f"The metadata of the entry has {size} bytes; at most {MAX_METADATA_BYTES} are allowed.")
    if b"\\u0000" in orjson.dumps(metadata):
        raise InvalidInput("The metadata of the entry contains a NUL character, which cannot be stored. Remove it.")


def check_tags(tags: Mapping[str, str]) -> None:
    """Raise if there are too many tags, or one is too long."""
    if len(tags) > MAX_ENTRY_TAGS:
        raise InvalidInput(f"{len(tags)} tags were given; an entry has at most {MAX_ENTRY_TAGS}.")
    for name, value in tags.items():
        check_text(name, "The name of a tag", MAX_TAG_CHARACTERS)
        if value:
            check_text(value, f'The tag "{name}"', MAX_TAG_CHARACTERS)


def check_fragment(name: str, content: str) -> tuple[str, int]:
    """Return the hash and the size of a fragment if it can be stored."""
    _check_pattern(name, FRAGMENT_PATTERN, "fragment", "a letter, then letters, digits, '_', '.' and '-', at most 64")
    if len(content) > MAX_FRAGMENT_CHARACTERS:
        raise InputTooLarge(
            f'The fragment "{name}" has {len(content)} characters; at most {MAX_FRAGMENT_CHARACTERS} are allowed.'
        )
    if content:
        check_text(content, f'The fragment "{name}"', MAX_FRAGMENT_CHARACTERS)
    found = _UNPRINTABLE.search(content)
    if found is not None:
        raise InvalidInput(
            f'The fragment "{name}" contains U+{ord(found[0]):04X} at character {found.start()}. '
            "Remove control characters other than tab, line feed and carriage return."
        )
    return sha256(content.encode()).hexdigest(), utf8_size(content)


def check_title(title: str, what: str) -> str:
    """Return the title of a vault or memory if it is valid."""
    _check_pattern(title, TITLE_PATTERN, f"title of a {what}", "1 to 50 letters, digits and hyphens")
    return title


def check_description(description: str) -> str:
    """Return the description if it can be stored."""
    return check_text(description, "The description", MAX_DESCRIPTION) if description else ""


def check_memory_type(memory_type: str) -> str:
    """Return the type of a memory if it is valid."""
    _check_pattern(memory_type, TYPE_PATTERN, "memory type", "a letter, then letters, digits, '_' and '-', at most 40")
    return memory_type


def check_user(user_id: str, email: str) -> None:
    """Raise if the id or the address of a user is not valid."""
    _check_pattern(user_id, USER_PATTERN, "user id", "1 to 20 of a-z, 0-9 and '_'")
    check_text(email, "The email address", 255)
    if _EMAIL.fullmatch(email) is None:
        raise InvalidInput(f'"{email}" is not a valid email address.')


def check_name(name: str) -> str:
    """Return the name of a person if it can be stored."""
    return check_text(name, "The name", _MAX_NAME) if name else ""


def check_key(key: str) -> str:
    """Return the idempotency key if it is valid."""
    return check_text(key, "The idempotency key", _MAX_KEY)


def _check_pattern(value: str, pattern: str, what: str, rule: str) -> None:
    if re.fullmatch(pattern, value) is None:
        raise InvalidInput(f"{value[:100]!r} is not a valid {what}. Use {rule}.")
