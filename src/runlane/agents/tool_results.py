"""Results of tool calls: each is stored, emitted and passed to the model."""

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
    """The result of a call. The model receives failures too and may try differently."""

    value: Any
    failed: bool = False

    @property
    def text(self) -> str:
        """The result as the model reads it."""
        return text_of(self.value)


def find_result(journal: Journal, key: str) -> ToolResult | None:
    """Return the stored result of a call. `key` identifies it within the journal."""
    known = journal.find(f"tool/{key}")
    return None if known is None else ToolResult(known["value"], known["failed"])


async def keep_result(
    context: StepContext[Step], journal: Journal, key: str, call: ToolCall, result: ToolResult
) -> ToolResult:
    """Store the result of a call together with its event."""
    preview = result.text
    if len(preview) > MAX_PREVIEW:
        preview = preview[: MAX_PREVIEW - 1] + "…"
    failed = {"failed": True} if result.failed else {}
    context.note(EventType.TOOL_RESULT, tool_name=call.name, call_id=call.id, preview=preview, **failed)
    await journal.keep(CallKind.TOOL, f"tool/{key}", {"value": result.value, "failed": result.failed})
    return result


async def refuse_call(context: StepContext[Step], journal: Journal, key: str, call: ToolCall, why: str) -> ToolResult:
    """Return the result of a call that is not made."""
    return find_result(journal, key) or await keep_result(context, journal, key, call, ToolResult(why, failed=True))
