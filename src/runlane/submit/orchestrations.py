"""Requests that start, fork or answer runs of orchestrations and agents, checked against the definitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, cast

from runlane.definitions.forms import check_decision, validate
from runlane.definitions.schema.definition import Agent, Definition, Orchestration, Tool
from runlane.definitions.schema.step import HumanField
from runlane.domain.access import PLATFORM_ADMIN
from runlane.domain.conversation import PLAN_KEY, RequestConversation
from runlane.domain.lane import DEFAULT_LANE
from runlane.domain.options import RunOptions
from runlane.domain.run import AGENT, ORCHESTRATION, Accepted
from runlane.domain.task import input_json
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.tenant_event import MAX_EVENT_BYTES
from runlane.domain.text import check_text, dump_json, load_json, shown, utf8_size
from runlane.errors import Forbidden, InputTooLarge, InvalidRequest, NotFound, UnknownTask, WrongState
from runlane.store.definitions import load_pinned, pins
from runlane.store.orchestration.fork import fork_run
from runlane.store.orchestration.resume import answer_wait, resume_run, store_event
from runlane.store.orchestration.waits import Wait, read_waits
from runlane.store.queue.accept import NewRun
from runlane.store.queue.run_changes import RunChange
from runlane.store.queue.search import find_standing
from runlane.store.sql.database import Database
from runlane.submit.flow_control import EMPTY_ITEMS, StartFlow, batch_item, start_flow
from runlane.submit.repeats import forked_run
from runlane.submit.tasks import MAX_KEY, capped_losses, new_run

_MAX_ATTEMPTS = 3


class StartRequest(NamedTuple):
    """A run of an orchestration or agent to accept. `name` is the id of its definition.

    `conversation` has the earlier messages, instructions and settings that the agent also receives.
    """

    name: str
    message: str = ""
    input: Mapping[str, Any] | None = None
    options: RunOptions = RunOptions()
    pins: Mapping[str, str] | None = None
    parent: Mapping[str, str] | None = None
    kind: Literal["orchestration", "agent"] = "orchestration"
    conversation: RequestConversation | None = None

    @property
    def target(self) -> str:
        """Return the target of the run, which is also the definition's name among the pins."""
        return f"{ORCHESTRATION if self.kind == 'orchestration' else AGENT}{self.name}"


async def orchestration_run(
    database: Database,
    start: StartRequest,
    *,
    tasks: Collection[str],
    max_input_bytes: int,
    max_losses: int,
    tenant: str = DEFAULT_TENANT,
    trace: str | None = None,
) -> NewRun:
    """Return the run to accept, pinned to the current versions, or to those of the run that starts it."""
    pinned = dict(start.pins) if start.pins is not None else await pins(database, tenant, start.name, start.kind)
    definitions = await load_pinned(database, tenant, pinned)
    root: Definition | None = definitions[start.target]
    if isinstance(root, Agent):
        root = definitions.get(f"{ORCHESTRATION}{root.orchestration_id}")
    if tasks:
        for definition in definitions.values():
            _check_tasks(definition, tasks)
    _check_types(start)
    body = {"message": start.message, "input": dict(start.input or {})}
    text = input_json(body, start.name)
    flow = _flow(definitions[start.target], start, text)
    if flow is not None and flow.item:
        if start.conversation:
            raise InvalidRequest(
                f'The agent "{start.name}" collects messages in batches, so a request cannot add earlier messages, '
                "instructions or settings. Leave them out."
            )
        text = input_json({"message": "", "input": EMPTY_ITEMS}, start.name)
    carried = start.conversation.to_plan() if start.conversation else None
    size = len(text) + (0 if carried is None else len(input_json(carried, start.name)))
    if size > max_input_bytes:
        raise InputTooLarge(
            f"The input has {size} bytes as JSON; at most {max_input_bytes} are allowed "
            "(RUNLANE_MAX_INPUT_BYTES). Store the data elsewhere and pass a reference."
        )
    plan: dict[str, Any] = {"pins": pinned}
    if start.parent is not None:
        plan["parent"] = dict(start.parent)
    if carried is not None:
        plan[PLAN_KEY] = carried
    options = start.options
    if options.session_id is not None:
        plan["session_id"] = check_text(options.session_id, "The session id", MAX_KEY)
    return new_run(
        start.target,
        text.decode(),
        options,
        lane=root.lane if isinstance(root, Orchestration) else DEFAULT_LANE,
        max_attempts=root.max_attempts if isinstance(root, Orchestration) else _MAX_ATTEMPTS,
        # The current bound applies even to a definition that was stored under a higher one.
        max_losses=capped_losses(root.max_losses if isinstance(root, Orchestration) else None, max_losses),
        tenant=tenant,
        trace=trace,
        plan=dump_json(plan),
        mark=[options.webhook_url, options.session_id, *([] if carried is None else [carried])],
        flow=flow,
    )


def _check_types(start: StartRequest) -> None:
    if not isinstance(cast("object", start.message), str):
        raise InvalidRequest("The message must be a string.")
    if not isinstance(cast("object", start.input), Mapping | None):
        raise InvalidRequest(f"The input must be an object, not {shown(start.input)}.")


