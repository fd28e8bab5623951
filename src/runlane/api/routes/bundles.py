"""Bundles: definitions carried from one place to another."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, Depends, Request

from runlane.access.rules import tenant_to_use
from runlane.api.door import DefinitionsWrite, RunsRead
from runlane.api.once import OnceRoute, idempotency_header
from runlane.api.parts import parts_of
from runlane.api.problems import answers
from runlane.api.reply import Reply
from runlane.api.routes.definitions import known_tasks
from runlane.api.shapes.bundles import Bundle, Choice, ExportRequest, ImportAnswer, ImportRequest
from runlane.definitions.environment import environment_of
from runlane.definitions.read import FOLDERS
from runlane.model.definition import Kind
from runlane.store.bundles import export_bundle, import_bundle

router = APIRouter(tags=["definitions"])
changes = APIRouter(tags=["definitions"], route_class=OnceRoute, dependencies=[Depends(idempotency_header)])


@router.post("/bundles/export", response_model=Bundle, responses=answers(404))
async def post_export(request: Request, principal: RunsRead, body: ExportRequest) -> Reply:
    """A bundle of what is current: everything, or what is chosen with all that it uses."""
    exported_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    tenant = tenant_to_use(principal, body.tenant)
    database = parts_of(request).database
    return Reply(await export_bundle(database, tenant, exported_at, only=_chosen(body), with_used=body.with_used))


@changes.post("/bundles/import", response_model=ImportAnswer, responses=answers(404, 409, 413))
async def post_import(request: Request, principal: DefinitionsWrite, body: ImportRequest) -> Reply:
    """Bring what is in a bundle. Loose ends are warnings; what has errors is skipped and told."""
    parts = parts_of(request)
    report = await import_bundle(
        parts.database,
        tenant_to_use(principal, body.tenant),
        body.bundle,
        actor=principal.actor,
        only=_chosen(body),
        keep_existing=body.keep_existing,
        source=body.source,
        take_over=body.take_over,
        dry_run=body.dry_run,
        tasks=known_tasks(parts),
        environment=environment_of(parts.app.settings),
    )
    return Reply(report.told())


def _chosen(choice: Choice) -> dict[Kind, list[str]] | None:
    given: dict[Kind, list[str]] = {}
    for folder, kind in FOLDERS.items():
        names: list[str] | None = getattr(choice, folder)
        if names is not None:
            given[kind] = names
    return given or None
