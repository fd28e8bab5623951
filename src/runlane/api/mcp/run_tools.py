"""Tools that start, follow and change runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from runlane.api.mcp.tool import CHANGE, READ, CallContext, ServedTool, ToolAnswer, typed_tool
from runlane.api.mcp.waiting import follow_run, run_answer
from runlane.api.schemas.fields import Delay, Key, Name, Priority, RequestModel, RunId, StepPath, Tags
from runlane.domain.options import RunOptions
from runlane.domain.run import Accepted, Status
from runlane.errors import Conflict, InvalidRequest
from runlane.observability import tracing
from runlane.submit.chat import ChatRequest
from runlane.submit.orchestrations import StartRequest
from runlane.submit.tasks import TaskRequest

MAX_WAIT_SECONDS: Final = 3600.0
_MAX_SEQ: Final = 2**31 - 1

WaitSeconds = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_WAIT_SECONDS,
        description="Wait this long for the end of the run, with progress notifications. The run continues afterwards.",
    ),
]
IdempotencyKeyArgument = Annotated[
    Key | None,
    Field(description="A repeated call with the same key starts no further run and returns the run of the first call."),
]


class StartRunArguments(RequestModel):
    """Start a run of a task, an agent or an orchestration. The run is durable: it continues after the call ends or is
    interrupted. Its run_id is in the response and in the first progress notification.
    """

    kind: Literal["task", "agent", "orchestration"] = Field(description="What to start.")
    name: Name = Field(description="The name of the task, or the id of the definition; see list_definitions.")
    message: str = Field(default="", description="The request to the agent or orchestration.")
    input: dict[str, Any] = Field(
        default_factory=dict[str, Any], description="The task's arguments by name; for others, values of the state."
    )
    idempotency_key: IdempotencyKeyArgument = None
    wait_seconds: WaitSeconds = 0.0
    priority: Priority = 0
    delay_seconds: Delay = 0.0
    ordering_key: Key | None = Field(default=None, description="Runs with the same key run one at a time, in order.")
    tags: Tags = ()


class ChatArguments(RequestModel):
    """Send a message to an agent as the next turn of a conversation; without session_id, of a new conversation. The
    response contains the session_id. Turns of a session are executed one at a time, in order.
    """

    agent: Name = Field(description="The id of the agent; see list_definitions.")
    message: str = Field(min_length=1, description="The message.")
    session_id: Key | None = Field(default=None, description="The conversation to continue.")
    idempotency_key: IdempotencyKeyArgument = None
    wait_seconds: WaitSeconds = 45.0


class FollowRunArguments(RequestModel):
    """Wait for the end of a run and return its result. Events arrive as progress notifications. The call also returns
    when the run asks a person a question, and after wait_seconds; call it again to continue.
    """

    run_id: RunId = Field(description="The run.")
    after: int = Field(default=0, ge=0, le=_MAX_SEQ, description="Report only events after this number (last_seq).")
    wait_seconds: WaitSeconds = 45.0


class AnswerRunArguments(RequestModel):
    """Answer the question of a paused run, which then continues; see list_questions. Exactly one answer to a question
    is accepted.
    """

    run_id: RunId = Field(description="The run that asked the question.")
    response: str | dict[str, Any] = Field(description="The answer: a string, or the fields of the question by name.")
    step: StepPath | None = Field(default=None, description="The path of the question, if several steps ask.")


class RunArguments(RequestModel):
    """A run."""

    run_id: RunId = Field(description="The run.")


class CancelRunArguments(RunArguments):
    """Cancel a run that has not ended. It is never executed again. The call can be repeated safely."""


class RetryRunArguments(RunArguments):
    """Retry a failed run with all of its attempts. Finished steps and paid model calls are not repeated."""

    latest: bool = Field(default=False, description="Continue with the current versions of its definitions.")


async def start_target(
    caller: CallContext, kind: str, name: str, message: str, given: Mapping[str, Any], options: RunOptions
) -> Accepted:
    """Accept a run of a task, agent or orchestration in the caller's tenant, and return it."""
    app, tenant = caller.parts.app, caller.principal.tenant
    if kind == "task":
        if message:
            raise InvalidRequest('A task does not have a message. Pass its arguments in "input".')
        request: TaskRequest | StartRequest = TaskRequest(name, given, options)
    else:
        definition = "agent" if kind == "agent" else "orchestration"
        request = StartRequest(name, message, given, options, kind=definition)
    with tracing.span(f"accept {name}", {f"runlane.{kind}": name, "runlane.tenant": tenant}):
        accepted = await app.submit(request, tenant=tenant, trace=tracing.current_parent())
    if not accepted.run_id:
        raise Conflict(f'The flow control of "{name}" started no run for this call ({accepted.outcome.value}).')
    return accepted


