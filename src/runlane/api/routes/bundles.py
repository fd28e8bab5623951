"""Bundles: definitions in one file, to move them between installations."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import Depends, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import DefinitionsWrite, RunsRead
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.definitions import known_tasks
from runlane.api.schemas.bundles import Bundle, BundleSelection, ExportRequest, ImportAnswer, ImportRequest
from runlane.api.serializers import JsonBody
from runlane.api.services import parts_of
from runlane.catalog.bundles import export_bundle, import_bundle
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.files import FOLDERS
from runlane.definitions.schema.definition import Kind

router = RawRouter(tags=["definitions"])
changes = RawRouter(tags=["definitions"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])


@router.post("/bundles/export", response_model=Bundle, responses=answers(404))
async def post_export(request: Request, principal: RunsRead, body: ExportRequest) -> JsonBody:
    """Return a bundle of the current definitions: all of them, or the selected ones with everything that they use."""
    exported_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    tenant = tenant_to_use(principal, body.tenant)
    database = parts_of(request).database
    return JsonBody(await export_bundle(database, tenant, exported_at, only=_chosen(body), with_used=body.with_used))


@changes.post("/bundles/import", response_model=ImportAnswer, responses=answers(404, 409, 413))
async def post_import(request: Request, principal: DefinitionsWrite, body: ImportRequest) -> JsonBody:
    """Import a bundle. Missing references are warnings; a definition with errors is skipped and reported."""
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
    return JsonBody(report.to_dict())


def _chosen(choice: BundleSelection) -> dict[Kind, list[str]] | None:
    given: dict[Kind, list[str]] = {}
    for folder, kind in FOLDERS.items():
        names: list[str] | None = getattr(choice, folder)
        if names is not None:
            given[kind] = names
    return given or None
