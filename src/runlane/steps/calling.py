"""Calling: tasks and tools, by name.

Tools of type python run in the sandbox, registered tasks through whoever runs them, all others through the caller
that was registered for their type. What fails, fails the step: no error becomes a result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from runlane.agents.models import ToolOffer
from runlane.errors import RunlaneError, nearest
from runlane.model.definition import Tool
from runlane.model.schema_check import misfit
from runlane.model.step import Step, TaskStep
from runlane.model.template import render_value, text_of
from runlane.steps.failure import StepFailed
from runlane.steps.tools import Tools
from runlane.steps.work import Work

MAX_PREVIEW: Final = 500


async def task(work: Work[TaskStep]) -> Any:
    """A registered task, with the arguments that the step gives it."""
    arguments = render_value(work.step.arguments, work.todo.state)
    return await _call_task(work.tools, work.step.task, arguments, work.todo.path)


async def call_tool(work: Work[Step], name: str, arguments: Mapping[str, Any], key: str) -> Any:
    """Call a tool and tell of it. The arguments must fit already."""
    await work.emit("tool_execution", tool_name=name, args=dict(arguments))
    result = await _call(work.tools, name, arguments, key)
    preview = text_of(result)
    if len(preview) > MAX_PREVIEW:
        preview = preview[: MAX_PREVIEW - 1] + "…"
    await work.emit("tool_result", tool_name=name, preview=preview)
    return result


def check_arguments(tools: Tools, name: str, arguments: Mapping[str, Any]) -> str | None:
    """Why these arguments do not fit the tool, if they do not."""
    tool = tools.tools.get(name)
    return None if tool is None else misfit(dict(arguments), {"type": "object"} | tool.input_schema)


def offer(tools: Tools, name: str) -> ToolOffer:
    """A tool as a model sees it. Raises if there is none of this name."""
    tool = tools.tools.get(name)
    if tool is not None:
        return ToolOffer(name, tool.description, tool.input_schema)
    if name in tools.tasks:
        return ToolOffer(name, f"The task {name}.")
    raise _unknown(tools, name)


def known_tools(tools: Tools) -> list[str]:
    """The names of everything that can be called."""
    return sorted({*tools.tools, *tools.tasks})


async def _call(tools: Tools, name: str, arguments: Mapping[str, Any], key: str) -> Any:
    tool = tools.tools.get(name)
    if tool is None:
        if name in tools.tasks:
            return await _call_task(tools, name, arguments, key)
        raise _unknown(tools, name)
    if tool.tool_type == "python":
        return await tools.sandbox.tool(tool.code or "", arguments, tool.timeout_seconds)
    return await _call_elsewhere(tools, tool, arguments, key)


async def _call_elsewhere(tools: Tools, tool: Tool, arguments: Mapping[str, Any], key: str) -> Any:
    caller = tools.callers.get(tool.tool_type)
    if caller is None:
        raise StepFailed(
            "unsupported_tool",
            f'The tool "{tool.name}" is of type {tool.tool_type}, which this worker cannot call. Use a python tool or '
            "a task.",
        )
    deadline = asyncio.timeout(tool.timeout_seconds)
    try:
        async with deadline:
            return await caller(tool, arguments, key)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise StepFailed(
            "tool_timeout",
            f'The tool "{tool.name}" did not answer within its timeout_seconds ({tool.timeout_seconds:g}).',
            passing=True,
        ) from None


async def _call_task(tools: Tools, name: str, arguments: Mapping[str, Any], path: str) -> Any:
    if name not in tools.tasks:
        raise StepFailed(
            "unknown_task",
            f'No task "{name}" is registered{nearest(name, tools.tasks)}. Pass the module that defines it to '
            "runlane worker.",
        )
    try:
        return await tools.call_task(name, arguments, path)
    except (RunlaneError, StepFailed):
        raise
    except TimeoutError as error:
        raise StepFailed("timeout", f'The task "{name}" timed out: {error}'.rstrip(": "), passing=True) from error
    except Exception as error:
        # What a task's code raises may be a thing of the moment, as everywhere else where tasks are retried.
        told = f"{type(error).__name__}: {error}".rstrip(": ")
        raise StepFailed("task_error", f'The task "{name}" failed: {told}', passing=True) from error


def _unknown(tools: Tools, name: str) -> StepFailed:
    known = known_tools(tools)
    return StepFailed(
        "unknown_tool",
        f'There is no tool "{name}" in this run{nearest(name, known)}. Known here: {", ".join(known[:20]) or "none"}.',
    )
