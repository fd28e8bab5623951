"""Asking: steps that need a model: one answer, an agent with tools, arguments for a tool, or a choice of routes."""

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
    """One answer: a text, or an object that fits the step's schema."""
    step = context.step
    said = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    asking = Conversation(context, None, context.journal, model=step.model)
    asking.add_user_message(said)
    if step.output_schema is None:
        answer: Any = (await asking.ask()).text
    else:
        answer = await fitting_answer(context, asking, step.output_schema, step.max_turns)
    await context.emit(EventType.FINAL, response=answer)
    return answer


async def agent(context: StepContext[AgentStep]) -> Any:
    """The agent's answer, after as many turns and tools as it takes."""
    step = context.step
    definition = cast("Agent", context.agent(step.agent_id))
    said = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    answer = await work_on(
        context,
        definition,
        AgentTask(
            said,
            model=step.model,
            turns=min(step.max_turns, definition.max_turns),
            tool_calls=step.max_tool_calls,
            schema=step.output_schema or definition.output_schema,
            allowed=step.allowed_tools,
            before=context.services.conversation,
        ),
        context.journal,
    )
    await context.emit(EventType.FINAL, response=answer)
    return answer


async def tool(context: StepContext[ToolStep]) -> Any:
    """The result of one tool: the one that the step names, whatever a model would like."""
    step, journal = context.step, context.journal
    usable = await find_tool(context, step.forced_tool, journal)
    if step.arguments is not None:
        arguments = cast("dict[str, Any]", await context.render_value(step.arguments))
        problem = usable.misfit(arguments)
        if problem is not None:
            raise StepFailed("bad_arguments", f'The arguments do not fit the tool "{usable.name}": {problem}.')
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
    """One of the routes. An answer that names none is asked again; it is never taken for the first one."""
    step = context.step
    asking = Conversation(context, context.agent(step.agent_id), context.journal, model=step.model)
    routes = "\n".join(f"- {label}{_meaning(step, label)}" for label in step.route_map)
    template = step.evaluator_prompt or step.prompt_template
    said = await prompt(context, template, with_history=bool(step.include_full_history))
    asking.add_user_message(f"{said}\n\nAnswer with one of these labels and nothing else:\n{routes}")
    offers = tuple(
        ToolOffer(ROUTE + label, step.route_descriptions.get(label, ""), _REASONING) for label in step.route_map
    )
    answers: list[str] = []
    while asking.turn < step.max_turns:
        reply = await asking.ask(offers)
        label, reasoning = _route(reply, step)
        if reasoning:
            await context.emit(EventType.LLM_REASONING, reasoning=reasoning, turn=asking.turn)
        if label is not None:
            return Done(label, route=label)
        answers.append(_shown(reply))
        asking.refuse(f"{answers[-1]} is none of the labels. Answer with one of: {', '.join(step.route_map)}.")
    if step.fallback_route is not None:
        await context.emit(
            EventType.STEP_WARNING,
            message=f'No route was named in {asking.turn} tries; the fallback "{step.fallback_route}" is taken.',
        )
        return Done(step.fallback_route, route=step.fallback_route)
    raise StepFailed(
        "no_route",
        f"The model named none of the routes {', '.join(step.route_map)} in {asking.turn} tries. It said: "
        f"{'; '.join(answers)[:1000]}. Make the prompt clearer, or set fallback_route.",
    )


_REASONING: Final[Mapping[str, Any]] = {"type": "object", "properties": {"reasoning": {"type": "string"}}}


async def _written_arguments(context: StepContext[ToolStep], usable: CallableTool) -> Mapping[str, Any]:
    step, offered = context.step, usable.offer
    asking = Conversation(context, context.agent(step.agent_id), context.journal, model=step.model)
    said = await prompt(context, step.prompt_template, with_history=bool(step.include_full_history))
    schema = orjson.dumps(dict(offered.input_schema)).decode()
    asking.add_user_message(
        f"{said}\n\nWrite the arguments for the tool {offered.name} as one JSON object and nothing else.\n"
        f"{offered.description}\nSchema: {schema}"
    )
    problem = ""
    while asking.turn < step.max_turns:
        reply = await asking.ask((offered,))
        arguments, problem = _arguments(reply, offered.name)
        if arguments is not None:
            problem = usable.misfit(arguments) or ""
            if not problem:
                return arguments
        asking.refuse(f"That does not fit: {problem}. Write the arguments again, as one JSON object.")
    raise StepFailed(
        "bad_arguments",
        f'The model wrote no arguments that fit the tool "{offered.name}" in {asking.turn} tries: {problem}.',
    )


def _arguments(reply: ModelReply, name: str) -> tuple[Mapping[str, Any] | None, str]:
    """The arguments in an answer, or what is wrong with it."""
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
    """The label that an answer names, and why, if it says so."""
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


def _label(said: str, step: EvaluatorStep) -> str | None:
    """The label that was said: as it is, as a tool, or but for quotes and capitals if that fits one only."""
    for name in (said, said.strip(_QUOTES)):
        for label in (name, name.removeprefix(ROUTE)):
            if label in step.route_map:
                return label
    plain = said.strip(_QUOTES).casefold().removeprefix(ROUTE)
    close = [label for label in step.route_map if label.casefold() == plain]
    return close[0] if len(close) == 1 else None


def _meaning(step: EvaluatorStep, label: str) -> str:
    meaning = step.route_descriptions.get(label)
    return f": {meaning}" if meaning else ""


def _shown(reply: ModelReply) -> str:
    return repr((reply.calls[0].name if reply.calls else reply.text)[:_SHOWN])
