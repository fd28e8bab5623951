"""Definitions: looking at them and their versions, bringing new ones, and JSON Schema for editors."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from runlane.access.rules import tenant_to_use
from runlane.api.door import Anyone, DefinitionsWrite, RunsRead
from runlane.api.once import OnceRoute, idempotency_header
from runlane.api.parts import Parts, parts_of
from runlane.api.problems import answers
from runlane.api.reply import Reply, moment
from runlane.api.shapes.definitions import (
    Agents,
    DefinitionView,
    McpServers,
    OpenApiAnswer,
    OpenApiRequest,
    Orchestrations,
    SyncAnswer,
    SyncRequest,
    Tools,
    Versions,
)
from runlane.api.shapes.fields import MAX_PAGE, Answer, Name
from runlane.definitions.environment import environment_of
from runlane.definitions.load import check_loaded, parse_bodies
from runlane.definitions.openapi import import_openapi
from runlane.definitions.read import FOLDERS
from runlane.definitions.schema import schema_of
from runlane.errors import NotFound, UnknownDefinition, nearest
from runlane.model.definition import KINDS, Kind
from runlane.model.written import ID_PATTERN
from runlane.store.definitions import Current, find_definition, find_version, list_definitions, list_versions
from runlane.store.sync import sync_definitions

router = APIRouter(tags=["definitions"])
changes = APIRouter(tags=["definitions"], route_class=OnceRoute, dependencies=[Depends(idempotency_header)])

Tenant = Annotated[Name | None, Query(description="For platform admins; others see their own.")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE)]
DefinitionId = Annotated[str, Path(description="The definition's id or name.", examples=["hello"])]
SchemaKind = Annotated[str, Path(description="orchestration, agent, tool or mcp_server.", examples=["orchestration"])]


@changes.post("/sync", response_model=SyncAnswer, responses=answers(404, 409, 413))
async def post_sync(request: Request, principal: DefinitionsWrite, body: SyncRequest) -> Reply:
    """Bring definitions. All are checked together with what is there, then all are stored, or none."""
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
    return Reply(report.told())


@changes.post("/tools/import/openapi", response_model=OpenApiAnswer, responses=answers(404, 409, 413))
async def post_openapi(request: Request, principal: DefinitionsWrite, body: OpenApiRequest) -> Reply:
    """Make tools of the operations of a web service, described by OpenAPI. With `save` they are stored."""
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
        saved = report.told()
    else:
        (await asyncio.to_thread(check_loaded, loaded, ())).raise_errors()
    return Reply(
        {
            "tools": found.tools,
            "left_out": [{"operation": item.operation, "why": item.why} for item in found.left_out],
            "notes": [{"operation": item.operation, "why": item.why} for item in found.notes],
            "saved": saved,
        }
    )


@router.get("/schemas/{kind}", response_model=dict[str, Any], responses=answers(404))
async def get_schema(request: Request, principal: Anyone, kind: SchemaKind) -> Reply:
    """The JSON Schema of definition files, for editors."""
    wanted = kind.replace("-", "_")
    if wanted not in KINDS:
        raise NotFound(f'There is no schema "{kind}"{nearest(wanted, KINDS)}. Schemas: {", ".join(KINDS)}.')
    return Reply(schema_of(wanted))


def _serve(kind: Kind, key: str, page: type[Answer]) -> None:
    """The routes that look at definitions of a kind."""
    path = f"/{key.replace('_', '-')}"

    @router.get(path, response_model=page, responses=answers(404), name=f"get_{key}")
    async def get_page(
        request: Request,
        principal: RunsRead,
        tenant: Tenant = None,
        cursor: Annotated[Name | None, Query(description="`next_cursor` of the page before.")] = None,
        limit: Limit = 100,
    ) -> Reply:
        """What is current, by id."""
        database = parts_of(request).database
        found = await list_definitions(database, tenant_to_use(principal, tenant), kind, after=cursor, limit=limit)
        following = found[-1].id if len(found) == limit else None
        return Reply({key: [_summary(item) for item in found], "next_cursor": following})

    @router.get(f"{path}/{{name}}", response_model=DefinitionView, responses=answers(404), name=f"get_{kind}")
    async def get_one(
        request: Request,
        principal: RunsRead,
        name: DefinitionId,
        version: Annotated[Name | None, Query(description="This version; without it the current one.")] = None,
        tenant: Tenant = None,
    ) -> Reply:
        """One definition: its current version, or the one that is asked for, be the definition removed or not."""
        _check_name(kind, name)
        database, owner = parts_of(request).database, tenant_to_use(principal, tenant)
        if version is None:
            _, found = await find_definition(database, owner, kind, name)
        else:
            found = await find_version(database, owner, kind, name, version)
        return Reply(
            {
                "id": found.id,
                "version": found.version,
                "current": found.current,
                "created_at": moment(found.created_at_us),
                "definition": found.body,
            }
        )

    @router.get(
        f"{path}/{{name}}/versions", response_model=Versions, responses=answers(404), name=f"get_{kind}_versions"
    )
    async def get_versions(
        request: Request, principal: RunsRead, name: DefinitionId, tenant: Tenant = None, limit: Limit = 100
    ) -> Reply:
        """Every version that the definition had, newest first."""
        _check_name(kind, name)
        found = await list_versions(
            parts_of(request).database, tenant_to_use(principal, tenant), kind, name, limit=limit
        )
        versions = [
            {"version": version, "created_at": moment(at_us), "current": current} for version, at_us, current in found
        ]
        return Reply({"id": name, "versions": versions})


_serve("orchestration", "orchestrations", Orchestrations)
_serve("agent", "agents", Agents)
_serve("tool", "tools", Tools)
_serve("mcp_server", "mcp_servers", McpServers)


def known_tasks(parts: Parts) -> list[str] | None:
    """The tasks that steps may name; None where the process has no app and so cannot know."""
    return sorted(parts.app.tasks) or None


def _summary(item: Current) -> dict[str, Any]:
    return {
        "id": item.id,
        "name": item.name,
        "description": item.description,
        "version": item.version,
        "origin": item.origin,
        "source": item.source,
        "created_at": moment(item.created_at_us),
        "updated_at": moment(item.updated_at_us),
    }


def _check_name(kind: Kind, name: str) -> None:
    """What cannot be an id is not there; a NUL in it could not even be asked for."""
    if re.fullmatch(ID_PATTERN, name) is None:
        raise UnknownDefinition(kind, name, ())
