"""Resources of the MCP server: workers, lanes, runs and definitions, by URI.

`workers/status` is not an absolute URI. Worker consoles read the resource by that name, so it exists in addition to the
URI with a scheme.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from runlane import queries
from runlane.access.policy import tenant_to_list
from runlane.api.mcp.memory_tools import list_memories
from runlane.api.mcp.reading_tools import list_targets, read_definition, read_events
from runlane.api.mcp.tool import READ, CallContext
from runlane.api.routes.lanes import common_lanes, find_lane, shown_lane, shown_lanes
from runlane.definitions.schema.definition import KINDS
from runlane.domain.access import Permission
from runlane.domain.memory import CONTEXT_FRAGMENT
from runlane.domain.text import dump_json
from runlane.domain.wire import to_dict
from runlane.errors import NotFound
from runlane.store.queue.overview import overview_body, read_overview
from runlane.store.queue.search import RunFilter

SCHEME: Final = "runlane://"
JSON: Final = "application/json"
TEXT: Final = "text/plain"
_VIEW: Final = frozenset({Permission.WORKERS_VIEW})
_MEMORY: Final = frozenset({Permission.MEMORY_READ})
_SHOWN_JOBS: Final = 200
_LISTED: Final = 50
_EVENTS: Final = 200


@dataclass(frozen=True, slots=True)
class ResourcePart:
    """One part of the content of a resource."""

    mime_type: str
    text: str


Read = Callable[[CallContext, Mapping[str, str]], Awaitable[Sequence[ResourcePart]]]


@dataclass(frozen=True, slots=True)
class ServedResource:
    """A resource, or a template of resources: a `{name}` in its URI matches one segment of the path."""

    uri: str
    name: str
    description: str
    needs: frozenset[Permission]
    read: Read
    mime_type: str = JSON

    @property
    def is_template(self) -> bool:
        return "{" in self.uri

    def match(self, uri: str) -> Mapping[str, str] | None:
        """Return the values of the placeholders; None if the URI does not match."""
        parts = re.split(r"\{(\w+)\}", self.uri)
        pattern = "".join(re.escape(part) if at % 2 == 0 else rf"(?P<{part}>[^/?#]+)" for at, part in enumerate(parts))
        found = re.fullmatch(pattern, uri)
        return None if found is None else {name: unquote(value) for name, value in found.groupdict().items()}


def find_resource(
    caller: CallContext, uri: str, served: Sequence[ServedResource]
) -> tuple[ServedResource, Mapping[str, str]]:
    """Return the resource of a URI. Raise NotFound if it does not exist or the caller may not read it."""
    for resource in served:
        values = resource.match(uri)
        if values is not None and caller.may(resource.needs):
            return resource, values
    raise NotFound(f'No resource "{uri[:200]}" exists. List them with resources/list and resources/templates/list.')


def json_part(value: Mapping[str, Any]) -> ResourcePart:
    """Return a value as JSON."""
    return ResourcePart(JSON, dump_json(value))


async def _workers(caller: CallContext, _values: Mapping[str, str]) -> Sequence[ResourcePart]:
    parts = caller.parts
    found = await read_overview(parts.database, tenant_to_list(caller.principal), common_lanes(parts), _SHOWN_JOBS)
    body = overview_body(found)
    return json_part(body), ResourcePart(TEXT, _overview_text(body))


def _overview_text(body: Mapping[str, Any]) -> str:
    lines = [
        f"{body['slots_in_use']} of {body['total_slots']} slots in use, {body['total_queued']} runs queued.",
        "Lanes:",
        *(f"  {lane['name']}: {_lane_limits(lane)}" for lane in body["lanes"]),
        "Running:",
        *(f"  {job['job_id']} {job['job_type']} on {job['claimed_by']}" for job in body["running_jobs"]),
        "Queued:",
        *(
            f"  {kind['count']} of {kind['job_type']}, the oldest since {kind['oldest']}"
            for kind in body["queued_by_type"]
        ),
    ]
    return "\n".join(lines)


def _lane_limits(lane: Mapping[str, Any]) -> str:
    slots = "no limit" if lane["max_slots"] is None else f"{lane['max_slots']} slots"
    return slots if lane["enabled"] else f"{slots}, disabled"


async def _lanes(caller: CallContext, _values: Mapping[str, str]) -> Sequence[ResourcePart]:
    return (json_part(await shown_lanes(caller.parts, caller.principal)),)


async def _lane(caller: CallContext, values: Mapping[str, str]) -> Sequence[ResourcePart]:
    lane = await find_lane(caller.parts, caller.principal, values["name"])
    return (json_part(shown_lane(caller.principal, lane)),)


async def _runs(caller: CallContext, _values: Mapping[str, str]) -> Sequence[ResourcePart]:
    wanted = RunFilter(tenant=tenant_to_list(caller.principal))
    return (json_part(to_dict(await queries.list_runs(caller.parts.database, wanted, None, _LISTED))),)


async def _run(caller: CallContext, values: Mapping[str, str]) -> Sequence[ResourcePart]:
    await caller.standing(values["run_id"])
    return (json_part(to_dict(await queries.get_run(caller.parts.database, values["run_id"]))),)


async def _run_events(caller: CallContext, values: Mapping[str, str]) -> Sequence[ResourcePart]:
    return (json_part(await read_events(caller, values["run_id"], 0, _EVENTS)),)


async def _definitions(caller: CallContext, _values: Mapping[str, str]) -> Sequence[ResourcePart]:
    return (json_part(await list_targets(caller, None)),)


async def _definition(caller: CallContext, values: Mapping[str, str]) -> Sequence[ResourcePart]:
    kind = values["kind"]
    if kind not in KINDS:
        raise NotFound(f'"{kind[:200]}" is not a kind of definition. Kinds: {", ".join(KINDS)}.')
    return (json_part(await read_definition(caller, kind, values["id"])),)


async def _memories(caller: CallContext, _values: Mapping[str, str]) -> Sequence[ResourcePart]:
    return (json_part(await list_memories(caller, None)),)


async def _memory(caller: CallContext, values: Mapping[str, str]) -> Sequence[ResourcePart]:
    """Return a memory with its documents and newest entries, and its context as text."""
    service, tenant, memory_id = await caller.parts.app.memory(), caller.principal.tenant, values["memory_id"]
    memory = await service.get_memory(tenant, memory_id)
    page = await service.list_entries(tenant, memory_id, limit=_LISTED)
    manifest = await service.manifest(tenant, memory_id)
    context = await service.get_fragment(tenant, memory_id, CONTEXT_FRAGMENT)
    body = {**to_dict(memory), **to_dict(page), "fragments": [to_dict(fragment) for fragment in manifest]}
    return json_part(body), ResourcePart(TEXT, context.content)


_STATUS: Final = "Slots, running runs and queued runs of every lane at one moment, as JSON and as text."
RESOURCES: Final[tuple[ServedResource, ...]] = (
    ServedResource("workers/status", "workers/status", _STATUS, _VIEW, _workers),
    ServedResource(f"{SCHEME}workers/status", "Status of workers", _STATUS, _VIEW, _workers),
    ServedResource(f"{SCHEME}lanes", "Lanes", "The lanes with their running and queued runs.", _VIEW, _lanes),
    ServedResource(f"{SCHEME}lanes/{{name}}", "Lane", "One lane.", _VIEW, _lane),
    ServedResource(f"{SCHEME}runs", "Runs", "The newest runs.", READ, _runs),
    ServedResource(f"{SCHEME}runs/{{run_id}}", "Run", "A run with its input and result.", READ, _run),
    ServedResource(f"{SCHEME}runs/{{run_id}}/events", "Events", "The first events of a run.", READ, _run_events),
    ServedResource(f"{SCHEME}memories", "Memories", "The memories of the tenant.", _MEMORY, _memories),
    ServedResource(f"{SCHEME}memories/{{memory_id}}", "Memory", "Its context and newest entries.", _MEMORY, _memory),
    ServedResource(f"{SCHEME}definitions", "Definitions", "What can be started.", READ, _definitions),
    ServedResource(f"{SCHEME}definitions/{{kind}}/{{id}}", "Definition", "A definition.", READ, _definition),
)