async def _start(caller: CallContext, given: StartRunArguments) -> ToolAnswer:
    options = RunOptions(
        idempotency_key=given.idempotency_key or caller.idempotency_key,
        priority=given.priority,
        delay_seconds=given.delay_seconds,
        ordering_key=given.ordering_key,
        tags=given.tags,
    )
    accepted = await start_target(caller, given.kind, given.name, given.message, given.input, options)
    run = await follow_run(caller, accepted.run_id, 0, given.wait_seconds)
    return run_answer(run, replayed=accepted.replayed)


async def _chat(caller: CallContext, given: ChatArguments) -> ToolAnswer:
    options = RunOptions(idempotency_key=given.idempotency_key or caller.idempotency_key)
    request = ChatRequest(given.agent, given.message, given.session_id, None, options)
    posted = await caller.parts.app.post(request, tenant=caller.principal.tenant, trace=tracing.current_parent())
    run = await follow_run(caller, posted.run_id, 0, given.wait_seconds)
    return run_answer(run, session_id=posted.session_id, turn=posted.turn, replayed=posted.replayed)


async def _follow(caller: CallContext, given: FollowRunArguments) -> ToolAnswer:
    await caller.standing(given.run_id)
    return run_answer(await follow_run(caller, given.run_id, given.after, given.wait_seconds))


async def _answer(caller: CallContext, given: AnswerRunArguments) -> Mapping[str, Any]:
    await caller.standing(given.run_id)
    principal = caller.principal
    status = await caller.parts.app.resume(
        given.run_id,
        given.response,
        step=given.step,
        answered_by=principal.name,
        platform=principal.everywhere,
    )
    return {"run_id": given.run_id, "status": status.value}


async def _cancel(caller: CallContext, given: CancelRunArguments) -> Mapping[str, Any]:
    await caller.standing(given.run_id)
    status = await caller.parts.app.cancel(given.run_id, actor=caller.principal.actor)
    # A running run ends when its code has stopped.
    shown = "cancellation_requested" if status is Status.RUNNING else status.value
    return {"run_id": given.run_id, "status": shown}


async def _retry(caller: CallContext, given: RetryRunArguments) -> Mapping[str, Any]:
    await caller.standing(given.run_id)
    status = await caller.parts.app.retry(given.run_id, latest=given.latest, actor=caller.principal.actor)
    return {"run_id": given.run_id, "status": status.value}


RUN_TOOLS: Final[tuple[ServedTool, ...]] = (
    typed_tool("start_run", "Start a run", StartRunArguments, CHANGE, _start),
    typed_tool("chat", "Chat with an agent", ChatArguments, CHANGE, _chat),
    typed_tool("follow_run", "Wait for a run", FollowRunArguments, READ, _follow, read_only=True),
    typed_tool("answer_run", "Answer a question", AnswerRunArguments, CHANGE, _answer),
    typed_tool("cancel_run", "Cancel a run", CancelRunArguments, CHANGE, _cancel, destructive=True, idempotent=True),
    typed_tool("retry_run", "Retry a failed run", RetryRunArguments, CHANGE, _retry),
)
