"""URLs with passwords that are read from files: mounted secrets and credentials of systemd."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

_URLS: Final = ("database_url", "migrations_database_url", "redis_url")
_MAX_BYTES: Final = 16 * 1024


def read_url_files(given: dict[str, Any]) -> dict[str, Any]:
    """Return the settings with the URLs whose files are given."""
    found = dict(given)
    for name in _URLS:
        path = given.get(f"{name}_file")
        if not path:
            continue
        variable = f"RUNLANE_{name.upper()}"
        if given.get(name):
            raise ValueError(f"{variable} and {variable}_FILE are both set; keep one of them")
        found[name] = _read(Path(path), f"{variable}_FILE")
    return found


def _read(path: Path, variable: str) -> str:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ValueError(f'{variable}: the file "{path}" cannot be read: {reason}') from None
    if not text:
        raise ValueError(f'{variable}: the file "{path}" is empty')
    return text
