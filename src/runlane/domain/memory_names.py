"""The patterns of names in a memory. Definitions use these patterns without the rest of memory."""

from __future__ import annotations

from typing import Final

TITLE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9-]{0,49}$"
FRAGMENT_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
USER_PATTERN: Final = r"^[a-z0-9_]{1,20}$"
TYPE_PATTERN: Final = r"^[A-Za-z][A-Za-z0-9_-]{0,39}$"
