"""What a command acts on: a server, or a database.

`--url` or RUNLANE_URL names a server. Without them, a running `runlane dev` of the current folder is used, unless
RUNLANE_DATABASE_URL names a database; then the database that the settings name. A command that cannot use a server
refuses RUNLANE_URL, so that it does not act on a local file when its user means a server.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from runlane.cli.dev_record import find_dev_server, is_of_this_folder, read_identity
from runlane.cli.terminal import write_line
from runlane.errors import ConfigurationError, InvalidRequest, NotFound
from runlane.settings import EMBEDDED_FILE, Settings

DEFAULT_URL: Final = "http://127.0.0.1:8765"
URL_VARIABLE: Final = "RUNLANE_URL"
DATABASE_VARIABLE: Final = "RUNLANE_DATABASE_URL"


@dataclass(frozen=True, slots=True)
class ServerTarget:
    """A server that a command uses, and how the command describes it."""

    url: str
    api_key: str | None
    description: str


def server_for(url: str | None, api_key: str | None) -> ServerTarget:
    """Return the server of a command that needs one."""
    if url is not None:
        return ServerTarget(url, api_key, url)
    running = find_dev_server()
    if running is not None:
        # The key in the environment is for another server; dev needs none.
        return ServerTarget(
            running.url, None, f"{running.url}, runlane dev of this folder, database {running.database}"
        )
    identity = read_identity(DEFAULT_URL)
    if identity is not None and not is_of_this_folder(identity):
        raise ConfigurationError(
            f"The server at {DEFAULT_URL} is runlane dev of another folder, and none runs for this one. "
            "Start it here: runlane dev. Or name the server with --url or RUNLANE_URL."
        )
    return ServerTarget(DEFAULT_URL, api_key, DEFAULT_URL)


def announce(server: ServerTarget) -> None:
    """Print the server on stderr, because stdout is for the result."""
    write_line(f"Server: {server.description}", err=True)


def server_or_database(url: str | None, api_key: str | None) -> tuple[str | None, str | None]:
    """Return the server's URL and key for a command that can use both; no URL means the database."""
    if url is not None or os.environ.get(DATABASE_VARIABLE):
        return url, api_key
    running = find_dev_server()
    return (None, api_key) if running is None else (running.url, None)


def check_exists(settings: Settings) -> None:
    """Raise if the default file does not exist, for a command that would only create an empty one."""
    if settings.database_url is None and not EMBEDDED_FILE.exists():
        raise NotFound(
            f"The database {settings.shown_database} does not exist in this folder. Run the command where runlane dev "
            "runs, or name a server with --url or RUNLANE_URL, or a database with RUNLANE_DATABASE_URL."
        )


def refuse_url(command: str, instead: str) -> None:
    """Refuse RUNLANE_URL for a command that acts on a database, unless RUNLANE_DATABASE_URL is set, too."""
    url = os.environ.get(URL_VARIABLE)
    if url and not os.environ.get(DATABASE_VARIABLE):
        raise InvalidRequest(
            f'RUNLANE_URL names the server "{url}", but runlane {command} acts on a database. {instead}'
        )
