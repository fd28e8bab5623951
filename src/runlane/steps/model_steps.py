"""Steps that call a model: one answer, an agent with tools, arguments for a tool, or a choice of routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from runlane.agents.conversation import Conversation
from runlane.agents.loop import AgentTask, ask_agent, fitting_answer, work_on
from runlane.agents.prompt import prompt
from runlane.agents.tool_call import ToolCallExecution
from runlane.agents.toolbox import CallableTool, find_tool
from runlane.definitions.schema.definition import Agent
from runlane.definitions.schema.step import AgentStep, EvaluatorStep, LlmStep, ToolStep
from runlane.domain.events import EventType
from runlane.interpreter.failure import StepFailed
from runlane.interpreter.values import Done
from runlane.llm.models import ModelReply, ToolCall, ToolOffer
from runlane.steps.context import StepContext
from runlane.steps.data_steps import find_json
from runlane.templates.template import text_of

ROUTE: Final = "route_"
_QUOTES: Final = " \t\r\n`'\"*."
_SHOWN: Final = 200


async def llm(context: StepContext[LlmStep]) -> Any:
    """Return one answer: a string, or an object that matches the step's schema."""
    step = context.step
    text = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    conversation = Conversation(context, None, context.journal, model=step.model)
    conversation.add_user_message(text)
    if step.output_schema is None:
        answer: Any = (await conversation.ask()).text
    else:
        answer = await fitting_answer(context, conversation, step.output_schema, step.max_turns)
    await context.emit(EventType.FINAL, response=answer)
    return answer


async def agent(context: StepContext[AgentStep]) -> Any:
    """Return the agent's answer, after as many turns and tool calls as it takes."""
    step = context.step
    definition = cast("Agent", context.agent(step.agent_id))
    text = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    answer = await work_on(
        context,
        definition,
        AgentTask(
            text,
            model=step.model,
            turns=min(step.max_turns, definition.max_turns),
            tool_calls=step.max_tool_calls,
            schema=step.output_schema or definition.output_schema,
            allowed=step.allowed_tools,
            before=context.services.conversation,
            instructions=context.services.instructions,
            settings=context.services.model_settings,
        ),
        context.journal,
    )
    await context.emit(EventType.FINAL, response=answer)
    return answer


async def tool(context: StepContext[ToolStep]) -> Any:
    """Return the result of the tool that the step names."""
    step, journal = context.step, context.journal
    usable = await find_tool(context, step.forced_tool, journal)
    if step.arguments is not None:
        arguments = cast("dict[str, Any]", await context.render_value(step.arguments))
        problem = usable.misfit(arguments)
        if problem is not None:
            raise StepFailed("bad_arguments", f'The arguments of the tool "{usable.name}" are invalid: {problem}.')
    else:
        arguments = await _written_arguments(context, usable)
    use = ToolCallExecution(context, usable, ToolCall(usable.name, arguments, "0"), journal, "0")
    result = await use.result(ask_agent(context))
    if result.failed:
        code, _, message = result.text.partition(": ")
        raise StepFailed(code if message and " " not in code else "tool_failed", message or result.text)
    await context.emit(EventType.FINAL, response=result.value)
    return result.value


async def evaluator(context: StepContext[EvaluatorStep]) -> Done:
    """Return one of the routes. An answer that names none is rejected and repeated, never mapped to the first route."""
    step = context.step
    conversation = Conversation(context, context.agent(step.agent_id), context.journal, model=step.model)
    routes = "\n".join(f"- {label}{_meaning(step, label)}" for label in step.route_map)
    template = step.evaluator_prompt or step.prompt_template
    text = await prompt(context, template, with_history=bool(step.include_full_history))
    conversation.add_user_message(f"{text}\n\nAnswer with one of these labels and nothing else:\n{routes}")
    offers = tuple(
        ToolOffer(ROUTE + label, step.route_descriptions.get(label, ""), _REASONING) for label in step.route_map
    )
    answers: list[str] = []
    while conversation.turn < step.max_turns:
        reply = await conversation.ask(offers)
        label, reasoning = _route(reply, step)
        if reasoning:
            await context.emit(EventType.LLM_REASONING, reasoning=reasoning, turn=conversation.turn)
        if label is not None:
            return Done(label, route=label)
        answers.append(_shown(reply))
        conversation.refuse(f"{answers[-1]} is not one of the labels. Answer with one of: {', '.join(step.route_map)}.")
    if step.fallback_route is not None:
        await context.emit(
            EventType.STEP_WARNING,
            message=f'No route was named in {conversation.turn} tries; the fallback "{step.fallback_route}" is taken.',
        )
        return Done(step.fallback_route, route=step.fallback_route)
    raise StepFailed(
        "no_route",
        f"The model named none of the routes {', '.join(step.route_map)} in {conversation.turn} tries. Its answers: "
        f"{'; '.join(answers)[:1000]}. Make the prompt clearer, or set fallback_route.",
    )


