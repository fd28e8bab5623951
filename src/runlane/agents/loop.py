"""The agent loop: a model works on a task with its tools until it has an answer.

Every answer and every result is in the journal before the next call is made, so an agent whose worker dies continues
with the call that is missing. The tool calls of one answer are made concurrently. An agent may call another one as a
tool; its calls are part of the same journal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from runlane.agents.compaction import Compactor
from runlane.agents.conversation import AsksModels, Conversation
from runlane.agents.journal import Journal
from runlane.agents.memory import open_memory
from runlane.agents.tool_call import AskAgent, ToolCallExecution
from runlane.agents.tool_results import ToolResult, refuse_call
from runlane.agents.toolbox import Toolbox, toolbox_of
from runlane.definitions.schema.definition import FINAL_ANSWER, Agent
from runlane.domain.text import utf8_size
from runlane.errors import nearest
from runlane.interpreter.failure import StepFailed
from runlane.llm.models import INVALID_JSON, Message, ModelReply, ToolCall, ToolOffer
from runlane.observability.genai import agent_span
from runlane.steps.context import StepContext
from runlane.steps.data_steps import find_json
from runlane.steps.wait_steps import StepWait, Suspend
from runlane.templates.json_schema import misfit

MAX_DEPTH: Final = 3
_DELEGATED_CALLS: Final = 100
_SHOWN: Final = 200
_SHOWN_NAMES: Final = 200
_COMPARED_CALLS: Final = 20


@dataclass(frozen=True, slots=True)
class AgentTask:
    """A task for an agent and its bounds. `before` are the earlier messages of a chat.

    `instructions` follow those of the agent, and `settings` replace its settings of model calls.
    """

    text: str
    model: str | None
    turns: int
    tool_calls: int
    schema: Mapping[str, Any] | None
    allowed: list[str] | None = None
    before: Sequence[Message] = ()
    instructions: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


async def work_on(
    context: StepContext[AsksModels], agent: Agent, task: AgentTask, journal: Journal, above: tuple[str, ...] = ()
) -> Any:
    """Return the agent's answer: a string, or an object that matches the schema.

    `above` are the agents that wait for it.
    """
    with agent_span(agent.id):
        return await _work_on(context, agent, task, journal, above)


async def _work_on(
    context: StepContext[AsksModels], agent: Agent, task: AgentTask, journal: Journal, above: tuple[str, ...]
) -> Any:
    if agent.type == "orchestrator":
        raise StepFailed(
            "orchestrator_agent",
            f'The agent "{agent.id}" is an orchestration and cannot be called by a model. Start it as a run.',
        )
    memory = await open_memory(context, agent, journal)
    box = await toolbox_of(context, agent, task.allowed, journal)
    box.add(memory.tools, task.allowed)
    offers = box.offers if task.schema is None else (*box.offers, _final_answer(task.schema))
    conversation = Conversation(context, agent, journal, model=task.model)
    conversation.add_request(memory.instructions, {})
    conversation.add_request(task.instructions, task.settings)
    conversation.messages += task.before
    conversation.add_user_message(task.text)
    compactor = Compactor(context, agent, conversation, journal, conversation.messages[-1])
    calls_made = 0
    while True:
        await compactor.make_room(offers)
        reply = await conversation.ask(offers, must_call=task.schema is not None)
        done, answer = await _answer(context, conversation, reply, task.schema, journal)
        if done:
            await memory.update_context(conversation, task.text, answer)
            return answer
        if conversation.turn >= task.turns:
            # A tool must not be called if the model will not read its result.
            raise StepFailed(
                "turn_limit",
                f'The agent "{agent.id}" has no answer after {task.turns} turns. Raise max_turns, or make the task '
                "smaller.",
            )
        calls = [call for call in reply.calls if call.name != FINAL_ANSWER or task.schema is None]
        calls_made += len(calls)
        if calls_made > task.tool_calls:
            raise StepFailed(
                "tool_call_limit",
                f'The agent "{agent.id}" has no answer after {task.tool_calls} tool calls. Raise max_tool_calls, or '
                "make the task smaller.",
            )
        await _use_tools(context, box, conversation, calls, journal, (*above, agent.id))


async def fitting_answer(
    context: StepContext[AsksModels], conversation: Conversation, schema: Mapping[str, Any], turns: int
) -> Any:
    """Return an answer that matches a schema, from a model without tools."""
    while True:
        reply = await conversation.ask((_final_answer(schema),), must_call=True)
        done, answer = await _answer(context, conversation, reply, schema, context.journal)
        if done:
            return answer
        if conversation.turn >= turns:
            raise StepFailed("bad_answer", f"The model gave no answer that matches output_schema in {turns} turns.")


def ask_agent(context: StepContext[AsksModels], above: tuple[str, ...] = ()) -> AskAgent:
    """Return a function that calls agents as tools. `above` are the agents that wait for it, outermost first."""

    async def ask(agent_id: str, text: str, journal: Journal) -> Any:
        agent = context.services.agents.get(agent_id)
        if agent is None:
            raise StepFailed(
                "unknown_agent", f'The agent "{agent_id}" does not exist{nearest(agent_id, context.services.agents)}.'
            )
        if agent_id in above:
            cycle = " -> ".join((*above[above.index(agent_id) :], agent_id))
            raise StepFailed("circle", f'The agent "{agent_id}" waits for this task: {cycle}.')
        if len(above) > MAX_DEPTH:
            raise StepFailed("too_deep", f"Agents may delegate at most {MAX_DEPTH} levels deep.")
        task = AgentTask(text, None, agent.max_turns, _DELEGATED_CALLS, agent.output_schema)
        return await work_on(context, agent, task, journal, above)

    return ask


async def _answer(
    context: StepContext[AsksModels],
    conversation: Conversation,
    reply: ModelReply,
    schema: Mapping[str, Any] | None,
    journal: Journal,
) -> tuple[bool, Any]:
    """Return whether this is the final answer, and the answer.

    An invalid answer is rejected, and the model may try again.
    """
    if schema is None:
        return (False, None) if reply.calls else (True, reply.text)
    final = next((call for call in reply.calls if call.name == FINAL_ANSWER), None)
    if final is None and reply.calls:
        return False, None
    given = dict(final.arguments) if final is not None else _object_in(reply.text)
    if given is None:
        problem: str | None = "the answer is not one JSON object"
    elif INVALID_JSON in given:
        problem = "it is not JSON"
    else:
        problem = misfit(given, {"type": "object", **schema})
    if problem is None:
        return True, given
    message = f"The answer is not valid: {problem}. Call {FINAL_ANSWER} with a valid one."
    if final is not None:
        await refuse_call(context, journal, f"{conversation.turn - 1}/{final.id}", final, message)
        conversation.answer_call(final, message, failed=True)
    else:
        conversation.add_user_message(message)
    return False, None


async def _use_tools(
    context: StepContext[AsksModels],
    box: Toolbox,
    conversation: Conversation,
    calls: list[ToolCall],
    journal: Journal,
    above: tuple[str, ...],
) -> None:
    """Make the calls concurrently and add their results to the conversation, in their order."""
    turn = conversation.turn - 1
    # An answer may have thousands of calls, and each comparison of names takes milliseconds.
    names = box.names[:_SHOWN_NAMES]
    compared = names if len(calls) <= _COMPARED_CALLS else []

    async def use(call: ToolCall) -> ToolResult:
        key = f"{turn}/{call.id}"
        usable = box.find(call.name)
        if usable is None:
            message = f"No tool {call.name!r} exists{nearest(call.name, compared)}. Tools: {', '.join(names)}."
            return await refuse_call(context, journal, key, call, message[:_SHOWN])
        problem = "its arguments are not JSON"
        if INVALID_JSON not in call.arguments:
            problem = usable.misfit(dict(call.arguments))
        if problem is not None:
            return await refuse_call(context, journal, key, call, f"The tool {call.name} was not called: {problem}.")
        return await ToolCallExecution(context, usable, call, journal, key).result(ask_agent(context, above))

    # All calls complete, even if one fails, so that their results are stored.
    results = await asyncio.gather(*(use(call) for call in calls), return_exceptions=True)
    _raise_first(results)
    # The results are stored, so if no memory is available for them, the step continues with them later.
    await context.memory.take(sum(utf8_size(result.text) for result in cast("list[ToolResult]", results)))
    for call, result in zip(calls, cast("list[ToolResult]", results), strict=True):
        conversation.answer_call(call, result.text, failed=result.failed)


def _raise_first(results: Sequence[ToolResult | BaseException]) -> None:
    errors = [result for result in results if isinstance(result, BaseException)]
    for error in errors:
        if not isinstance(error, Suspend):
            raise error
    waits: list[StepWait] = [wait for error in errors if isinstance(error, Suspend) for wait in error.waits]
    if waits:
        raise Suspend(*waits)


def _final_answer(schema: Mapping[str, Any]) -> ToolOffer:
    return ToolOffer(FINAL_ANSWER, "Give the final answer with this. It ends the task.", {"type": "object", **schema})


def _object_in(text: str) -> dict[str, Any] | None:
    found = find_json(text)
    return cast("dict[str, Any]", found[0]) if len(found) == 1 and isinstance(found[0], dict) else None
