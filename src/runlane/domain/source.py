"""The source of definitions: the name of the project that a sync comes from.

It decides which definitions a sync may change and remove, so it must be the same on every machine that syncs the
project, and different from that of other projects in the tenant.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from runlane.errors import InvalidRequest

DEFAULT_SOURCE: Final = "default"
MAX_SOURCE: Final = 200
SOURCE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.:/@-]*$"
_USUAL_FOLDER: Final = "definitions"


def check_source(source: str) -> str:
    """Return the source if it is a valid name."""
    if len(source) > MAX_SOURCE or re.fullmatch(SOURCE_PATTERN, source) is None:
        raise InvalidRequest(
            f'"{source[:MAX_SOURCE]}" is not a valid source. Use at most {MAX_SOURCE} letters, digits and _ . : / @ -, '
            "beginning with a letter or digit, such as shop."
        )
    return source


def source_of(directory: Path) -> str:
    """Return the source of a folder with definitions: the name of its project folder.

    A folder that is not called "definitions" has its own name as source, because a project may have several.
    """
    whole = directory.resolve()
    name = whole.parent.name if whole.name == _USUAL_FOLDER else whole.name
    return re.sub(r"[^A-Za-z0-9_.:@-]+", "-", name).strip("-_.:@")[:MAX_SOURCE] or DEFAULT_SOURCE
