"""Bundles: definitions carried from one place to another."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Depends, Request

from runlane.access.rules import tenant_to_use
from runlane.api.door import DefinitionsWrite, RunsRead
from runlane.api.once import OnceRoute, idempotency_header
from runlane.api.parts import parts_of
from runlane.api.problems import answers
from runlane.api.reply import Reply
from runlane.api.routes.definitions import known_tasks
from runlane.api.shapes.bundles import Bundle, Choice, ExportRequest, ImportAnswer, ImportRequest
from runlane.definitions.read import FOLDERS
from runlane.model.definition import Kind
from runlane.store.bundles import ImportReport, export_bundle, import_bundle

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
        dry_run=body.dry_run,
        tasks=known_tasks(parts),
    )
    return Reply(import_json(report))


def import_json(report: ImportReport) -> dict[str, Any]:
    """A report as JSON."""
    items: list[dict[str, Any]] = [
        {
            "kind": outcome.kind,
            "id": outcome.id,
            "status": "unchanged" if outcome.change == "unchanged" else "imported",
            "reason": None,
            "version": outcome.version,
        }
        for outcome in report.outcomes
    ]
    items += (
        {"kind": skipped.kind, "id": skipped.id, "status": "skipped", "reason": skipped.reason, "version": None}
        for skipped in report.skipped
    )
    counts = {
        status: sum(item["status"] == status for item in items) for status in ("imported", "unchanged", "skipped")
    }
    return {
        "dry_run": report.dry_run,
        **counts,
        "items": items,
        "secrets": [asdict(needed) for needed in report.secrets],
        "warnings": [problem.told() for problem in report.warnings],
    }


def _chosen(choice: Choice) -> dict[Kind, list[str]] | None:
    given: dict[Kind, list[str]] = {}
    for folder, kind in FOLDERS.items():
        names: list[str] | None = getattr(choice, folder)
        if names is not None:
            given[kind] = names
    return given or None
