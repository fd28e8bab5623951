"""The checks before an upgrade of the schema: `runlane doctor --before-upgrade`, run by the new code.

A finding is broken if the upgrade would fail or wait, or if processes that run now could not continue on its schema.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from runlane.domain.finding import Finding, Level
from runlane.errors import RunlaneError
from runlane.settings import Settings
from runlane.store.sql.database import Database
from runlane.store.sql.migrate import check_upgradable, read_version
from runlane.store.sql.server_state import ServerState, read_server_state
from runlane.store.sql.transaction_age import oldest_transaction_seconds
from runlane.store.sql.upgrade_plan import UpgradePlan, plan_upgrade, read_fleet
from runlane.version import VERSION

_WAIT_SECONDS = 10
_BLOCKED_SECONDS = 60
_MEGABYTE = 1_000_000


async def check_upgrade(database: Database, settings: Settings) -> list[Finding]:
    """Check the schema, the running processes, transactions, space, rights and the backup."""
    current = await read_version(database)
    try:
        check_upgradable(current, settings.shown_database)
    except RunlaneError as error:
        return [Finding("schema", Level.BROKEN, str(error), "Install a version that can upgrade this schema.")]
    plan = plan_upgrade(current)
    fleet = None if current is None else await read_fleet(database, current)
    versions = {} if fleet is None else fleet.versions
    findings = [schema_finding(plan, sum(versions.values())), version_finding(versions)]
    if fleet is not None and fleet.bulk_jobs:
        cure = "They continue after the upgrade. To wait for them: runlane bulk list --state running"
        findings.append(Finding("bulk jobs", Level.WARNING, f"{fleet.bulk_jobs} running", cure))
    if settings.sqlite_path is not None:
        findings.append(file_finding(settings.sqlite_path))
    else:
        findings.append(transaction_finding(await oldest_transaction_seconds(database)))
        findings += server_findings(await read_server_state(database))
    return [*findings, _backup_finding(settings)]


def schema_finding(plan: UpgradePlan, live_workers: int) -> Finding:
    """Report the migrations to apply, and whether the processes that run now continue during and after them."""
    if not plan.pending:
        return Finding("schema", Level.OK, f"{plan.current}, nothing to upgrade")
    if plan.current is None:
        return Finding("schema", Level.OK, f"none yet, {plan.target} will be created")
    message = f"{plan.current} -> {plan.target}, {len(plan.pending)} to apply: {', '.join(plan.pending)}"
    if plan.beside:
        return Finding("schema", Level.OK, f"{message}; processes of the present release continue")
    level = Level.BROKEN if live_workers else Level.WARNING
    cure = "Stop every server and worker, run: runlane db upgrade; then start the new version."
    return Finding("schema", level, f"{message}; processes of the present release cannot run on it", cure)


def version_finding(versions: Mapping[str, int]) -> Finding:
    """Report the versions of the live workers. Only neighbouring minor releases run side by side."""
    if not versions:
        return Finding("versions", Level.NOTE, f"no worker is live; this is {VERSION}")
    shown = ", ".join(f"{version} ({count})" for version, count in sorted(versions.items()))
    far = [version for version in versions if not neighbours(version, VERSION)]
    if far:
        cure = "Upgrade one minor release at a time, or stop these workers first."
        message = f"workers of {', '.join(sorted(far))} are not guaranteed to run beside {VERSION}"
        return Finding("versions", Level.BROKEN, message, cure)
    if len(versions) > 1:
        cure = "Finish the rollout before the next one: runlane workers"
        return Finding("versions", Level.WARNING, f"live workers have several versions: {shown}", cure)
    return Finding("versions", Level.OK, f"live workers: {shown}; this is {VERSION}")


def neighbours(one: str, other: str) -> bool:
    """Return whether two versions are of the same or of neighbouring minor releases."""
    first, second = _release(one), _release(other)
    return first is not None and second is not None and first[0] == second[0] and abs(first[1] - second[1]) <= 1


def _release(version: str) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def transaction_finding(seconds: float) -> Finding:
    """Report transactions that the migrations would wait for."""
    if seconds < _WAIT_SECONDS:
        return Finding("transactions", Level.OK, "no transaction has been open for long")
    level = Level.BROKEN if seconds >= _BLOCKED_SECONDS else Level.WARNING
    return Finding(
        "transactions",
        level,
        f"one has been open for {seconds:.0f} s; building an index waits for it",
        "Wait for its end, or end it: select pid, query from pg_stat_activity order by xact_start",
    )


def file_finding(path: Path) -> Finding:
    """Report whether the disk has room for a second copy of a SQLite file, which a migration may write."""
    size, free = path.stat().st_size, shutil.disk_usage(path.parent).free
    message = f"{free / _MEGABYTE:.0f} MB free for a database of {size / _MEGABYTE:.1f} MB"
    if free < 2 * size:
        return Finding("disk", Level.BROKEN, message, "Free twice the size of the database first.")
    return Finding("disk", Level.OK, message)


def server_findings(state: ServerState) -> Iterator[Finding]:
    """Report rights, space and leftovers of a Postgres database."""
    if state.may_migrate:
        yield Finding("rights", Level.OK, f'"{state.role}" may change the schema')
    else:
        cure = "Set RUNLANE_MIGRATIONS_DATABASE_URL to the owner's URL, without PgBouncer."
        message = f'"{state.role}" may not change the tables of "{state.owner}"'
        yield Finding("rights", Level.BROKEN, message, cure)
    needed = f"{state.size_bytes / _MEGABYTE:.0f} MB"
    cure = "Check on the database server that half as much is free: new indexes and WAL need room."
    yield Finding("disk", Level.NOTE, f"the database has {needed}; its disk is not visible from here", cure)
    if state.invalid_indexes:
        names = ", ".join(state.invalid_indexes)
        cure = "An interrupted upgrade is completed by the next one; drop other ones."
        yield Finding("indexes", Level.WARNING, f"not valid: {names}", cure)


def _backup_finding(settings: Settings) -> Finding:
    command = "pg_dump --format=custom" if settings.sqlite_path is None else 'sqlite3 FILE ".backup COPY"'
    message = "a schema is never downgraded, and the encryption key is not in the database"
    return Finding("backup", Level.NOTE, message, f"Back up both before the upgrade: {command}")
