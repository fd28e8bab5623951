"""`runlane doctor`: check everything that a run needs, and report each problem with its fix.

It changes nothing and creates no database file. A finding is broken if runs cannot be accepted or executed because of
it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import print_json
from runlane.cli.terminal import DIM, GREEN, RED, YELLOW, write_line
from runlane.domain.finding import Finding, Level
from runlane.errors import Forbidden, InvalidRequest, InvalidSettings, RunlaneError, Unauthorized, Unavailable

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.settings import Settings
    from runlane.store.sql.database import Database

BeforeUpgrade = Annotated[
    bool,
    typer.Option(
        "--before-upgrade", help="Check instead whether `runlane db upgrade` of this version can run now, and safely."
    ),
]


def doctor(url: Url = None, api_key: ApiKey = None, before_upgrade: BeforeUpgrade = False, json: Json = False) -> None:
    """Check settings, database, schema, Redis, clock, workers, lanes, secrets. Exit code 1 if something is broken."""
    if before_upgrade:
        findings = asyncio.run(_check_upgrade(url))
    else:
        findings = asyncio.run(_check_all(dict(os.environ), url, api_key))
    broken = any(finding.level is Level.BROKEN for finding in findings)
    if json:
        print_json({"healthy": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    raise typer.Exit(1 if broken else 0)


async def _check_upgrade(url: str | None) -> list[Finding]:
    from runlane.diagnosis.upgrade_checks import check_upgrade
    from runlane.settings import load_settings

    settings = load_settings().for_migrations()
    if url is not None and settings.database_url is None:
        raise InvalidRequest(
            f'The server "{url}" is given, but an upgrade acts on a database. Set RUNLANE_DATABASE_URL to its database.'
        )

    async def check(database: Database) -> list[Finding]:
        return await check_upgrade(database, settings)

    return await _with_database(settings, check)


async def _check_all(environment: Mapping[str, str], url: str | None, api_key: str | None) -> list[Finding]:
    from runlane.settings import load_settings

    findings = list(unknown_settings(environment))
    try:
        settings = load_settings()
    except InvalidSettings as error:
        findings.append(Finding("settings", Level.BROKEN, str(error), "Correct the variables; see: docs, settings"))
        return findings
    if not findings:
        findings.append(Finding("settings", Level.OK, "valid"))
    by_server = url is not None and settings.database_url is None
    if not by_server:
        findings += await _check_database(settings)
    findings.append(await _check_redis(settings))
    if url is not None:
        findings += await _check_server(url, api_key, with_findings=by_server)
    return findings


def unknown_settings(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Report variables that look like settings and are ignored."""
    from runlane.settings import unknown_variables

    for name, hint in unknown_variables(environment):
        yield Finding("settings", Level.WARNING, f"{name} is not a known setting and is ignored{hint}", "Correct it.")


async def _check_database(settings: Settings) -> list[Finding]:
    from runlane.diagnosis.checks import check_retention, check_secrets, check_webhooks, check_work
    from runlane.store.sql.migrate import check_schema

    async def check(database: Database) -> list[Finding]:
        try:
            await check_schema(database, settings.shown_database)
        except RunlaneError as error:
            return [Finding("schema", Level.BROKEN, str(error), "Run: runlane db upgrade")]
        return [
            Finding("schema", Level.OK, "matches this version"),
            *await check_work(database),
            await check_secrets(database, settings),
            *await check_webhooks(database, settings),
            await check_retention(database, settings),
        ]

    return await _with_database(settings, check)


async def _with_database(settings: Settings, check: Callable[[Database], Awaitable[list[Finding]]]) -> list[Finding]:
    """Open the database, if it exists; return a finding on whether it responds, and the findings of `check`."""
    from runlane.store.sql.database import open_database

    shown = settings.shown_database
    if settings.sqlite_path is not None and not settings.sqlite_path.exists():
        return [
            Finding("database", Level.NOTE, f"{shown} does not exist yet; the first command that needs it creates it")
        ]
    try:
        database = await open_database(settings, 2)
    except (RunlaneError, OSError) as error:
        cure = "Start the database, or correct RUNLANE_DATABASE_URL."
        return [Finding("database", Level.BROKEN, f"{shown} cannot be reached: {error}", cure)]
    try:
        return [Finding("database", Level.OK, f"{shown} answers"), *await check(database)]
    except Unavailable as error:
        return [Finding("database", Level.BROKEN, f"{shown} stopped answering: {error}", "Check the database.")]
    finally:
        await database.close()


async def _check_redis(settings: Settings) -> Finding:
    if settings.redis_url is None:
        how = "wake each other through Postgres" if settings.wakes_through_postgres else "poll the database for work"
        return Finding("redis", Level.NOTE, f"not set; processes {how}")
    from runlane.bus.redis_client import REDIS_ERRORS, open_client

    try:
        client = open_client(settings.redis_url.get_secret_value())
    except RunlaneError as error:
        return Finding("redis", Level.BROKEN, str(error), "Correct RUNLANE_REDIS_URL.")
    try:
        async with asyncio.timeout(5):
            await client.ping()
    except REDIS_ERRORS as error:
        return Finding(
            "redis",
            Level.WARNING,
            f"does not answer: {str(error) or type(error).__name__}",
            "Nothing is lost without it, but starts and streams are slower. Start it, or correct RUNLANE_REDIS_URL.",
        )
    finally:
        await client.close()
    return Finding("redis", Level.OK, "answers")


async def _check_server(url: str, api_key: str | None, *, with_findings: bool) -> list[Finding]:
    """Check that a server is ready. `with_findings` adds the checks that the server makes, also of its database."""
    from runlane.client import Client

    try:
        async with Client(url, api_key) as client:
            health = await client.health()
            if not health.ready:
                parts = dict(health.parts)
                return [Finding("server", Level.BROKEN, f"{url} is not ready: {parts}", "Check its log.")]
            found = [Finding("server", Level.OK, f"{url} is ready")]
            return [*found, *await _checks_of(client)] if with_findings else found
    except RunlaneError as error:
        return [Finding("server", Level.BROKEN, str(error), "Start it: runlane serve module:app")]


async def _checks_of(client: Client) -> Sequence[Finding]:
    try:
        return (await client.admin.diagnosis()).findings
    except (Forbidden, Unauthorized) as error:
        cure = "Give a key of the tenant default with workers:view, or check the database with RUNLANE_DATABASE_URL."
        return [Finding("server", Level.NOTE, f"its own checks are not shown: {error}", cure)]


def _print(findings: Sequence[Finding]) -> None:
    colours = {Level.OK: GREEN, Level.NOTE: DIM, Level.WARNING: YELLOW, Level.BROKEN: RED}
    for finding in findings:
        write_line(f" {finding.check:<13} {finding.message}", label=(f"{finding.level:<8}", colours[finding.level]))
        if finding.cure is not None:
            write_line(f"{'':<8} {'':<13} -> {finding.cure}")
