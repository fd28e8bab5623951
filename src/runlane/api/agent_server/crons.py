"""Crons: runs of an assistant that a schedule starts. A cron is a schedule of Runlane, so each slot starts one run."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Path, Request
from pydantic import ValidationError
from starlette.responses import Response

from runlane.api.agent_auth.guard import rule_of
from runlane.api.agent_auth.user_config import with_user
from runlane.api.agent_server.cron_schemas import CronBody, CronCount, CronPatch, CronSearch, end_moment
from runlane.api.agent_server.routing import agent_router, check_uuid, page_headers, selected
from runlane.api.agent_server.threads import ThreadId
from runlane.api.auth import RunsRead, SchedulesWrite
from runlane.api.error_responses import answers
from runlane.api.serializers import JsonBody, ValueBody
from runlane.api.services import parts_of
from runlane.domain.access import Principal
from runlane.domain.access_rule import AccessRule
from runlane.domain.cron import Cron
from runlane.domain.schedule import CRONS, ScheduleSettings
from runlane.domain.timestamps import format_timestamp
from runlane.domain.validation import first_problem
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest
from runlane.store.schedules import crons as store
from runlane.store.schedules.rows import StoredSchedule
from runlane.store.threads.assistants import find_assistant, resolve_assistant
from runlane.store.threads.threads import find_thread
from runlane.submit.cron_runs import cron_input
from runlane.submit.schedules import Schedules, parse_schedule
from runlane.submit.webhook_urls import check_webhook_url

router = agent_router("crons")

CronId = Annotated[str, Path(description="The cron's id.")]
_DISABLED = "The cron is disabled."
# A firing does not wait for earlier runs. If runs share a thread, their multitask strategy decides.
_MAX_OPEN = 1000


@router.post("/runs/crons", response_model=Cron, responses=answers(404, 409, 413, 429))
async def create_cron(request: Request, principal: SchedulesWrite, body: CronBody) -> ValueBody:
    """Create a cron. Each of its runs has its own thread."""
    return await _create(request, principal, body, None)


@router.post("/threads/{thread_id}/runs/crons", response_model=Cron, responses=answers(404, 409, 413, 429))
async def create_thread_cron(
    request: Request, principal: SchedulesWrite, thread_id: ThreadId, body: CronBody
) -> ValueBody:
    """Create a cron whose runs belong to a thread."""
    if body.on_run_completed is not None:
        raise InvalidRequest("on_run_completed requires a cron without a thread. Omit it.")
    thread = await find_thread(parts_of(request).database, principal.tenant, check_uuid(thread_id, "thread id"))
    return await _create(request, principal, body, thread.id)


@router.post("/runs/crons/search", response_model=list[Cron], responses=answers(404))
async def search_crons(request: Request, principal: RunsRead, body: CronSearch | None = None) -> JsonBody:
    """Find crons, newest first unless another order is given."""
    wanted = body or CronSearch()
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        page, more = await store.search_crons(
            parts.database,
            principal.tenant,
            await _filter(request, principal, wanted, wanted.enabled),
            sort_by=wanted.sort_by or "created_at",
            descending=wanted.sort_order != "asc",
            limit=wanted.limit,
            offset=wanted.offset,
        )
    headers = page_headers(wanted.offset, len(page), more=more)
    return JsonBody([_selected(row, wanted.select) for row in page], headers=headers)


@router.post("/runs/crons/count", response_model=int, responses=answers(404))
async def count_crons(request: Request, principal: RunsRead, body: CronCount | None = None) -> JsonBody:
    """Return the number of crons that match."""
    wanted = await _filter(request, principal, body or CronCount(), None)
    parts = parts_of(request)
    async with parts.searches.turn(principal):
        return JsonBody(await store.count_crons(parts.database, principal.tenant, wanted))


@router.get("/runs/crons/{cron_id}", response_model=Cron, responses=answers(404))
async def get_cron(request: Request, principal: RunsRead, cron_id: CronId) -> ValueBody:
    """Return a cron."""
    return await _answer(request, principal, cron_id, rule_of(request))


@router.patch("/runs/crons/{cron_id}", response_model=Cron, responses=answers(404, 409, 412, 413))
async def update_cron(request: Request, principal: SchedulesWrite, cron_id: CronId, body: CronPatch) -> ValueBody:
    """Change a cron. Metadata is merged; a null `end_time` removes the end."""
    verbs = await _verbs(request)
    known = await store.find_cron(parts_of(request).database, principal.tenant, cron_id, rule_of(request))
    merged = _merged(known, body)
    check_webhook_url(parts_of(request).app.agent_server.webhook_urls, merged.webhook)
    target = known.settings.target
    settings = _settings(request, principal, merged, known.id, target.name, target.thread_id)
    if settings != known.settings:
        await verbs.put(principal.tenant, settings, actor=principal.actor, version=known.version, source=CRONS)
    if body.enabled is not None and body.enabled != (known.paused_at_us is None):
        if body.enabled:
            await verbs.resume(principal.tenant, cron_id, actor=principal.actor)
        else:
            await verbs.pause(principal.tenant, cron_id, _DISABLED, actor=principal.actor)
    return await _answer(request, principal, cron_id)


@router.delete("/runs/crons/{cron_id}", status_code=204, response_class=Response, responses=answers(404))
async def delete_cron(request: Request, principal: SchedulesWrite, cron_id: CronId) -> Response:
    """Delete a cron. Runs that it has started continue."""
    await store.find_cron(parts_of(request).database, principal.tenant, cron_id, rule_of(request))
    await (await _verbs(request)).delete(principal.tenant, cron_id, actor=principal.actor, source=CRONS)
    return Response(status_code=204)


async def _create(request: Request, principal: Principal, body: CronBody, thread_id: str | None) -> ValueBody:
    parts = parts_of(request)
    check_webhook_url(parts.app.agent_server.webhook_urls, body.webhook)
    assistant = await resolve_assistant(parts.database, principal.tenant, body.assistant_id)
    settings = _settings(request, principal, body, str(uuid.uuid4()), assistant.id, thread_id)
    await (await _verbs(request)).create(
        principal.tenant,
        settings,
        actor=principal.actor,
        source=CRONS,
        paused=_DISABLED if body.enabled is False else None,
    )
    return await _answer(request, principal, settings.id)


async def _answer(request: Request, principal: Principal, cron_id: str, rule: AccessRule | None = None) -> ValueBody:
    """Return the response with a cron. No rule is applied to a cron that this request has stored."""
    found = await store.find_cron(parts_of(request).database, principal.tenant, cron_id, rule)
    return ValueBody(store.cron_value(found))


def _settings(
    request: Request, principal: Principal, body: CronBody, cron_id: str, assistant_id: str, thread_id: str | None
) -> ScheduleSettings:
    """Return the schedule of a cron. The user of this request is the user of its runs.

    The threads that it creates get the default time to live that is configured now.
    """
    ttl = parts_of(request).app.agent_server.thread_ttl if thread_id is None else None
    wanted = replace(body.to_run(thread_id), ttl=ttl)
    config = dict(with_user(wanted.request, principal).config)
    config["configurable"] = {**config.get("configurable", {}), "cron_id": cron_id}
    wanted = replace(wanted, request=replace(wanted.request, config=config))
    target = {"kind": "assistant", "name": assistant_id} | ({} if thread_id is None else {"thread_id": thread_id})
    given: dict[str, Any] = {
        "id": cron_id,
        "target": target,
        "spec": [{"cron": body.schedule}],
        "zone": body.timezone,
        "ends_at": body.ends_at,
        "input": cron_input(wanted, body.payload(assistant_id, cron_id), body.metadata or {}),
        "overlap": "allow",
        "max_open": _MAX_OPEN,
        "webhook_url": body.webhook,
    }
    return parse_schedule({name: value for name, value in given.items() if value is not None})


def _merged(known: StoredSchedule, patch: CronPatch) -> CronBody:
    """Return the request that creates the cron with the changes of the patch."""
    stored = known.settings.input
    payload = {**stored["payload"], "input": stored["request"].get("input")}
    configurable = {name: value for name, value in payload["config"]["configurable"].items() if name != "cron_id"}
    payload["config"] = {**payload["config"], "configurable": configurable or None}
    changed = patch.changed()
    if "metadata" in changed:
        changed["metadata"] = {**payload.get("metadata", {}), **changed["metadata"]}
    if changed.get("end_time") is not None:
        changed["end_time"] = end_moment(changed["end_time"])
    # Context and config replace each other, as in a request.
    if "context" in changed and "config" not in changed:
        payload["config"] = {**payload["config"], "configurable": None}
    if "config" in changed:
        payload.pop("context", None)
    try:
        return CronBody.model_validate({**payload, **changed})
    except ValidationError as error:
        raise InvalidRequest(first_problem(error, "cron")) from None


async def _filter(request: Request, principal: Principal, wanted: CronCount, enabled: bool | None) -> store.CronFilter:
    assistant_id = wanted.assistant_id
    if assistant_id is not None:
        assistant_id = (await find_assistant(parts_of(request).database, principal.tenant, assistant_id)).id
    return store.CronFilter(assistant_id, wanted.thread_id, enabled, wanted.metadata or None, rule_of(request))


def _selected(row: StoredSchedule, select: list[Any] | None) -> dict[str, Any]:
    shown = selected(to_dict(store.cron_value(row)), select)
    return {**shown, "now": format_timestamp(row.now_us)} if select and "now" in select else shown


async def _verbs(request: Request) -> Schedules:
    return await parts_of(request).app.schedules()
