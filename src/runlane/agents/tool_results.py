"""Results of calls: what came of each is kept, told to whoever looks on, and read by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from runlane.agents.journal import Journal
from runlane.definitions.schema.step import Step
from runlane.domain.events import EventType
from runlane.llm.models import ToolCall
from runlane.steps.context import StepContext
from runlane.store.orchestration.calls import CallKind
from runlane.templates.template import text_of

MAX_PREVIEW: Final = 500


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to. A failed one is told to the model, which may do better."""

    value: Any
    failed: bool = False

    @property
    def text(self) -> str:
        """As the model reads it."""
        return text_of(self.value)


def find_result(journal: Journal, place: str) -> ToolResult | None:
    """What is kept of a call. `place` names it within the journal."""
    known = journal.find(f"tool/{place}")
    return None if known is None else ToolResult(known["value"], known["failed"])


async def keep_result(
    context: StepContext[Step], journal: Journal, place: str, call: ToolCall, result: ToolResult
) -> ToolResult:
    """Keep what came of a call, with the event that tells it."""
    preview = result.text
    if len(preview) > MAX_PREVIEW:
        preview = preview[: MAX_PREVIEW - 1] + "…"
    failed = {"failed": True} if result.failed else {}
    context.note(EventType.TOOL_RESULT, tool_name=call.name, call_id=call.id, preview=preview, **failed)
    await journal.keep(CallKind.TOOL, f"tool/{place}", {"value": result.value, "failed": result.failed})
    return result


async def refuse_call(context: StepContext[Step], journal: Journal, place: str, call: ToolCall, why: str) -> ToolResult:
    """The result of a call that is not made."""
    return find_result(journal, place) or await keep_result(context, journal, place, call, ToolResult(why, failed=True))
