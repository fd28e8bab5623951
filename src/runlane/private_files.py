"""Files that only their owner may read: the embedded database, its key, its locks.

The folder `.runlane/` is private to its user and ignored by git, because it holds inputs, results and keys.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

FOLDER: Final = ".runlane"


def make_folder(folder: Path) -> None:
    """Create a folder and its parents. `.runlane` is made private, even if it exists already."""
    folder.mkdir(parents=True, exist_ok=True)
    own = next((part for part in (folder, *folder.parents) if part.name == FOLDER), None)
    if own is None:
        return
    # The mode of a folder of another user cannot be changed, and that user decides about it.
    with contextlib.suppress(OSError):
        own.chmod(0o700)
    ignore = own / ".gitignore"
    if not ignore.exists():
        with contextlib.suppress(OSError):
            ignore.write_text("*\n", encoding="utf-8")


def make_file(path: Path) -> None:
    """Create an empty file that only its owner may read, unless it exists. SQLite gives its log the same mode."""
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
