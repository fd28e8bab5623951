"""Questions of runs as interrupts, and the answers to them.

The id of an interrupt names the run, the event at which the run paused, and the question. So an answer needs no further
state to find its question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from runlane.api.ag_ui.schemas import ResumeAnswer
from runlane.api.openai.ids import AnswerId
from runlane.api.openai.questions import open_questions, question_text
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.ids import lock_key
from runlane.domain.run import AGENT
from runlane.domain.timestamps import format_timestamp
from runlane.errors import InvalidRequest, NotFound, RunNotFound, WrongState
from runlane.store.orchestration.waits import Wait
from runlane.store.queue.search import find_standing

_ID: Final = re.compile(r"([0-9a-f]{32})_([1-9][0-9]{0,9})_([0-9a-f]{16})")
_TYPES: Final[Mapping[str, str]] = {"number": "number", "boolean": "boolean", "multiselect": "array"}


class _Named(NamedTuple):
    """The place of a question: its run and event, and its name there."""

    at: AnswerId
    name: str


def interrupt(at: AnswerId, wait: Wait) -> dict[str, Any]:
    """Return a question as an interrupt."""
    context: Any = wait.request.get("context")
    call: Mapping[str, Any] = cast("Mapping[str, Any]", context) if isinstance(context, Mapping) else {}
    found: dict[str, Any] = {
        "id": f"{at.digits}_{at.after}_{_name(wait)}",
        "reason": "tool_approval" if "tool_name" in call else "input_required",
        "message": question_text(wait),
        "toolCallId": call.get("call_id"),
        "responseSchema": _schema(wait.request.get("fields") or ()),
        "expiresAt": None if wait.due_at_us is None else format_timestamp(wait.due_at_us),
    }
    return {name: value for name, value in found.items() if value is not None}


async def answer_interrupts(
    parts: Services, principal: Principal, agent: str, answers: Sequence[ResumeAnswer]
) -> AnswerId:
    """Answer questions of one run and return where the run continues. Questions that have an answer are left unchanged.

    An abandoned question cancels the run.
    """
    named = [_parse(entry.interrupt_id) for entry in answers]
    at = named[0].at
    if any(place.at != at for place in named):
        raise InvalidRequest(
            "The entries of resume belong to several runs. Answer the interrupts of one run at a time."
        )
    await _require_run(parts, principal, agent, at, answers[0].interrupt_id)
    waits = {_name(wait): wait for wait in await open_questions(parts.database, at.run_id, at.after)}
    if waits and any(entry.status == "cancelled" for entry in answers):
        await parts.app.cancel(at.run_id, actor=principal.actor)
        return at
    for place, entry in zip(named, answers, strict=True):
        wait = waits.get(place.name)
        if wait is not None:
            await _answer(parts, principal, wait, entry)
    return at


async def _answer(parts: Services, principal: Principal, wait: Wait, entry: ResumeAnswer) -> None:
    payload = entry.payload
    if not isinstance(payload, (str, dict)):
        raise InvalidRequest(
            f'The payload of the interrupt "{entry.interrupt_id}" must be a string, or an object with its fields.'
        )
    try:
        await parts.app.resume(
            wait.run_id,
            cast("dict[str, Any] | str", payload),
            step=wait.path,
            answered_by=principal.actor,
            platform=principal.everywhere,
        )
    except WrongState:
        # Another answer was stored first, and the run continues with that answer.
        return


async def _require_run(parts: Services, principal: Principal, agent: str, at: AnswerId, text: str) -> None:
    try:
        standing = await find_standing(parts.database, at.run_id)
    except RunNotFound:
        standing = None
    if (
        standing is None
        or standing.tenant != principal.tenant
        or standing.target != f"{AGENT}{agent}"
        or at.after > standing.last_seq
    ):
        raise NotFound(f'The interrupt "{text}" does not exist. Pass the id of an interrupt of this agent.')


def _parse(text: str) -> _Named:
    found = _ID.fullmatch(text)
    if found is None:
        raise NotFound(f'The interrupt "{text}" does not exist. Pass the id of an interrupt of this agent.')
    return _Named(AnswerId(f"run_{found[1]}", int(found[2])), found[3])


def _name(wait: Wait) -> str:
    # A path can be of any length; an id cannot.
    return f"{lock_key(wait.path) & (2**64 - 1):016x}"


def _schema(fields: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the form of a question as JSON Schema; None for free text."""
    if not fields:
        return None
    properties: dict[str, Any] = {}
    for field in fields:
        kind = _TYPES.get(field["type"], "string")
        options: Sequence[str] = field.get("options") or ()
        value: dict[str, Any] = {"type": kind}
        if options:
            choice = {"type": "string", "enum": list(options)}
            value = {"type": "array", "items": choice} if kind == "array" else choice
        properties[field["name"]] = value | ({"title": field["label"]} if field.get("label") else {})
    required = [field["name"] for field in fields if field.get("required") and field.get("default") is None]
    return {"type": "object", "properties": properties, "required": required}
