"""Find the configuration file of a project's graphs. Most projects have none, so this module imports no parser."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FILE_NAMES: Final = ("aegra.json", "langgraph.json")


def find_graphs_file(folder: Path) -> Path | None:
    """Return the configuration file of a project folder, or None."""
    return next((folder / name for name in FILE_NAMES if (folder / name).is_file()), None)
