"""Steps whose outcome is an expression or a script in the sandbox."""

from __future__ import annotations

from typing import Any, Final, cast

from runlane.definitions.schema.step import IfElseStep, LoopStep, SwitchStep, TransformStep
from runlane.domain.events import EventType
from runlane.interpreter.failure import StepFailed
from runlane.steps.context import StepContext
from runlane.templates.template import text_of

MAX_ITEMS: Final = 100_000
MAX_PREVIEW: Final = 500


async def transform(context: StepContext[TransformStep]) -> Any:
    """Return what the script assigns to `result`."""
    result = await context.services.sandbox.script(context.step.transform_code, context.pending.state)
    shown = None if result is None else text_of(result)
    if shown is not None and len(shown) > MAX_PREVIEW:
        shown = shown[: MAX_PREVIEW - 1] + "…"
    await context.emit(EventType.TRANSFORM_RESULT, result=shown)
    return result


async def if_else(context: StepContext[IfElseStep]) -> bool:
    """Return whether the condition holds."""
    return await context.services.sandbox.condition(context.step.if_condition, context.pending.state)


async def switch(context: StepContext[SwitchStep]) -> Any:
    """Return the value that is compared with the cases."""
    return await context.services.sandbox.expression(context.step.switch_expression, context.pending.state)


async def loop_condition(context: StepContext[LoopStep]) -> bool:
    """Return whether another round follows."""
    return await context.services.sandbox.condition(context.step.while_condition or "False", context.pending.state)


async def loop_items(context: StepContext[LoopStep]) -> list[Any]:
    """Return the list of items."""
    items = await context.services.sandbox.expression(context.step.for_each or "[]", context.pending.state)
    if not isinstance(items, list):
        kind = "an object" if isinstance(items, dict) else type(items).__name__
        raise StepFailed(
            "expression_error",
            f"for_each must return a list, not {kind}. For the values of an object write list(state.key.values()).",
        )
    found = cast("list[Any]", items)
    if len(found) > MAX_ITEMS:
        raise StepFailed(
            "too_many_items",
            f"for_each returned {len(found)} items; at most {MAX_ITEMS} are allowed. Process them in parts.",
        )
    return found