_REASONING: Final[Mapping[str, Any]] = {"type": "object", "properties": {"reasoning": {"type": "string"}}}


async def _written_arguments(context: StepContext[ToolStep], usable: CallableTool) -> Mapping[str, Any]:
    step, offered = context.step, usable.offer
    conversation = Conversation(context, context.agent(step.agent_id), context.journal, model=step.model)
    text = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    schema = orjson.dumps(dict(offered.input_schema)).decode()
    conversation.add_user_message(
        f"{text}\n\nWrite the arguments for the tool {offered.name} as one JSON object and nothing else.\n"
        f"{offered.description}\nSchema: {schema}"
    )
    problem = ""
    while conversation.turn < step.max_turns:
        reply = await conversation.ask((offered,))
        arguments, problem = _arguments(reply, offered.name)
        if arguments is not None:
            problem = usable.misfit(arguments) or ""
            if not problem:
                return arguments
        conversation.refuse(f"The arguments are invalid: {problem}. Write the arguments again, as one JSON object.")
    raise StepFailed(
        "bad_arguments",
        f'The model wrote no arguments that fit the tool "{offered.name}" in {conversation.turn} tries: {problem}.',
    )


def _arguments(reply: ModelReply, name: str) -> tuple[Mapping[str, Any] | None, str]:
    """Return the arguments in an answer, or what is wrong with it."""
    if reply.calls:
        call = reply.calls[0]
        return (call.arguments, "") if call.name == name else (None, f"only the tool {name} can be called")
    found = find_json(reply.text)
    if len(found) != 1 or not isinstance(found[0], dict):
        return None, "the answer is not one JSON object"
    written = cast("dict[str, Any]", found[0])
    if set(written) == {"tool", "arguments"} and isinstance(written["arguments"], dict):
        if written["tool"] != name:
            return None, f"only the tool {name} can be called"
        return cast("dict[str, Any]", written["arguments"]), ""
    return written, ""


def _route(reply: ModelReply, step: EvaluatorStep) -> tuple[str | None, str]:
    """Return the label that an answer names, and its reasoning, if it has one."""
    if reply.calls:
        call = reply.calls[0]
        return _label(call.name, step), text_of(call.arguments.get("reasoning"))
    exact = reply.text.strip()
    if exact in step.route_map:
        return exact, ""
    found = find_json(exact) if "{" in exact else []
    if len(found) == 1 and isinstance(found[0], dict):
        written = cast("dict[str, Any]", found[0])
        arguments = written.get("arguments")
        reasoning = cast("dict[str, Any]", arguments).get("reasoning") if isinstance(arguments, dict) else None
        return _label(str(written.get("tool", "")), step), text_of(reasoning)
    return _label(exact, step), ""


def _label(text: str, step: EvaluatorStep) -> str | None:
    """Return the label that a string names: exact, as a tool, or ignoring quotes and case if only one label matches."""
    for name in (text, text.strip(_QUOTES)):
        for label in (name, name.removeprefix(ROUTE)):
            if label in step.route_map:
                return label
    plain = text.strip(_QUOTES).casefold().removeprefix(ROUTE)
    close = [label for label in step.route_map if label.casefold() == plain]
    return close[0] if len(close) == 1 else None


def _meaning(step: EvaluatorStep, label: str) -> str:
    meaning = step.route_descriptions.get(label)
    return f": {meaning}" if meaning else ""


def _shown(reply: ModelReply) -> str:
    return repr((reply.calls[0].name if reply.calls else reply.text)[:_SHOWN])
