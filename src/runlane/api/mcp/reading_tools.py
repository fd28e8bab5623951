"""Tools that read: runs, their logs and events, questions, dead letters and definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import orjson
from pydantic import Field

from runlane import queries
from runlane.access.policy import require_content, tenant_to_list
from runlane.api.mcp.tool import READ, CallContext, ServedTool, typed_tool
from runlane.api.schemas.fields import Key, Name, RequestModel, RunId, Tag
from runlane.api.sse_encoding import line_json
from runlane.definitions.schema.definition import Kind
from runlane.domain.dead_letter import UNHANDLED, LetterState
from runlane.domain.run import Status
from runlane.domain.tags import MAX_TAGS
from runlane.domain.wire import to_dict
from runlane.store.definitions import find_definition, list_definitions
from runlane.store.failures.letters import LetterFilter, LetterNotFound, list_letters, read_letter
from runlane.store.orchestration.inbox import InboxFilter
from runlane.store.queue.events import read_page
from runlane.store.queue.search import RunFilter

_MAX_SEQ: Final = 2**31 - 1
# A page ends at this size even if its limit is not reached, because a model must read it.
_PAGE_BYTES: Final = 256 * 1024

PageLimit = Annotated[int, Field(ge=1, le=200, description="The size of a page.")]
Cursor = Annotated[str | None, Field(max_length=2200, description="next_cursor of the previous page.")]
TargetKind = Literal["task", "orchestration", "agent", "tool", "mcp_server", "schedule", "trigger"]


class GetRunArguments(RequestModel):
    """Return a run with its input, its result or error, its progress and its open waits."""

    run_id: RunId = Field(description="The run.")


class ListRunsArguments(RequestModel):
    """Find runs, newest first, without their input and result."""

    status: list[Status] = Field(default_factory=list[Status], max_length=10, description="Runs with one of these.")
    target: Name | None = Field(default=None, description="The task, orchestration:ID or agent:ID.")
    lane: Name | None = Field(default=None, description="The lane.")
    ordering_key: Key | None = Field(default=None, description="The ordering key.")
    tags: list[Tag] = Field(default_factory=list[Tag], max_length=MAX_TAGS, description="Runs that have all of them.")
    text: Name | None = Field(default=None, description="Part of the id, target, ordering key or progress note.")
    cursor: Cursor = None
    limit: PageLimit = 20


class ReadLogsArguments(RequestModel):
    """Return log lines of a run from an index: every event as text, or only the events of one type."""

    run_id: RunId = Field(description="The run.")
    since: int = Field(default=0, ge=0, le=_MAX_SEQ, description="next_index of the previous page.")
    event: Name | None = Field(default=None, description="Only lines of this event type, such as log.")
    limit: PageLimit = 100


class ReadEventsArguments(RequestModel):
    """Return stored events of a run after a number, each as JSON: steps, model answers, tool calls, errors."""

    run_id: RunId = Field(description="The run.")
    after: int = Field(default=0, ge=0, le=_MAX_SEQ, description="next_after of the previous page.")
    limit: PageLimit = 50


class ListQuestionsArguments(RequestModel):
    """List the questions that wait for a person, oldest first. Answer with answer_run."""

    cursor: Cursor = None
    limit: PageLimit = 20


class ListDeadLettersArguments(RequestModel):
    """Find runs that failed for good, latest first, with the cause. Retry one with retry_run."""

    state: list[LetterState] = Field(
        default_factory=list[LetterState], max_length=10, description="Without it: open and acknowledged."
    )
    target: Name | None = Field(default=None, description="The task, orchestration:ID or agent:ID.")
    code: Name | None = Field(default=None, description="The code of the step, or the type of the exception.")
    fingerprint: Name | None = Field(default=None, description="Failures with this cause.")
    text: Name | None = Field(default=None, description="Part of the message, the run's id or the target.")
    cursor: Cursor = None
    limit: PageLimit = 20


class GetDeadLetterArguments(RequestModel):
    """Return a dead letter with the input, the error, every attempt and the last steps of its run."""

    run_id: RunId = Field(description="The run that failed.")


class ListDefinitionsArguments(RequestModel):
    """List the targets that can be started (tasks, orchestrations and agents), or the definitions of another kind."""

    kind: TargetKind | None = Field(default=None, description="Without it: tasks, orchestrations and agents.")
    cursor: Cursor = None
    limit: PageLimit = 100


class GetDefinitionArguments(RequestModel):
    """Return the current version of a definition, with its content."""

    kind: Literal["orchestration", "agent", "tool", "mcp_server", "schedule", "trigger"] = Field(
        description="Its kind."
    )
    name: Name = Field(description="Its id.")


async def _get_run(caller: CallContext, given: GetRunArguments) -> Mapping[str, Any]:
    await caller.standing(given.run_id)
    return to_dict(await queries.get_run(caller.parts.database, given.run_id))


async def _list_runs(caller: CallContext, given: ListRunsArguments) -> Mapping[str, Any]:
    wanted = RunFilter(
        statuses=tuple(given.status),
        target=given.target,
        lane=given.lane,
        tenant=tenant_to_list(caller.principal),
        ordering_key=given.ordering_key,
        text=given.text,
        tags=tuple(given.tags),
    )
    async with caller.parts.searches.turn(caller.principal):
        return to_dict(await queries.list_runs(caller.parts.database, wanted, given.cursor, given.limit))


async def _read_logs(caller: CallContext, given: ReadLogsArguments) -> Mapping[str, Any]:
    standing = await caller.standing(given.run_id)
    database = caller.parts.database
    return to_dict(await queries.get_logs(database, given.run_id, standing, given.since, given.limit, given.event))


async def read_events(caller: CallContext, run_id: str, after: int, limit: int) -> dict[str, Any]:
    """Return a page of the events of a run that the caller may see: at least one event, then up to `_PAGE_BYTES`."""
    standing = await caller.standing(run_id)
    events: list[Any] = []
    size = 0
    for line in await read_page(caller.parts.database, run_id, after, limit):
        text = line_json(run_id, line)
        size += len(text)
        if events and size > _PAGE_BYTES:
            break
        events.append(orjson.loads(text))
        after = line.seq
    last = max(standing.last_seq, after)
    return {"run_id": run_id, "events": events, "next_after": after, "last_seq": last, "status": standing.status.value}


async def _read_events(caller: CallContext, given: ReadEventsArguments) -> Mapping[str, Any]:
    return await read_events(caller, given.run_id, given.after, given.limit)


async def _list_questions(caller: CallContext, given: ListQuestionsArguments) -> Mapping[str, Any]:
    wanted = InboxFilter(tenant_to_list(caller.principal))
    return to_dict(await queries.get_inbox(caller.parts.database, wanted, given.cursor, given.limit))


async def _list_dead_letters(caller: CallContext, given: ListDeadLettersArguments) -> Mapping[str, Any]:
    wanted = LetterFilter(
        tuple(given.state) or UNHANDLED,
        tenant_to_list(caller.principal),
        given.target,
        code=given.code,
        fingerprint=given.fingerprint,
        text=given.text,
    )
    async with caller.parts.searches.turn(caller.principal):
        return to_dict(await list_letters(caller.parts.database, wanted, cursor=given.cursor, limit=given.limit))


async def _get_dead_letter(caller: CallContext, given: GetDeadLetterArguments) -> Mapping[str, Any]:
    letter = await read_letter(caller.parts.database, given.run_id)
    if letter is None or not caller.sees(letter.tenant):
        raise LetterNotFound(given.run_id)
    require_content(caller.principal, letter.target)
    return to_dict(letter)


async def list_targets(
    caller: CallContext, kind: TargetKind | None, cursor: str | None = None, limit: int = 100
) -> dict[str, Any]:
    """Return registered tasks, and a page of the definitions of a kind or the first page of each startable kind."""
    if kind is not None and kind != "task":
        found = await list_definitions(caller.parts.database, caller.principal.tenant, kind, after=cursor, limit=limit)
        following = found[-1].id if len(found) == limit else None
        return {"definitions": [{"kind": kind, **to_dict(item)} for item in found], "next_cursor": following}
    tasks = [
        {"kind": "task", "id": task.name, "signature": task.signature, "description": task.about, "lane": task.lane}
        for _, task in sorted(caller.parts.app.tasks.items())
    ]
    startable: tuple[Kind, ...] = () if kind == "task" else ("orchestration", "agent")
    listed = list[dict[str, Any]](tasks)
    for each in startable:
        listed += (await list_targets(caller, each, limit=limit))["definitions"]
    return {"definitions": listed, "next_cursor": None}


async def _list_definitions(caller: CallContext, given: ListDefinitionsArguments) -> Mapping[str, Any]:
    return await list_targets(caller, given.kind, given.cursor, given.limit)


async def _get_definition(caller: CallContext, given: GetDefinitionArguments) -> Mapping[str, Any]:
    return await read_definition(caller, given.kind, given.name)


async def read_definition(caller: CallContext, kind: Kind, name: str) -> dict[str, Any]:
    """Return the current version of a definition of the caller's tenant."""
    return to_dict(await find_definition(caller.parts.database, caller.principal.tenant, kind, name))


READING_TOOLS: Final[tuple[ServedTool, ...]] = (
    typed_tool("get_run", "Read a run", GetRunArguments, READ, _get_run, read_only=True),
    typed_tool("list_runs", "Find runs", ListRunsArguments, READ, _list_runs, read_only=True),
    typed_tool("read_logs", "Read the log of a run", ReadLogsArguments, READ, _read_logs, read_only=True),
    typed_tool("read_events", "Read the events of a run", ReadEventsArguments, READ, _read_events, read_only=True),
    typed_tool("list_questions", "List open questions", ListQuestionsArguments, READ, _list_questions, read_only=True),
    typed_tool(
        "list_dead_letters", "Find failed runs", ListDeadLettersArguments, READ, _list_dead_letters, read_only=True
    ),
    typed_tool("get_dead_letter", "Read a dead letter", GetDeadLetterArguments, READ, _get_dead_letter, read_only=True),
    typed_tool(
        "list_definitions", "List definitions", ListDefinitionsArguments, READ, _list_definitions, read_only=True
    ),
    typed_tool("get_definition", "Read a definition", GetDefinitionArguments, READ, _get_definition, read_only=True),
)
