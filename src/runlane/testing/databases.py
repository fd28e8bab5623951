"""Create and drop databases on a PostgreSQL server, so that tests can have their own database.

The functions are synchronous because fixtures of both kinds call them. The driver gets an event loop in a separate
thread, so that the caller may have a running loop.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import cast
from urllib.parse import urlsplit

import asyncpg


def create(server_url: str, name: str, template: str | None = None) -> str:
    """Create a database and return its URL. A template must have no open connections while it is copied."""
    statement = f"create database {_quoted(name)}"
    if template is not None:
        statement += f" template {_quoted(template)}"
    _execute(server_url, statement)
    return urlsplit(server_url)._replace(path=f"/{name}").geturl()


def drop(server_url: str, name: str) -> None:
    """Drop a database if it exists, and close its open connections."""
    _execute(server_url, f"drop database if exists {_quoted(name)} with (force)")


def _execute(url: str, statement: str) -> None:
    async def run() -> None:
        connection = cast("asyncpg.Connection", await asyncpg.connect(url))
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(asyncio.run, run()).result()


def _quoted(identifier: str) -> str:
    # Identifiers cannot be bound as parameters, so they are quoted.
    return '"' + identifier.replace('"', '""') + '"'
