"""Results of calls: what came of each is kept, told to whoever looks on, and read by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from runlane.agents.journal import Journal
from runlane.agents.models import ToolCall
from runlane.model.step import Step
from runlane.model.template import text_of
from runlane.steps.work import Work
from runlane.store.calls import CallKind

MAX_PREVIEW: Final = 500


@dataclass(frozen=True, slots=True)
class Result:
    """What a call came to. A failed one is told to the model, which may do better."""

    value: Any
    failed: bool = False

    @property
    def text(self) -> str:
        """As the model reads it."""
        return text_of(self.value)


def find_result(journal: Journal, place: str) -> Result | None:
    """What is kept of a call. `place` names it within the journal."""
    known = journal.find(f"tool/{place}")
    return None if known is None else Result(known["value"], known["failed"])


async def keep_result(work: Work[Step], journal: Journal, place: str, call: ToolCall, result: Result) -> Result:
    """Keep what came of a call, with the event that tells it."""
    preview = result.text
    if len(preview) > MAX_PREVIEW:
        preview = preview[: MAX_PREVIEW - 1] + "…"
    failed = {"failed": True} if result.failed else {}
    work.note("tool_result", tool_name=call.name, call_id=call.id, preview=preview, **failed)
    await journal.keep(CallKind.TOOL, f"tool/{place}", {"value": result.value, "failed": result.failed})
    return result


async def refuse_call(work: Work[Step], journal: Journal, place: str, call: ToolCall, why: str) -> Result:
    """The result of a call that is not made."""
    return find_result(journal, place) or await keep_result(work, journal, place, call, Result(why, failed=True))
