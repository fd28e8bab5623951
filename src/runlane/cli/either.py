"""Commands that work on a server or on a database: one function for each, and the choice between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from runlane.cli.target import check_exists, server_or_database
from runlane.cli.terminal import write_line
from runlane.settings import load_settings

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.store.sql.database import Database

T = TypeVar("T")


def with_either(
    url: str | None,
    api_key: str | None,
    on_server: Callable[[Client], Awaitable[T]],
    on_database: Callable[[Database], Awaitable[T]],
    *,
    creates: bool = False,
) -> T:
    """Do it on the server at this URL; without one, on that of a running `runlane dev` here, or on the database.

    `creates` allows the default file to be created. Other commands refuse to, because a new file would have nothing
    to show or change.
    """
    url, api_key = server_or_database(url, api_key)
    if url is not None:
        return asyncio.run(_on_server(url, api_key, on_server))
    settings = load_settings()
    path = settings.sqlite_path
    is_new = path is not None and not path.exists()
    if not creates:
        check_exists(settings)
    done = asyncio.run(_on_database(on_database))
    if is_new:
        write_line(f"Created the database {settings.shown_database}.", err=True)
    return done


async def _on_server(url: str, api_key: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    from runlane.cli.source import client_of

    async with client_of(url, api_key) as client:
        return await work(client)


async def _on_database(work: Callable[[Database], Awaitable[T]]) -> T:
    from runlane.cli.own import own_app

    async with own_app() as app:
        return await work(await app.database())
