"""The data of a page about a run: events in both directions, whole values, the timeline and the graph."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal, cast

import orjson
from fastapi import Path, Query, Request
from starlette.responses import Response

from runlane import queries
from runlane.access.policy import tenant_to_use
from runlane.api.auth import RunsRead
from runlane.api.cut_values import cut_line
from runlane.api.error_responses import answers
from runlane.api.router import RawRouter
from runlane.api.routes.runs import MAX_SEQ
from runlane.api.routes.visibility import RunId, require_visible
from runlane.api.schemas.fields import MAX_PAGE, Moment, Name, StepPath, moment_us
from runlane.api.schemas.runs import EventsPage
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.api.sse_encoding import line_json
from runlane.definitions.graph_view import graph_view
from runlane.definitions.schema.definition import Orchestration
from runlane.domain.graph_view import OrchestrationGraph, RunGraph
from runlane.domain.timeline import Timeline
from runlane.errors import NotFound
from runlane.orchestration.run_graph import read_run_graph
from runlane.store.definitions import find_version, load_pinned, pins
from runlane.store.orchestration.steps import read_step_value
from runlane.store.orchestration.timeline import read_timeline
from runlane.store.queue.event_pages import EventQuery, read_event_range, read_event_value
from runlane.store.queue.runs import find_run

single = RawRouter(tags=["runs"])
collection = RawRouter(tags=["orchestrations"])

MAX_SPANS = 5000
MAX_TYPES = 50
ValueRef = Annotated[
    str,
    Path(
        max_length=2200,
        description="`input`, `result`, `state`, `events/NUMBER/NAME`, or `steps/input|output|error/PATH`.",
        examples=["events/12/final_state"],
    ),
]


@single.get("/{run_id}/events", response_model=EventsPage, responses=answers(404))
async def get_events(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    after: Annotated[int, Query(ge=0, le=MAX_SEQ, description="Only events after this number.")] = 0,
    before: Annotated[int | None, Query(ge=1, le=MAX_SEQ, description="Only events before this number.")] = None,
    order: Annotated[Literal["asc", "desc"], Query(description="`desc` for the newest first.")] = "asc",
    type: Annotated[  # noqa: A002 - the name of the parameter in the address
        list[Name] | None, Query(max_length=MAX_TYPES, description="Only these types. Repeat for several.")
    ] = None,
    path_prefix: Annotated[
        StepPath | None, Query(description="Only events of steps whose path begins with this value.")
    ] = None,
    max_value_bytes: Annotated[
        int | None, Query(ge=64, le=10_000_000, description='Longer values become `{"$cut": bytes, "href": ...}`.')
    ] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 500,
) -> Response:
    """List stored events, each in the JSON format of the stream. A page scans at most 20,000 events."""
    parts = parts_of(request)
    standing = await require_visible(parts, principal, run_id)
    wanted = EventQuery(
        after=max(after, standing.first_seq - 1),
        before=min(before or MAX_SEQ, standing.last_seq + 1),
        limit=limit,
        newest_first=order == "desc",
        types=type or (),
        path_prefix=path_prefix,
    )
    found = await read_event_range(parts.database, run_id, wanted)
    lines = [line if max_value_bytes is None else cut_line(run_id, line, max_value_bytes) for line in found.lines]
    highest = max((line.seq for line in lines), default=after)
    plain = order == "asc" and not type and path_prefix is None
    if order == "asc" and found.looked_at is None and not plain and before is None:
        # All events up to the end were scanned, although not all of them matched.
        highest = max(highest, standing.last_seq)
    head = orjson.dumps(
        {
            "run_id": run_id,
            "count": len(lines),
            "next_after": highest if found.looked_at is None or order == "desc" else found.looked_at,
            "next_before": found.looked_at if order == "desc" else None,
            "last_seq": max(standing.last_seq, highest if lines else 0),
            "first_seq": queries.first_kept(standing, after, lines if plain else ()),
        }
    ).decode()
    events = ",".join(line_json(run_id, line) for line in lines)
    return Response(f'{head[:-1]},"events":[{events}]}}', media_type="application/json")


@single.get("/{run_id}/values/{ref:path}", response_model=Any, responses=answers(404))
async def get_value(request: Request, principal: RunsRead, run_id: RunId, ref: ValueRef) -> Response:
    """Return one whole value of a run: the input, the result, or a value that an event or a step has in part."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    found, value = False, None
    match ref.split("/", 2):
        case ["input" | "result" | "state" as name]:
            found, value = True, getattr(await queries.get_run(parts.database, run_id), name)
        case ["events", number, name] if number.isdecimal() and len(number) <= 10:
            found, value = await read_event_value(parts.database, run_id, int(number), name)
        case ["steps", ("input" | "output" | "error") as name, path]:
            found, value = await read_step_value(parts.database, run_id, path, name)
        case _:
            pass
    if not found:
        raise NotFound(f'Run {run_id} has no value "{ref[:200]}". Use an address from an event or a step.')
    # A browser must save the value and never show it as a page, so the name is set and the type must not be guessed.
    headers = {
        "Content-Disposition": f'attachment; filename="{run_id}.json"',
        "X-Content-Type-Options": "nosniff",
    }
    return JsonBody(value, headers=headers)


