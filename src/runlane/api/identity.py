"""The process and folder of a `runlane dev`, so that a command does not confuse two servers."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Identity:
    """`instance` is different for every process; `project` is the same for every process of a folder."""

    instance: str
    project: str


def project_id(folder: Path) -> str:
    """Return an id of the folder that does not disclose its path."""
    return sha256(str(folder.resolve()).encode(errors="surrogateescape")).hexdigest()[:32]
