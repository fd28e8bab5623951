"""The endpoints of A2A: the card of an agent, and JSON-RPC."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final, cast

import orjson
from fastapi import Path, Request
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from runlane.api.a2a.card import PROTOCOL_VERSION, agent_card
from runlane.api.a2a.errors import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    NO_EXTENDED_CARD,
    PARSE_ERROR,
    UNSUPPORTED_OPERATION,
    VERSION_NOT_SUPPORTED,
    ProtocolRefusal,
    code_of,
    error_body,
)
from runlane.api.a2a.methods import (
    cancel_task,
    delete_push,
    get_push,
    get_task,
    list_push,
    list_tasks,
    send_message,
    set_push,
)
from runlane.api.a2a.params import ListParams, Params, PushOfTask, PushParams, SendParams, TaskParams
from runlane.api.a2a.stream import TaskRenderer
from runlane.api.a2a.tasks import TERMINAL, TaskSnapshot, read_task
from runlane.api.auth import RunsRead
from runlane.api.body import LargeBodyRoute
from runlane.api.error_responses import answers
from runlane.api.openai.ids import AnswerId
from runlane.api.openai.reader import AnswerReader, Subject
from runlane.api.router import RawRouter
from runlane.api.schemas.fields import Name
from runlane.api.serializers import JsonBody
from runlane.api.services import Services, parts_of
from runlane.api.sse import EventStream
from runlane.domain.access import Principal
from runlane.domain.validation import listed_errors, too_many
from runlane.errors import RunlaneError
from runlane.store.definitions import find_definition

router = RawRouter(tags=["a2a"], route_class=LargeBodyRoute)

PREFIX: Final = "/a2a"
CARD: Final = "/agents/{agent_id}/.well-known/agent-card.json"
AgentId = Annotated[Name, Path(description="The agent's id.", examples=["helper"])]
# The interval of the check whether the client has disconnected.
_CHECK_SECONDS: Final = 5.0
_Method = Callable[[Services, Principal, str, Any], Awaitable[dict[str, Any]]]


async def _task(parts: Services, principal: Principal, agent: str, params: TaskParams) -> dict[str, Any]:
    return (await get_task(parts, principal, agent, params.id)).to_dict(params.history_length)


# The methods that return one value. The others return a stream or start a run.
_METHODS: Final[Mapping[str, tuple[type[Params], _Method]]] = {
    "GetTask": (TaskParams, _task),
    "CancelTask": (TaskParams, cancel_task),
    "ListTasks": (ListParams, list_tasks),
    "CreateTaskPushNotificationConfig": (PushParams, set_push),
    "GetTaskPushNotificationConfig": (PushOfTask, get_push),
    "ListTaskPushNotificationConfigs": (PushOfTask, list_push),
    "DeleteTaskPushNotificationConfig": (PushOfTask, delete_push),
}


@router.get(CARD, response_model=dict[str, Any], responses=answers(404))
async def get_agent_card(request: Request, principal: RunsRead, agent_id: AgentId) -> JsonBody:
    """Return the agent card: the URL of the agent and the content that it accepts."""
    found = await find_definition(parts_of(request).database, principal.tenant, "agent", agent_id)
    url = str(request.url.replace(path=f"{PREFIX}/agents/{agent_id}", query=""))
    return JsonBody(agent_card(agent_id, found.body, str(found.version), url))


@router.post("/agents/{agent_id}", response_model=dict[str, Any], responses=answers(404, 413, 429))
async def call_agent(request: Request, principal: RunsRead, agent_id: AgentId) -> Response:
    """Call a method of A2A. Protocol errors are part of the JSON-RPC response; a stream has one response per frame."""
    await find_definition(parts_of(request).database, principal.tenant, "agent", agent_id)
    rpc_id: Any = None
    try:
        call = _parsed(await request.body())
        rpc_id = call.get("id")
        _check_version(request)
        return await _call(request, principal, agent_id, call)
    except ProtocolRefusal as error:
        return JSONResponse(error_body(rpc_id, error.code, str(error)))
    except RunlaneError as error:
        code = code_of(error)
        if code is None:
            raise
        return JSONResponse(error_body(rpc_id, code, str(error)))


async def _call(request: Request, principal: Principal, agent: str, call: Mapping[str, Any]) -> Response:
    method, given, rpc_id = call["method"], call.get("params"), call.get("id")
    parts = parts_of(request)
    if method in ("SendMessage", "SendStreamingMessage"):
        params = _params(SendParams, given)
        run_id = await send_message(request, principal, agent, params)
        task = await read_task(parts.database, run_id)
        if method == "SendStreamingMessage":
            return await _stream(parts, principal, task, rpc_id)
        configuration = params.configuration
        if not configuration.return_immediately and not task.rests:
            await _until_rest(request, principal, task)
            task = await read_task(parts.database, run_id)
        return _result(rpc_id, {"task": task.to_dict(configuration.history_length)})
    if method == "SubscribeToTask":
        task = await get_task(parts, principal, agent, _params(TaskParams, given).id)
        if task.run.status in TERMINAL:
            raise ProtocolRefusal(
                UNSUPPORTED_OPERATION, f'The task "{task.run.id}" has ended, so it has no updates. Read it: GetTask'
            )
        return await _stream(parts, principal, task, rpc_id)
    if method == "GetExtendedAgentCard":
        raise ProtocolRefusal(NO_EXTENDED_CARD, "Agents have one card.")
    if method not in _METHODS:
        raise ProtocolRefusal(METHOD_NOT_FOUND, f'The method "{str(method)[:60]}" does not exist.')
    model, perform = _METHODS[method]
    return _result(rpc_id, await perform(parts, principal, agent, _params(model, given)))


async def _stream(parts: Services, principal: Principal, task: TaskSnapshot, rpc_id: Any) -> Response:
    """Return the stream of a task. It ends when the task ends or needs input; a disconnect does not stop the run."""
    return EventStream(await _reader(parts, principal, task, rpc_id), {"x-runlane-run-id": task.run.id})


async def _until_rest(request: Request, principal: Principal, task: TaskSnapshot) -> None:
    """Wait until the task has ended or needs input, or the client has disconnected."""
    reader = await _reader(parts_of(request), principal, task, None)
    try:
        while not reader.ended and not await request.is_disconnected():
            await reader.next(_CHECK_SECONDS)
    finally:
        reader.close()


async def _reader(parts: Services, principal: Principal, task: TaskSnapshot, rpc_id: Any) -> AnswerReader:
    seq = task.fold.seq
    follower = await parts.follow(principal, task.run.id, seq)
    subject = Subject(AnswerId(task.run.id, seq), task.run.agent or "", 0, task.context_id, ())
    reader = AnswerReader(parts.database, follower, subject, TaskRenderer(task, rpc_id))
    # The reader continues from the current state of the task, so that its text is not sent again.
    reader.fold = task.fold
    return reader


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        call: Any = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProtocolRefusal(PARSE_ERROR, f"The body is not JSON: {error}.") from None
    if not _is_call(call):
        raise ProtocolRefusal(
            INVALID_REQUEST, 'The body is not a request of JSON-RPC 2.0. Send "jsonrpc" and "method".'
        )
    return cast("dict[str, Any]", call)


def _is_call(call: Any) -> bool:
    if not isinstance(call, dict):
        return False
    fields = cast("dict[str, Any]", call)
    named = isinstance(fields.get("method"), str) and isinstance(fields.get("id"), str | int | None)
    return fields.get("jsonrpc") == "2.0" and named


def _params(model: type[Any], given: Any) -> Any:
    try:
        return model.model_validate({} if given is None else given)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in listed_errors(error, 5)
        )
        raise ProtocolRefusal(
            INVALID_PARAMS, f"The parameters are invalid: {problems or too_many(error).rstrip('.')}."
        ) from None


def _check_version(request: Request) -> None:
    wanted = request.headers.get("a2a-version")
    if wanted and wanted.partition(".")[0] != PROTOCOL_VERSION.partition(".")[0]:
        raise ProtocolRefusal(
            VERSION_NOT_SUPPORTED, f'The version "{wanted[:20]}" is not supported. Use {PROTOCOL_VERSION}.'
        )


def _result(rpc_id: Any, result: Any) -> Response:
    return Response(orjson.dumps({"jsonrpc": "2.0", "id": rpc_id, "result": result}), media_type="application/json")
