"""Computing: steps whose outcome is an expression or a script in the sandbox."""

from __future__ import annotations

from typing import Any, Final, cast

from runlane.definitions.schema.step import IfElseStep, LoopStep, SwitchStep, TransformStep
from runlane.domain.events import EventType
from runlane.interpreter.failure import StepFailed
from runlane.steps.context import StepContext
from runlane.templates.template import text_of

MAX_ITEMS: Final = 100_000
MAX_PREVIEW: Final = 500


async def transform(work: StepContext[TransformStep]) -> Any:
    """What the script leaves in `result`."""
    result = await work.tools.sandbox.script(work.step.transform_code, work.todo.state)
    shown = None if result is None else text_of(result)
    if shown is not None and len(shown) > MAX_PREVIEW:
        shown = shown[: MAX_PREVIEW - 1] + "…"
    await work.emit(EventType.TRANSFORM_RESULT, result=shown)
    return result


async def if_else(work: StepContext[IfElseStep]) -> bool:
    """Whether the condition holds."""
    return await work.tools.sandbox.condition(work.step.if_condition, work.todo.state)


async def switch(work: StepContext[SwitchStep]) -> Any:
    """The value that decides."""
    return await work.tools.sandbox.expression(work.step.switch_expression, work.todo.state)


async def loop_condition(work: StepContext[LoopStep]) -> bool:
    """Whether there is another round."""
    return await work.tools.sandbox.condition(work.step.while_condition or "False", work.todo.state)


async def loop_items(work: StepContext[LoopStep]) -> list[Any]:
    """The list that is worked on."""
    items = await work.tools.sandbox.expression(work.step.for_each or "[]", work.todo.state)
    if not isinstance(items, list):
        kind = "an object" if isinstance(items, dict) else type(items).__name__
        raise StepFailed(
            "expression_error",
            f"for_each must give a list, not {kind}. For the values of an object write list(state.key.values()).",
        )
    found = cast("list[Any]", items)
    if len(found) > MAX_ITEMS:
        raise StepFailed(
            "too_many_items",
            f"for_each gives {len(found)} items; at most {MAX_ITEMS} are allowed. Work on them in parts.",
        )
    return found
