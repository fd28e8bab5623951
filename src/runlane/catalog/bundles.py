"""Export bundles from the database, and import them."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runlane.catalog.bundle_format import RequiredSecret, SkippedItem, pack, unpack
from runlane.catalog.sync import SyncedDefinition, read_current, sync_definitions
from runlane.definitions.checks.environment import Environment
from runlane.definitions.dependencies import Key, find_dependencies
from runlane.definitions.problem import Problem
from runlane.definitions.schema.definition import Definition, Kind
from runlane.definitions.scope import scope_of
from runlane.errors import UnknownDefinition
from runlane.store.sql.database import Database


@dataclass(frozen=True, slots=True)
class ImportReport:
    """The outcome of each definition in a bundle, warnings, and the secrets that are needed."""

    outcomes: Sequence[SyncedDefinition]
    skipped: Sequence[SkippedItem]
    warnings: Sequence[Problem]
    secrets: Sequence[RequiredSecret]
    dry_run: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        items: list[dict[str, Any]] = [
            {
                "kind": outcome.kind,
                "id": outcome.id,
                "status": "unchanged" if outcome.change == "unchanged" else "imported",
                "reason": None,
                "version": outcome.version,
            }
            for outcome in self.outcomes
        ]
        items += (
            {"kind": skipped.kind, "id": skipped.id, "status": "skipped", "reason": skipped.reason, "version": None}
            for skipped in self.skipped
        )
        statuses = [item["status"] for item in items]
        return {
            "dry_run": self.dry_run,
            **{status: statuses.count(status) for status in ("imported", "unchanged", "skipped")},
            "items": items,
            "secrets": [asdict(needed) for needed in self.secrets],
            "warnings": [problem.to_dict() for problem in self.warnings],
        }


async def export_bundle(
    database: Database,
    tenant: str,
    exported_at: str,
    *,
    only: Mapping[Kind, Collection[str]] | None = None,
    with_used: bool = True,
) -> dict[str, Any]:
    """Return a bundle of all current definitions, or of those in `only` and, `with_used`, all that they use."""
    rows, stored = await read_current(database, tenant)
    return await asyncio.to_thread(_bundle, dict(zip(rows, stored, strict=True)), exported_at, only, with_used)


def _bundle(
    found: Mapping[Key, Definition],
    exported_at: str,
    only: Mapping[Kind, Collection[str]] | None,
    with_used: bool,
) -> dict[str, Any]:
    if only is None:
        return pack(found.values(), exported_at)
    requested: set[Key] = set()
    for kind, names in only.items():
        for name in names:
            if (kind, name) not in found:
                raise UnknownDefinition(kind, name, [known for other, known in found if other == kind])
            requested.add((kind, name))
    if with_used:
        scope = scope_of(found.values())
        requested |= {key for start in requested for key in find_dependencies(start, scope)}
    return pack((found[key] for key in requested), exported_at)


async def import_bundle(
    database: Database,
    tenant: str,
    bundle: Any,
    *,
    actor: str,
    only: Mapping[Kind, Collection[str]] | None = None,
    keep_existing: bool = False,
    source: str | None = None,
    take_over: bool = False,
    dry_run: bool = False,
    tasks: Collection[str] | None = None,
    environment: Environment | None = None,
) -> ImportReport:
    """Import a bundle, all of it or `only` what is named. What cannot be imported is skipped and reported.

    Without `source` the definitions have none, and the first sync that contains them owns them. Definitions of another
    source are skipped unless `take_over` is set.
    """
    unpacked = await asyncio.to_thread(unpack, bundle, only)
    report = await sync_definitions(
        database,
        tenant,
        unpacked.loaded,
        actor=actor,
        dry_run=dry_run,
        origin="import",
        source=source,
        take_over=take_over,
        tasks=tasks,
        tolerant=True,
        keep_existing=keep_existing,
        environment=environment,
    )
    brought = {(outcome.kind, outcome.id) for outcome in report.outcomes}
    return ImportReport(
        outcomes=report.outcomes,
        skipped=[*unpacked.skipped, *report.skipped],
        warnings=report.warnings,
        secrets=[needed for needed in unpacked.secrets if (needed.kind, needed.id) in brought],
        dry_run=dry_run,
    )
