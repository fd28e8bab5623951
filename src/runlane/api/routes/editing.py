"""Single definitions: check one, store one, connect to an MCP server, list users of a definition and its input form."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, cast

from fastapi import Depends, Header, Path, Query, Request

from runlane.access.policy import tenant_to_use
from runlane.api.auth import DefinitionsWrite, RunsRead, RunsWrite
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.router import RawRouter
from runlane.api.routes.definitions import known_tasks
from runlane.api.schemas.editing import (
    CheckDefinition,
    Findings,
    InputForm,
    PutDefinition,
    StoredDefinition,
    UsedByList,
    UserCounts,
)
from runlane.api.schemas.fields import Name
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import Services, parts_of
from runlane.catalog.sync import SyncedDefinition, SyncReport, sync_definitions
from runlane.definitions.checks.environment import environment_of
from runlane.definitions.files import FOLDERS
from runlane.definitions.graph_view import graph_view
from runlane.definitions.loader import LoadedDefinitions, parse_bodies
from runlane.definitions.schema.definition import Kind, McpServer, Orchestration
from runlane.definitions.versions import restore
from runlane.domain.example_values import example_of
from runlane.domain.mcp_check import McpCheck
from runlane.domain.text import dump_json
from runlane.domain.wire import to_dict
from runlane.errors import InvalidDefinitions, InvalidRequest, NotFound
from runlane.store.definition_users import count_users, find_pins, find_users
from runlane.store.definitions import find_definition

router = RawRouter(tags=["definitions"])
changes = RawRouter(tags=["definitions"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])

# The source of definitions that were edited in the dashboard, or stored one at a time by a program.
SOURCE: Final = "dashboard"
_TYPES: Final = {"list": "array", "any": None}
_PART: Final = re.compile(r"[^.\[\]]+")
KindPath = Annotated[
    str, Path(description="`orchestrations`, `agents`, `tools`, `mcp-servers` or `triggers`.", examples=["agents"])
]
DefinitionName = Annotated[Name, Path(description="The definition's id.", examples=["article"])]
Tenant = Annotated[Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")]


@router.post("/definitions/check", response_model=Findings, responses=answers(404, 413, 429))
async def check_definition(request: Request, principal: RunsRead, body: CheckDefinition) -> JsonBody:
    """Check a definition as `runlane validate` does, together with the stored definitions. Nothing is stored."""
    parts = parts_of(request)
    tenant = tenant_to_use(principal, body.tenant)
    folder, _ = _folder(body.kind)
    try:
        # A check with many stored definitions takes seconds of a thread, and needs no more than runs:read.
        async with parts.searches.turn(principal):
            loaded = await _parse(folder, body.definition)
            report = await _sync(parts, tenant, loaded, actor=principal.actor, dry_run=True, take_over=True)
    except InvalidDefinitions as error:
        findings = _findings(error.details, body.definition)
        return JsonBody({"valid": False, "findings": findings, "version": None, "change": None, "graph": None})
    outcome = _outcome(report, body.definition)
    findings = _findings([warning.to_dict() for warning in report.warnings], body.definition)
    valid = {"valid": True, "findings": findings, "version": outcome.version, "change": outcome.change}
    return JsonBody({**valid, "graph": await asyncio.to_thread(_graph, loaded, outcome.version)})


@router.post("/mcp-servers/{name}/check", response_model=McpCheck, responses=answers(404, 429))
async def check_mcp_server(
    request: Request, principal: RunsWrite, name: DefinitionName, tenant: Tenant = None
) -> ValueBody:
    """Connect from this server to an MCP server, as agents do, and list its tools. Nothing is stored.

    The tenant's secrets are sent as the definition requires. A server that cannot be used is a result, not an error.
    """
    from runlane.tools.mcp.check import check_server

    parts, owner = parts_of(request), tenant_to_use(principal, tenant)
    found = await find_definition(parts.database, owner, "mcp_server", name)
    server = cast("McpServer", restore("mcp_server", dump_json(dict(found.body))))
    async with parts.searches.turn(principal):
        return ValueBody(await check_server(parts.app.settings, parts.connection.vault.values, owner, server))


@changes.put("/definitions/{kind}/{name}", response_model=StoredDefinition, responses=answers(404, 409, 412, 413))
async def put_definition(
    request: Request,
    principal: DefinitionsWrite,
    kind: KindPath,
    name: DefinitionName,
    body: PutDefinition,
    if_match: Annotated[
        str | None, Header(max_length=80, description="The version that the caller has read; 412 if it changed.")
    ] = None,
) -> JsonBody:
    """Store one definition. 409 without `take_over` if files or another source own it."""
    parts = parts_of(request)
    tenant = tenant_to_use(principal, body.tenant)
    folder, singular = _folder(kind)
    if body.definition.get("id") != name:
        raise InvalidRequest(f'The definition must have the id of its path, "{name}".')
    version = None if if_match is None else if_match.removeprefix("W/").strip('"')
    report = await _sync(
        parts,
        tenant,
        await _parse(folder, body.definition),
        actor=principal.actor,
        take_over=body.take_over,
        expected=None if version is None or version == "*" else {(singular, name): version},
    )
    outcome = _outcome(report, body.definition)
    stored = {
        "id": name,
        "version": outcome.version,
        "previous": outcome.old,
        "change": outcome.change,
        "source": report.source,
        "findings": _findings([warning.to_dict() for warning in report.warnings], body.definition),
    }
    return JsonBody(stored, headers={"ETag": f'"{outcome.version}"'})


@router.get("/definitions/{kind}/{name}/used-by", response_model=UsedByList, responses=answers(404))
async def get_users(
    request: Request, principal: RunsRead, kind: KindPath, name: DefinitionName, tenant: Tenant = None
) -> JsonBody:
    """List the definitions whose runs may use this one, at most 500, and those that its own runs may use."""
    database, owner = parts_of(request).database, tenant_to_use(principal, tenant)
    _, singular = _folder(kind)
    await find_definition(database, owner, singular, name)
    found = await find_users(database, owner, singular, name)
    own = f"{singular}:{name}"
    pinned = sorted(key for key in await find_pins(database, owner, singular, name) if key != own)
    uses = [dict(zip(("kind", "id"), key.split(":", 1), strict=True)) for key in pinned]
    used_by = [{"kind": row["kind"], "id": row["id"], "name": row["name"]} for row in found]
    return JsonBody({"used_by": used_by, "uses": uses})


@router.get("/definitions/{kind}/used-by", response_model=UserCounts, responses=answers(404))
async def get_user_counts(request: Request, principal: RunsRead, kind: KindPath, tenant: Tenant = None) -> JsonBody:
    """Count the definitions whose runs may use each definition of a kind, among a tenant's first 5,000 definitions."""
    _, singular = _folder(kind)
    counts = await count_users(parts_of(request).database, tenant_to_use(principal, tenant), singular)
    return JsonBody({"counts": counts})