@single.get("/{run_id}/timeline", response_model=Timeline, responses=answers(404))
async def get_timeline(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    parent: Annotated[str, Query(max_length=2000, description="Only spans inside this span.")] = "",
    started_before: Annotated[Moment | None, Query(description="Only spans that begin before this time.")] = None,
    ended_after: Annotated[Moment | None, Query(description="Only spans that end at this time or later.")] = None,
    cursor: Annotated[Name | None, Query(description="`next_cursor` of the previous page.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_SPANS)] = 2000,
) -> ValueBody:
    """Return the steps of a run as spans of time: finished, running and waiting steps.

    A loop or a parallel step with more than 20 parts is one span; `parent` selects its parts. Model and tool calls are
    returned inside the span that `parent` names.
    """
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    run = await find_run(parts.database, run_id)
    return ValueBody(
        await read_timeline(
            parts.database,
            run,
            parent=parent,
            from_us=None if ended_after is None else moment_us(ended_after),
            to_us=None if started_before is None else moment_us(started_before),
            cursor=cursor,
            limit=limit,
        )
    )


@single.get("/{run_id}/graph", response_model=RunGraph, responses=answers(404))
async def get_run_graph(
    request: Request,
    principal: RunsRead,
    run_id: RunId,
    path: Annotated[str, Query(max_length=2000, description="The step that runs an inner orchestration.")] = "",
) -> ValueBody:
    """Return the graph of the run's version, with the status of each step in this run."""
    parts = parts_of(request)
    await require_visible(parts, principal, run_id)
    return ValueBody(await read_run_graph(parts.database, await find_run(parts.database, run_id), path))


@collection.get("/orchestrations/{name}/graph", response_model=OrchestrationGraph, responses=answers(404))
async def get_orchestration_graph(
    request: Request,
    principal: RunsRead,
    name: Annotated[Name, Path(description="The orchestration's id.", examples=["article"])],
    version: Annotated[Name | None, Query(description="The version; default is the current version.")] = None,
    tenant: Annotated[
        Name | None, Query(description="The tenant, for platform admins. Other keys use their own tenant.")
    ] = None,
) -> ValueBody:
    """Return the steps of an orchestration and the edges between them, as `runlane graph` draws them."""
    database, owner = parts_of(request).database, tenant_to_use(principal, tenant)
    key = f"orchestration:{name}"
    if version is None:
        version = (await pins(database, owner, name))[key]
    else:
        await find_version(database, owner, "orchestration", name, version)
    found = (await load_pinned(database, owner, {key: version}))[key]
    # A large graph takes up to a second.
    return ValueBody(await asyncio.to_thread(graph_view, cast("Orchestration", found), version))
