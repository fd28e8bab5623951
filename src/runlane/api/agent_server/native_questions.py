"""Questions of agents and orchestrations as interrupts, and resume commands of LangGraph's clients as answers.

The id of an interrupt is computed from the run and the question, so every server returns the same id. The approval of a
tool has the format of LangChain's middleware, so that interfaces for that format can show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

from runlane.api.openai.questions import open_questions, parse_reply
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.text import dump_json
from runlane.domain.thread import Thread
from runlane.errors import Conflict, InvalidRequest, WrongState
from runlane.store.orchestration.waits import Wait
from runlane.store.queue.search import find_standing
from runlane.store.threads.native_runs import asking_runs

_ID: Final = re.compile(r"[0-9a-f]{32}")
_DECISION: Final = "decision"
# The decisions of an approval, by the names that clients use.
_DECISIONS: Final = {"approve": "approve", "accept": "approve", "edit": "edit", "reject": "deny", "deny": "deny"}


def interrupts_of(waits: Sequence[Wait]) -> list[dict[str, Any]]:
    """Return open questions as interrupts."""
    return [{"value": _value(wait), "id": interrupt_id(wait)} for wait in waits]


def interrupt_id(wait: Wait) -> str:
    """Return the id of a question. A question that is repeated has another id."""
    return sha256(f"{wait.run_id}|{wait.path}|{wait.opened_at_us}".encode()).hexdigest()[:32]


async def resume_native(
    parts: Services, principal: Principal, thread: Thread, command: Mapping[str, Any]
) -> tuple[str, int]:
    """Answer the questions of a thread. Return the id of the run and the event at which it was paused."""
    for name in ("update", "goto"):
        if command.get(name):
            raise InvalidRequest(f"command.{name} is only supported for LangGraph graphs, not for agents. Omit it.")
    run_id = (await asking_runs(parts.database, [thread.key])).get(thread.key)
    waits: Sequence[Wait] = ()
    paused_at = 0
    if run_id is not None:
        paused_at = (await find_standing(parts.database, run_id)).last_seq
        waits = await open_questions(parts.database, run_id, paused_at)
    if run_id is None or not waits:
        raise Conflict(f'The thread "{thread.id}" does not wait for an answer. Send input to start the agent again.')
    # Every answer is parsed before the first one is stored.
    replies = [(wait, _reply(wait, answer)) for wait, answer in _matched(thread, waits, command.get("resume"))]
    for wait, reply in replies:
        await _answer(parts, principal, wait, reply)
    return run_id, paused_at


def _matched(thread: Thread, waits: Sequence[Wait], resume: Any) -> list[tuple[Wait, Any]]:
    by_id = {interrupt_id(wait): wait for wait in waits}
    names = list(cast("Mapping[str, Any]", resume)) if isinstance(resume, Mapping) else []
    if names and all(_ID.fullmatch(name) for name in names):
        unknown = [name for name in names if name not in by_id]
        if unknown:
            raise InvalidRequest(
                f'The thread "{thread.id}" has no interrupt "{unknown[0]}". Open interrupts: '
                f"{', '.join(sorted(by_id))}."
            )
        return [(by_id[name], cast("Mapping[str, Any]", resume)[name]) for name in names]
    if len(waits) > 1:
        raise InvalidRequest(
            f"The thread waits for {len(waits)} answers. Send command.resume as an object of answers by interrupt id: "
            f"{', '.join(sorted(by_id))}."
        )
    return [(waits[0], resume)]


async def _answer(parts: Services, principal: Principal, wait: Wait, reply: Mapping[str, Any] | str) -> None:
    try:
        await parts.app.resume(
            wait.run_id,
            reply,
            step=wait.path,
            answered_by=principal.actor,
            platform=principal.everywhere,
        )
    except WrongState:
        raise Conflict(f"The question at {wait.path} has been answered meanwhile. Read the thread again.") from None


def _reply(wait: Wait, given: Any) -> Mapping[str, Any] | str:
    """Return the answer in the form of the question."""
    fields: Sequence[Mapping[str, Any]] = wait.request.get("fields") or ()
    if any(field["name"] == _DECISION for field in fields) and _is_approval(wait):
        return _decision(given)
    if isinstance(given, str):
        return parse_reply(fields, given)
    if isinstance(given, Mapping):
        return dict(cast("Mapping[str, Any]", given))
    if len(fields) == 1:
        return {fields[0]["name"]: given}
    return dump_json(given)


def _decision(given: Any) -> dict[str, Any]:
    """Return the decision about a tool call from one of the formats that clients send."""
    found = given
    if isinstance(found, Mapping) and "decisions" in found:
        found = cast("Mapping[str, Any]", found)["decisions"]
    if isinstance(found, list) and len(cast("list[Any]", found)) == 1:
        found = cast("list[Any]", found)[0]
    if isinstance(found, bool):
        return {_DECISION: "approve" if found else "deny"}
    if isinstance(found, str):
        found = {"type": found}
    if not isinstance(found, Mapping):
        raise InvalidRequest('The answer to an approval must be "approve" or "reject", or an object with "type".')
    table = cast("Mapping[str, Any]", found)
    if _DECISION in table:
        return dict(table)
    wanted = str(table.get("type", "")).strip().lower()
    if wanted not in _DECISIONS:
        raise InvalidRequest(f'"{wanted[:40]}" is not a decision. Use approve, edit or reject.')
    reply: dict[str, Any] = {_DECISION: _DECISIONS[wanted]}
    if table.get("message"):
        reply["reason"] = str(table["message"])
    edited = cast("Mapping[str, Any]", table.get("edited_action") or {})
    arguments: Any = table.get("args") or edited.get("args")
    if arguments:
        reply["arguments"] = dump_json(arguments)
    return reply


def _is_approval(wait: Wait) -> bool:
    return "tool_name" in _context(wait)


def _context(wait: Wait) -> Mapping[str, Any]:
    context: Any = wait.request.get("context")
    return cast("Mapping[str, Any]", context) if isinstance(context, Mapping) else {}


def _value(wait: Wait) -> dict[str, Any]:
    request, context = wait.request, _context(wait)
    shown: dict[str, Any] = {
        "prompt": request.get("prompt") or wait.name,
        "fields": request.get("fields") or [],
        "context": request.get("context"),
    }
    if _is_approval(wait):
        name = context["tool_name"]
        shown["action_requests"] = [
            {"name": name, "args": context.get("arguments") or {}, "description": shown["prompt"]}
        ]
        shown["review_configs"] = [{"action_name": name, "allowed_decisions": ["approve", "edit", "reject"]}]
    return shown
