"""One tool call: check it, have it approved if necessary, make it, and store its result.

The definition of a tool declares whether it may be called twice. A call that must not be repeated is announced in the
journal before it is made; if an announced call has no result, its effect is unknown, and a person decides. A repeated
call has the same idempotency key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

import orjson

from runlane.agents.journal import Journal
from runlane.agents.tool_results import ToolResult, find_result, keep_result
from runlane.agents.toolbox import CallableTool
from runlane.definitions.forms import ARGUMENTS, EDIT, edited_arguments
from runlane.definitions.schema.definition import Tool
from runlane.definitions.schema.step import AgentStep, HumanField, Step
from runlane.domain.backoff import growing_seconds
from runlane.domain.events import EventType
from runlane.domain.text import dump_json, load_json
from runlane.errors import InvalidInput
from runlane.failpoints import failpoint
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import ToolCall
from runlane.observability.genai import tool_call_span
from runlane.observability.tracing import mark_failed
from runlane.steps.context import StepContext
from runlane.steps.task_step import call_task
from runlane.steps.wait_steps import StepWait, Suspend, WaitKind
from runlane.store.orchestration.calls import CallKind
from runlane.templates.template import text_of
from runlane.tools.caller import ToolFailed, ToolPending, bounded

_TRIES: Final = 3

AskAgent = Callable[[str, str, Journal], Awaitable[Any]]


class ToolCallExecution:
    """One call of a tool. `key` identifies it within the journal; the run and `key` identify it everywhere."""

    def __init__(
        self, context: StepContext[Step], usable: CallableTool, call: ToolCall, journal: Journal, key: str
    ) -> None:
        self._context = context
        self._usable = usable
        self._call = call
        self._journal = journal
        self._key = key
        self._arguments: Mapping[str, Any] = call.arguments

    async def result(self, ask_agent: AskAgent) -> ToolResult:
        """Return the result, from the journal or from the call. Raises Suspend if a person has to decide first."""
        known = find_result(self._journal, self._key)
        if known is not None:
            return known
        refusal = self._approved()
        if refusal is not None:
            return await self._keep(refusal)
        settled = await self._announce() if self._usable.effect != "repeatable" else None
        if settled is not None:
            return await self._keep(settled)
        await self._context.emit(
            EventType.TOOL_EXECUTION, tool_name=self._usable.name, call_id=self._call.id, args=dict(self._arguments)
        )
        with tool_call_span(self._usable.name, self._call.id) as span:
            value = await self._with_retries(ask_agent)
            if value.failed:
                mark_failed(span, "tool_failed")
        failpoint("tool.answered")
        return await self._keep(value)

    # --- approval

    def _approved(self) -> ToolResult | None:
        """Return None if the call is approved, otherwise the result that rejects it."""
        if not self._usable.needs_approval:
            return None
        key = f"approve/{self._key}"
        answer = self._journal.find(key)
        if answer is None:
            raise Suspend(self._question(key))
        decision = answer.get("decision")
        if decision == EDIT:
            try:
                self._arguments = edited_arguments(answer, self._usable.arguments_schema)
            except InvalidInput as error:
                # Edits are validated when they are stored; this one was stored by a release that did not validate.
                return ToolResult(f"A person edited the arguments. {error}", failed=True)
            return None
        if decision == "approve":
            return None
        reason = text_of(answer.get("reason") or "no reason was given")
        return ToolResult(f"A person did not allow this call: {reason}", failed=True)

    def _question(self, key: str) -> StepWait:
        fields = (
            _field("decision", "select", "Decision", ["approve", EDIT, "deny"], required=True),
            _field(ARGUMENTS, "textarea", "Arguments as JSON, to edit them"),
            _field("reason", "text", "Reason, for the model"),
        )
        return StepWait(
            kind=WaitKind.HUMAN,
            name=f"approve {self._usable.name}",
            prompt=f"May {self._usable.name} be called with these arguments?",
            fields=fields,
            context={"tool_name": self._usable.name, "call_id": self._call.id, "arguments": dict(self._arguments)},
            key=self._journal.name(key),
            arguments_schema=self._usable.arguments_schema,
            effect=self._usable.effect,
        )

    async def _announce(self, error: str | None = None) -> ToolResult | None:
        """Announce the call, or return its result if a person has entered it.

        `error` is the failure of the call; it helps the person to check its effect.
        """
        number = 1
        settled = await self._settle_earlier()
        while settled is None and self._journal.find(f"begun/{self._key}/{number}") is not None:
            key = f"unknown/{self._key}/{number}"
            answer = self._journal.find(key)
            if answer is None:
                raise Suspend(self._unknown_outcome(key, self._idempotency_key, error))
            settled = self._decided(answer)
            number += 1
        if settled is not None:
            return settled
        await self._journal.keep(
            CallKind.BEGUN, f"begun/{self._key}/{number}", {"tool": self._usable.name, "args": dict(self._arguments)}
        )
        return None

    async def _settle_earlier(self) -> ToolResult | None:
        """Ask about equal calls of earlier conversations with unknown effects; return the result a person enters."""
        key = f"unknown/{self._key}/0"
        calls = self._journal.unsettled(self._usable.name, self._arguments)
        answer = self._journal.find(key)
        if answer is None:
            if calls:
                raise Suspend(self._unknown_outcome(key, calls[0].idempotency_key))
            return None
        settled = self._decided(answer)
        for call in calls:
            await self._journal.settle(call)
        return settled

    def _decided(self, answer: Mapping[str, Any]) -> ToolResult | None:
        """Return the result that a person has entered; None if the call is to be made again."""
        match answer.get("decision"):
            case "call_again":
                return None
            case "done":
                return ToolResult(_result_given(answer.get("result")))
            case _:
                raise StepFailed("tool_unknown", f"A person gave up the call of {self._usable.name}.")

    def _unknown_outcome(self, key: str, idempotency_key: str, error: str | None = None) -> StepWait:
        return StepWait(
            kind=WaitKind.HUMAN,
            name=f"unknown outcome of {self._usable.name}",
            prompt=(
                f"The call of {self._usable.name} was interrupted, and its effect is unknown. Check it, then choose "
                "how to continue: done (with its result), call_again, or give_up."
            ),
            fields=(
                _field("decision", "select", "Decision", ["done", "call_again", "give_up"], required=True),
                _field("result", "textarea", "Its result, as text or JSON"),
            ),
            context={
                "tool_name": self._usable.name,
                "call_id": self._call.id,
                "arguments": dict(self._arguments),
                "idempotency_key": idempotency_key,
                **({"error": error} if error is not None else {}),
            },
            key=self._journal.name(key),
        )

    # --- the call

    @property
    def _local_key(self) -> str:
        return f"{self._context.pending.path}#{self._journal.name(self._key)}"

    @property
    def _idempotency_key(self) -> str:
        return f"{self._journal.run_id}/{self._local_key}"

    async def _with_retries(self, ask_agent: AskAgent) -> ToolResult:
        tries = 0
        while True:
            tries += 1
            try:
                made = _plain(await self._make(ask_agent), self._usable.name)
                return ToolResult(self._context.services.redactor.clean_value(made))
            except ToolPending as wait:
                raise Suspend(
                    StepWait(
                        kind=WaitKind.TIME,
                        prompt=wait.reason,
                        due_in_seconds=wait.seconds,
                        name=f"result of {self._usable.name}",
                        key=self._journal.name(f"later/{self._key}"),
                    )
                ) from wait
            except (ToolFailed, StepFailed) as error:
                if not error.retryable:
                    if self._named_by_step(error.code):
                        # Retryable, so that the next try continues the conversation and repeats this call.
                        raise StepFailed(error.code, error.message, retryable=True) from error
                    return self._describe(error)
                may_have_begun = not isinstance(error, ToolFailed) or error.begun
                if may_have_begun and self._usable.effect != "repeatable":
                    # The call may have had its effect. Because of the announcement in the journal, the next attempt
                    # asks a person.
                    await self._announce(self._describe(error).text)
                policy = self._context.services.retry_policy
                if tries >= min(_TRIES, policy.tries):
                    if self._retried_by_step(error.code):
                        raise
                    return self._describe(error)
                requested = error.retry_after_seconds if isinstance(error, ToolFailed) else None
                seconds = requested or growing_seconds(tries, policy.backoff_seconds, policy.hold_seconds)
                await asyncio.sleep(min(seconds, policy.hold_seconds))

    def _retried_by_step(self, code: str) -> bool:
        """Return whether the step fails, so that a retry repeats the call; otherwise the model receives the error."""
        step = self._context.step
        if not isinstance(step, AgentStep):
            return True
        return step.retry is not None and step.retry.allows(code, self._context.pending.tries, retryable=True)

    def _describe(self, error: ToolFailed | StepFailed) -> ToolResult:
        """Return the result of a failed call, as the model receives it."""
        return ToolResult(self._context.services.redactor.clean(f"{error.code}: {error.message}"), failed=True)

    def _named_by_step(self, code: str) -> bool:
        """Return whether the step of the agent is retried after this failure; otherwise only the model receives it."""
        retry = self._context.step.retry
        return (
            isinstance(self._context.step, AgentStep)
            and retry is not None
            and code in retry.on
            and retry.allows(code, self._context.pending.tries, retryable=False)
        )

    async def _make(self, ask_agent: AskAgent) -> Any:
        usable, services = self._usable, self._context.services
        key = self._idempotency_key
        if usable.own is not None:
            return await usable.own(self._arguments, key)
        if usable.agent is not None:
            return await ask_agent(usable.agent, self._task, self._own_journal())
        if usable.server is not None:
            if services.mcp is None:
                raise StepFailed(
                    "unsupported_tool", f'The MCP server "{usable.server.name}" cannot be reached from here.'
                )
            calling = services.mcp.call(usable.server, usable.plain_name, self._arguments, key)
            return await _in_time(calling, usable.name, usable.server.timeout_seconds)
        tool = usable.tool
        if tool is None:
            return await call_task(services, usable.name, self._arguments, self._local_key)
        if tool.tool_type == "http":
            caller = services.callers.get("http")
            if caller is None:
                raise StepFailed("unsupported_tool", f'The tool "{tool.name}" cannot be called from here.')
            # Waiting for a connection does not count against the tool's timeout.
            async with services.connection():
                return await _in_time(caller(tool, self._arguments, key), tool.name, tool.timeout_seconds)
        return bounded(tool, await self._make_here(tool, tool.tool_type, ask_agent))

    async def _make_here(
        self, tool: Tool, kind: Literal["python", "task", "agent", "orchestration"], ask_agent: AskAgent
    ) -> Any:
        services = self._context.services
        match kind:
            case "python":
                return await services.sandbox.tool(tool.code or "", self._arguments, tool.timeout_seconds)
            case "task":
                calling = call_task(services, tool.task or "", self._arguments, self._local_key)
                return await _in_time(calling, tool.name, tool.timeout_seconds)
            case "agent":
                return await ask_agent(tool.agent_id or "", self._task, self._own_journal())
            case "orchestration":
                return await services.call_orchestration(
                    tool.orchestration_id or "", self._arguments, self._idempotency_key
                )

    @property
    def _task(self) -> str:
        """Return the message for an agent: the only string among the arguments, or all of them."""
        strings = [value for value in self._arguments.values() if isinstance(value, str)]
        return strings[0] if len(strings) == len(self._arguments) == 1 else text_of(dict(self._arguments))

    def _own_journal(self) -> Journal:
        return self._journal.within(f"inside/{self._key}")

    async def _keep(self, result: ToolResult) -> ToolResult:
        return await keep_result(self._context, self._journal, self._key, self._call, result)


async def _in_time(calling: Awaitable[Any], name: str, seconds: float) -> Any:
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await calling
    except TimeoutError:
        if not deadline.expired():
            raise
        message = f'The tool "{name}" did not answer within its timeout_seconds ({seconds:g}).'
        raise ToolFailed("tool_timeout", message, retryable=True) from None


def _field(name: str, kind: str, label: str, options: list[str] | None = None, *, required: bool = False) -> HumanField:
    return HumanField.model_validate(
        {"name": name, "type": kind, "label": label, "options": options or [], "required": required}
    )


def _result_given(text: Any) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


def _plain(value: Any, name: str) -> Any:
    """Return the value after a round trip through JSON, so that it is the same before and after a crash."""
    try:
        return load_json(dump_json(value))
    except TypeError as error:
        raise StepFailed("not_json", f"The result of {name} cannot be stored: {error}") from None
