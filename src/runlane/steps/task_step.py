"""Calls of registered tasks by name. A failure of the task fails the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runlane.definitions.schema.step import TaskStep
from runlane.errors import RunlaneError, nearest
from runlane.interpreter.failure import StepFailed
from runlane.steps.context import StepContext
from runlane.steps.run_services import RunServices


async def task(context: StepContext[TaskStep]) -> Any:
    """Call a registered task with the arguments of the step."""
    arguments = await context.render_value(context.step.arguments)
    return await call_task(context.services, context.step.task, arguments, context.pending.path)


async def call_task(services: RunServices, name: str, arguments: Mapping[str, Any], path: str) -> Any:
    """Return the result of a task. `path` identifies the call within the run in every attempt."""
    if name not in services.tasks:
        raise StepFailed(
            "unknown_task",
            f'No task "{name}" is registered{nearest(name, services.tasks)}. Pass the module that defines it to '
            "runlane worker.",
        )
    try:
        return await services.call_task(name, arguments, path)
    except (RunlaneError, StepFailed):
        raise
    except TimeoutError as error:
        raise StepFailed("timeout", f'The task "{name}" timed out: {error}'.rstrip(": "), retryable=True) from error
    except Exception as error:
        # An error of a task's code may be transient, so it is retryable, as for runs of tasks.
        shown = f"{type(error).__name__}: {error}".rstrip(": ")
        raise StepFailed("task_error", f'The task "{name}" failed: {shown}', retryable=True) from error