@router.get("/orchestrations/{name}/input", response_model=InputForm, responses=answers(404))
async def get_input_form(
    request: Request, principal: RunsRead, name: DefinitionName, tenant: Tenant = None
) -> JsonBody:
    """Return the JSON Schema of the orchestration's `input`, with an example."""
    owner = tenant_to_use(principal, tenant)
    found = await find_definition(parts_of(request).database, owner, "orchestration", name)
    fields = cast("Mapping[str, Mapping[str, Any]]", found.body.get("state_schema") or {})
    schema = {"type": "object", "properties": {key: _property(field) for key, field in fields.items()}}
    form = {"orchestration_id": name, "version": found.version, "input_schema": schema, "example": example_of(schema)}
    return JsonBody(form)


def _property(field: Mapping[str, Any]) -> dict[str, Any]:
    kind = str(field.get("type", "any"))
    shown: dict[str, Any] = {} if _TYPES.get(kind, kind) is None else {"type": _TYPES.get(kind, kind)}
    if field.get("description"):
        shown["description"] = field["description"]
    if field.get("default") is not None:
        shown["default"] = field["default"]
    return shown


def _folder(kind: str) -> tuple[str, Kind]:
    folder = kind.replace("-", "_")
    if folder not in FOLDERS or folder == "schedules":
        raise NotFound(
            f'Definitions of the kind "{kind[:80]}" cannot be edited. Use orchestrations, agents, tools, mcp-servers '
            "or triggers."
        )
    return folder, FOLDERS[folder]


async def _parse(folder: str, definition: dict[str, Any]) -> LoadedDefinitions:
    return await asyncio.to_thread(parse_bodies, {folder: [definition]})


def _graph(loaded: LoadedDefinitions, version: str | None) -> dict[str, Any] | None:
    """Return the graph of an orchestration that passed the checks; None for another kind of definition."""
    definition = loaded.definitions[0].definition
    return to_dict(graph_view(definition, version)) if isinstance(definition, Orchestration) else None


async def _sync(
    parts: Services,
    tenant: str,
    loaded: LoadedDefinitions,
    *,
    actor: str,
    take_over: bool,
    dry_run: bool = False,
    expected: Mapping[tuple[Kind, str], str] | None = None,
) -> SyncReport:
    return await sync_definitions(
        parts.database,
        tenant,
        loaded,
        actor=actor,
        dry_run=dry_run,
        source=SOURCE,
        take_over=take_over,
        tasks=known_tasks(parts),
        environment=environment_of(parts.app.settings),
        expected=expected,
    )


def _outcome(report: SyncReport, definition: Mapping[str, Any]) -> SyncedDefinition:
    """Return the outcome of the given definition; the sync may have changed others as well."""
    return next(outcome for outcome in report.outcomes if outcome.id == definition["id"])


def _findings(problems: Sequence[Mapping[str, Any]], definition: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{**problem, "pointer": _pointer(problem, definition)} for problem in problems]


def _pointer(problem: Mapping[str, Any], definition: Mapping[str, Any]) -> str:
    """Return the JSON Pointer of a problem: the position of its step, and its field."""
    parts: list[str] = []
    steps: Any = definition.get("steps")
    if problem["step"] is not None and isinstance(steps, list):
        ids: list[Any] = [step.get("id") if isinstance(step, dict) else None for step in cast("list[Any]", steps)]
        parts += ["steps", str(ids.index(problem["step"]))] if problem["step"] in ids else ["steps"]
    parts += _PART.findall(problem["field"] or "")
    return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in parts)