def _flow(declaring: Definition, start: StartRequest, text: bytes) -> StartFlow | None:
    """Return the flow control of a start: the rules of its definition, with those that the request replaces."""
    declared = declaring.flow_control if isinstance(declaring, (Orchestration, Agent)) else None
    if declared is None and start.options.flow_control is None:
        return None
    body: dict[str, Any] = load_json(text.decode())
    flow = start_flow(declared, start.options, body["input"], body["message"])
    if flow is None or flow.rules.batch is None:
        return flow
    return batch_item(flow, {"start_id": flow.start_id, **body})


def _check_tasks(definition: object, tasks: Collection[str]) -> None:
    if isinstance(definition, Orchestration):
        for step in definition.steps:
            if step.type == "task" and step.task not in tasks:
                raise UnknownTask(step.task, tasks)
    if isinstance(definition, Tool) and definition.tool_type == "task" and definition.task not in tasks:
        raise UnknownTask(definition.task or "", tasks)


async def fork(
    database: Database,
    run_id: str,
    path: str,
    state: Mapping[str, Any],
    idempotency_key: str | None = None,
    *,
    latest: bool = False,
    actor: str = "local",
) -> Accepted:
    """Accept a new run that takes over the steps of this one before `path`, with these changes of its state.

    It is pinned to the same versions, or with `latest` to the current ones.
    """
    no, fresh = await forked_run(database, run_id, path, state, idempotency_key, latest=latest)
    return await fork_run(database, run_id, no, fresh, actor=actor)


async def send_event(database: Database, run_id: str, name: str, data: Any, sent_by: str) -> RunChange:
    """Send a run an event that one of its steps waits for, or will wait for."""
    standing = await find_standing(database, run_id)
    if not standing.target.startswith((ORCHESTRATION, AGENT)):
        raise WrongState(f"Run {run_id} executes the task {standing.target}, and tasks do not wait for events.")
    return await store_event(database, run_id, name, _bounded(data, "The data of the event"), sent_by)


async def answer_run(
    database: Database,
    run_id: str,
    response: Mapping[str, Any] | str,
    *,
    step: str | None,
    answered_by: str,
    platform: bool,
    note: str | None = None,
    opened_at_us: int | None = None,
) -> RunChange:
    """Answer the question of a run; `step` is the id or path of the step that asks, if several do.

    `platform` is true for the answer of a platform admin, which some questions require. With `opened_at_us`, only the
    question that was asked then is answered: its step may have been performed again and ask another one.
    """
    waits = [wait for wait in await read_waits(database, run_id) if wait.kind == "human"]
    if not waits and step is None:
        given = {"response": response} if isinstance(response, str) else response
        return await resume_run(database, run_id, _bounded(given, "The response"))
    wait = _choose(run_id, [wait for wait in waits if not wait.answered], step)
    if wait.answerable_by != "tenant" and not platform:
        raise Forbidden(
            f"The question of run {run_id} at {wait.path} is about a limit that the platform sets for the tenant, so "
            f"only a key with the role {PLATFORM_ADMIN} may answer it. Ask a platform admin, or cancel the run."
        )
    values = check_answer(wait, response)
    return await answer_wait(database, run_id, wait.path, values, answered_by, note, opened_at_us=opened_at_us)


def _bounded(data: Any, what: str) -> Any:
    """Return data as it is stored. Raise InputTooLarge if it is larger than an event may be."""
    text = dump_json(data)
    size = utf8_size(text)
    if size > MAX_EVENT_BYTES:
        raise InputTooLarge(
            f"{what} has {size} bytes as JSON; at most {MAX_EVENT_BYTES} are allowed. Store the data elsewhere and "
            "send a reference."
        )
    return load_json(text)


def check_answer(wait: Wait, response: Mapping[str, Any] | str) -> Any:
    """Return the values of an answer to a question. Raise InvalidInput if its form does not allow them."""
    fields = [HumanField.model_validate(field) for field in wait.request.get("fields", [])]
    values = validate(fields, _with_strings(fields, response))
    schema = wait.request.get("arguments_schema")
    if schema is not None:
        check_decision(values, wait.request["context"]["arguments"], schema)
    return values


def _with_strings(fields: list[HumanField], response: Mapping[str, Any] | str) -> Mapping[str, Any] | str:
    """Return the answer with JSON values of text areas as strings: a program may send JSON where a person types it."""
    if isinstance(response, str):
        return response
    long = {field.name for field in fields if field.type == "textarea"}
    return {
        name: dump_json(value) if name in long and isinstance(value, (dict, list)) else value
        for name, value in response.items()
    }


def _choose(run_id: str, waits: list[Wait], step: str | None) -> Wait:
    fitting = [wait for wait in waits if step is None or step in (wait.path, wait.step_id)]
    if len(fitting) == 1:
        return fitting[0]
    asking = ", ".join(wait.path for wait in waits)
    if not waits:
        raise WrongState(f"Run {run_id} does not wait for a person.")
    if not fitting:
        raise NotFound(f"Step {step!r} of run {run_id} does not wait for a person. These do: {asking}.")
    raise InvalidRequest(f"Several steps of run {run_id} wait for a person: {asking}. Name one as `step`.")
