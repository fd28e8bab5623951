"""The plan of `runlane db upgrade`, and the running processes, read before an upgrade on the schema of the old release.

The statements use only columns that every release has had since migrations record which code runs on their schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select

from runlane.domain.bulk import BulkState
from runlane.store.sql import migrate
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit, now_us
from runlane.store.sql.schema import bulk_jobs, workers
from runlane.store.sql.statement import Statement

# The revision from which on migrations declare `compatible_from`.
_FIRST_DECLARED = "v0021"

_VERSIONS = Statement(
    "live_worker_versions",
    select(workers.c.version, func.count().label("count"))
    .where(workers.c.status.in_((lit("online"), lit("draining"))), workers.c.lease_until > now_us())
    .group_by(workers.c.version),
    purpose="Count the live workers by the version of their code, before an upgrade.",
)
_JOBS = Statement(
    "count_running_bulk_jobs",
    select(func.count().label("count")).where(bulk_jobs.c.state == lit(BulkState.RUNNING)),
    purpose="Count the bulk jobs that run, before an upgrade.",
)


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """The migrations to apply; `beside` is whether processes of the present schema run on the new one, too."""

    current: str | None
    target: str
    pending: tuple[str, ...]
    beside: bool


@dataclass(frozen=True, slots=True)
class FleetState:
    """The live workers by version, and the bulk jobs that run."""

    versions: dict[str, int]
    bulk_jobs: int


def plan_upgrade(current: str | None) -> UpgradePlan:
    """Return the plan of an upgrade from a revision. The revision must be one of this code, or None."""
    revisions = migrate.REVISIONS
    if current is None:
        return UpgradePlan(None, migrate.HEAD, revisions, beside=True)
    position = revisions.index(current)
    pending = revisions[position + 1 :]
    beside = all(_runs_on(current, revision, revisions) for revision in pending)
    return UpgradePlan(current, migrate.HEAD, pending, beside)


def _runs_on(current: str, revision: str, revisions: tuple[str, ...]) -> bool:
    """Return whether code of the current revision runs on the schema of a later one."""
    declared = declared_compatibility().get(revision)
    return declared is not None and revisions.index(declared) <= revisions.index(current)


def declared_compatibility() -> dict[str, str | None]:
    """Return for each migration the oldest revision whose code runs on its schema; None if it declares none."""
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(migrate.SCRIPTS))
    scripts: Any = ScriptDirectory.from_config(config).walk_revisions()
    return {script.revision: getattr(script.module, "compatible_from", None) for script in scripts}


async def read_fleet(database: Database, revision: str) -> FleetState | None:
    """Return the live workers and bulk jobs before an upgrade; None if the schema is too old to read them."""
    if revision not in migrate.REVISIONS or revision < _FIRST_DECLARED:
        return None
    versions = {row["version"]: row["count"] for row in await database.query(_VERSIONS)}
    return FleetState(versions, (await database.query(_JOBS))[0]["count"])
