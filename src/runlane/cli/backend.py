"""Commands that work on a server or on a database: the choice between the two, and a connection to each."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from runlane.cli.terminal import write_line

if TYPE_CHECKING:
    from runlane.app import App
    from runlane.client import Client
    from runlane.store.sql.database import Database

T = TypeVar("T")


def on_server_or_database(
    url: str | None,
    api_key: str | None,
    on_server: Callable[[Client], Awaitable[T]],
    on_database: Callable[[Database], Awaitable[T]],
    *,
    creates: bool = False,
) -> T:
    """Call one function: `on_server` for this URL or a running `runlane dev` of this folder, else `on_database`.

    `creates` allows the default file to be created. Other commands refuse to create it, because a new file would have
    nothing to show or change.
    """

    async def on_app(app: App) -> T:
        return await on_database(await app.database())

    return on_server_or_app(url, api_key, on_server, on_app, creates=creates)


def on_server_or_app(
    url: str | None,
    api_key: str | None,
    on_server: Callable[[Client], Awaitable[T]],
    on_app: Callable[[App], Awaitable[T]],
    *,
    creates: bool = False,
) -> T:
    """Do the same with an App instead of a Database, for commands that need the services of an App."""
    from runlane.cli.target import check_exists, server_or_database

    url, api_key = server_or_database(url, api_key)
    if url is not None:
        return asyncio.run(_call_server(url, api_key, on_server))
    from runlane.settings import load_settings

    settings = load_settings()
    path = settings.sqlite_path
    is_new = path is not None and not path.exists()
    if not creates:
        check_exists(settings)
    result = _on_own_app(on_app)
    if is_new:
        write_line(f"Created the database {settings.shown_database}.", err=True)
    return result


def _on_own_app(work: Callable[[App], Awaitable[T]]) -> T:
    async def call() -> T:
        async with open_app() as app:
            return await work(app)

    return asyncio.run(call())


async def _call_server(url: str, api_key: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    async with open_client(url, api_key) as client:
        return await work(client)


def open_client(url: str, api_key: str | None) -> Client:
    """Return a client of the server at this URL. It reports on stderr when it waits for the server."""
    from runlane.client import Client, RetryPolicy

    def report_wait(reason: str) -> None:
        write_line(f"{reason}; retrying. If no server runs there, start one: runlane dev", err=True)

    return Client(url, api_key, retry_policy=RetryPolicy(waiting=report_wait))


def open_app() -> App:
    """Return an App without tasks. Its warnings go to stderr, because stdout may be JSON that a program reads."""
    from runlane.app import App
    from runlane.resources import report_unknown_settings

    report_unknown_settings(_warn)
    app = App()
    if app.settings.redis_url is not None or app.settings.sqlite_path is None:
        # Only the bus between processes logs in such a process, and the logging library takes long to load.
        from runlane.cli.logs import configure_logs

        configure_logs(dev=False, quiet=True)
    return app


def _warn(name: str, hint: str) -> None:
    write_line(f"Warning: {name} is not a known setting and is ignored{hint}.", err=True)


def audit_actor() -> str:
    """Return the actor that the audit log records for changes made directly in the database."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        # An account without a name, as in some containers.
        return "cli"
