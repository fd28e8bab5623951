"""Definitions: read them and their versions, sync new ones, and return JSON Schema for editors."""

from __future__ import annotations

import asyncio
import re
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import Anyone, DefinitionsWrite, RunsRead
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.schemas.definitions import OpenApiAnswer, OpenApiRequest, SyncAnswer, SyncRequest
from runlane.api.schemas.fields import MAX_PAGE, Name
from runlane.api.schemas.listing import Listing
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.catalog.importers.openapi import import_openapi
from runlane.catalog.sync import sync_definitions
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.files import FOLDERS
from runlane.definitions.json_schema import schema_of
from runlane.definitions.loader import check_loaded, parse_bodies
from runlane.definitions.schema.base import ID_PATTERN
from runlane.definitions.schema.definition import KINDS, Kind
from runlane.errors import NotFound, UnknownDefinition, nearest
from runlane.store.definitions import (
    CurrentDefinition,
    DefinitionVersion,
    VersionList,
    find_definition,
    find_version,
    list_definitions,
    list_versions,
)

router = RawRouter(tags=["definitions"])
changes = RawRouter(tags=["definitions"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
DefinitionId = Annotated[str, Path(description="The definition's id or name.", examples=["hello"])]
SchemaKind = Annotated[
    str, Path(description="orchestration, agent, tool, mcp_server, schedule or trigger.", examples=["orchestration"])
]


@changes.post("/sync", response_model=SyncAnswer, responses=answers(404, 409, 413))
async def post_sync(request: Request, principal: DefinitionsWrite, body: SyncRequest) -> JsonBody:
    """Sync definitions. They are checked together with the stored definitions; then all are stored, or none."""
    parts = parts_of(request)
    tenant = tenant_to_use(principal, body.tenant)
    bodies = {folder: getattr(body, folder) for folder in FOLDERS}
    loaded = await asyncio.to_thread(parse_bodies, bodies)
    report = await sync_definitions(
        parts.database,
        tenant,
        loaded,
        actor=principal.actor,
        dry_run=body.dry_run,
        remove_missing=body.remove_missing,
        source=body.source,
        take_over=body.take_over,
        tasks=known_tasks(parts),
        environment=environment_of(parts.app.settings),
    )
    return JsonBody(report.to_dict())


@changes.post("/tools/import/openapi", response_model=OpenApiAnswer, responses=answers(404, 409, 413))
async def post_openapi(request: Request, principal: DefinitionsWrite, body: OpenApiRequest) -> JsonBody:
    """Create tools from the operations of a web service with an OpenAPI description.

    With `save`, the tools are stored.
    """
    parts = parts_of(request)
    tenant = tenant_to_use(principal, body.tenant)
    found = await asyncio.to_thread(
        import_openapi, body.spec, name_prefix=body.name_prefix, base_url=body.base_url, headers=body.headers
    )
    loaded = await asyncio.to_thread(parse_bodies, {"tools": found.tools})
    saved = None
    if body.save and loaded.definitions:
        report = await sync_definitions(
            parts.database,
            tenant,
            loaded,
            actor=principal.actor,
            source=None,
            take_over=body.take_over,
            origin="import",
            tasks=known_tasks(parts),
            environment=environment_of(parts.app.settings),
        )
        saved = report.to_dict()
    else:
        (await asyncio.to_thread(check_loaded, loaded, ())).raise_errors()
    return JsonBody(
        {
            "tools": found.tools,
            "left_out": [asdict(item) for item in found.left_out],
            "notes": [asdict(item) for item in found.notes],
            "saved": saved,
        }
    )


@router.get("/schemas/{kind}", response_model=dict[str, Any], responses=answers(404))
async def get_schema(request: Request, principal: Anyone, kind: SchemaKind) -> JsonBody:
    """Return the JSON Schema of definition files, for editors."""
    wanted = kind.replace("-", "_")
    if wanted not in KINDS:
        raise NotFound(f'No schema "{kind}" exists{nearest(wanted, KINDS)}. Schemas: {", ".join(KINDS)}.')
    return JsonBody(schema_of(wanted))


def _serve(kind: Kind, key: str) -> None:
    """Add the routes that read definitions of a kind."""
    path = f"/{key.replace('_', '-')}"
    listing = Listing(key, CurrentDefinition, cursor="id")

    @router.get(path, response_model=listing.schema, responses=answers(404), name=f"get_{key}")
    async def get_page(
        request: Request,
        principal: RunsRead,
        tenant: Tenant = None,
        cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
        limit: Limit = 100,
    ) -> JsonBody:
        """List the current definitions by id."""
        database = parts_of(request).database
        found = await list_definitions(database, tenant_to_use(principal, tenant), kind, after=cursor, limit=limit)
        return listing.page(found, limit)

    @router.get(f"{path}/{{name}}", response_model=DefinitionVersion, responses=answers(404), name=f"get_{kind}")
    async def get_one(
        request: Request,
        principal: RunsRead,
        name: DefinitionId,
        version: Annotated[Name | None, Query(description="The version; default is the current version.")] = None,
        tenant: Tenant = None,
    ) -> ValueBody:
        """Return the current or the requested version of a definition, even if the definition was removed."""
        _check_name(kind, name)
        database, owner = parts_of(request).database, tenant_to_use(principal, tenant)
        if version is None:
            found = await find_definition(database, owner, kind, name)
        else:
            found = await find_version(database, owner, kind, name, version)
        return ValueBody(found)

    @router.get(
        f"{path}/{{name}}/versions", response_model=VersionList, responses=answers(404), name=f"get_{kind}_versions"
    )
    async def get_versions(
        request: Request, principal: RunsRead, name: DefinitionId, tenant: Tenant = None, limit: Limit = 100
    ) -> ValueBody:
        """List every version of the definition, newest first."""
        _check_name(kind, name)
        owner = tenant_to_use(principal, tenant)
        return ValueBody(await list_versions(parts_of(request).database, owner, kind, name, limit=limit))


for _folder, _kind in FOLDERS.items():
    # Schedules have their own routes, which also return schedules that no file defines.
    if _kind != "schedule":
        _serve(_kind, _folder)


def known_tasks(parts: Services) -> list[str] | None:
    """Return the tasks that steps may name; None if this process has no tasks, so that names cannot be checked."""
    return sorted(parts.app.tasks) or None


def _check_name(kind: Kind, name: str) -> None:
    """Raise UnknownDefinition for a value that cannot be an id; the database would not even accept NUL in a value."""
    if re.fullmatch(ID_PATTERN, name) is None:
        raise UnknownDefinition(kind, name, ())
