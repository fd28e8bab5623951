"""What is particular to `runlane dev`: which databases it may use.

It serves without keys, executes whatever is queued, and makes the database's definitions equal to a folder. That is
right for a file of the project and wrong for a database that other people use.
"""

from __future__ import annotations

from pathlib import Path

from runlane.errors import ConfigurationError
from runlane.settings import EMBEDDED_FILE, Settings


def owns_database(settings: Settings) -> bool:
    """Return whether the database is a file of the current folder, the project."""
    path = settings.sqlite_path
    return path is not None and path.resolve().is_relative_to(Path.cwd().resolve())


def check_database(settings: Settings, *, shared: bool) -> None:
    """Refuse a database that does not belong to the project, unless the flag allows it."""
    if shared or owns_database(settings):
        return
    raise ConfigurationError(
        f"The database {settings.shown_database} is not a file of this folder, so other programs may use it, and "
        "runlane dev would execute their runs and serve their data without keys. Unset RUNLANE_DATABASE_URL to use "
        f"{EMBEDDED_FILE}, or pass --shared-database to use it nevertheless."
    )


def describe_sharing(settings: Settings) -> str:
    """Return the line that says what dev does with a shared database."""
    return (
        f"Shared database {settings.shown_database}: dev executes its runs and serves its data without keys to "
        "programs on this machine. It adds and changes definitions of this project and removes none."
    )
