"""Questions of runs to people as messages of the assistant, and the user's next message as the answer.

A chat client has no forms. So the question is a message that lists the choices, and the next message of the same
conversation answers it. Chat completions have no conversation id. There the question ends with a mark that names the
run and the event, which the client sends back as part of the conversation.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import orjson

from runlane.api.openai.errors import InvalidValue
from runlane.api.openai.ids import AnswerId
from runlane.api.openai.messages import ParsedMessages
from runlane.api.services import Services
from runlane.domain.access import Principal
from runlane.domain.run import AGENT, Status
from runlane.errors import InvalidInput, RunNotFound, WrongState
from runlane.store.orchestration.waits import Wait, read_waits
from runlane.store.queue.runs import find_run
from runlane.store.queue.search import find_standing
from runlane.store.sql.database import Database
from runlane.templates.template import text_of

_MARK: Final = re.compile(r"\[runlane question ([0-9a-f]{32})_([1-9][0-9]{0,9})\]\s*$")
_CHOICES: Final = frozenset({"select", "multiselect"})


async def open_questions(database: Database, run_id: str, after: int) -> tuple[Wait, ...]:
    """Return the questions that a run has asked since this event; none if it does not wait for a person."""
    standing = await find_standing(database, run_id)
    if standing.status is not Status.PAUSED or standing.last_seq != after:
        return ()
    waits = await read_waits(database, run_id)
    return tuple(wait for wait in waits if wait.kind == "human" and not (wait.answered or wait.overdue))


def question_text(wait: Wait) -> str:
    """Return a question with its details and the answers that it accepts."""
    request = wait.request
    parts = [request.get("prompt") or wait.name, *_context(request.get("context")), _form(request.get("fields") or ())]
    if wait.answerable_by != "tenant":
        parts.append("Only a platform admin may answer this.")
    return "\n\n".join(part for part in parts if part)


def with_mark(text: str, at: AnswerId) -> str:
    """Return a question with the mark that leads from the answer to the question."""
    return f"{text}\n\n[runlane question {at.digits}_{at.after}]"


async def asked_before(parts: Services, principal: Principal, agent: str, parsed: ParsedMessages) -> AnswerId | None:
    """Return the question in the last message of the assistant; None if it does not contain one.

    The run must belong to this agent and to the caller's tenant, and the conversation must contain the message that
    started the run, so that text that imitates a mark does not lead to another run.
    """
    found = _MARK.search(parsed.last_of_assistant)
    if found is None:
        return None
    at = AnswerId(f"run_{found[1]}", int(found[2]))
    try:
        run = await find_run(parts.database, at.run_id)
    except RunNotFound:
        return None
    if run.tenant != principal.tenant or run.target != f"{AGENT}{agent}" or at.after > run.last_seq:
        return None
    # If a run asked several questions, the conversation contains answers in between.
    message = (run.input or {}).get("message")
    return at if any(item.role == "user" and item.text == message for item in parsed.earlier) else None


async def answer_question(parts: Services, principal: Principal, at: AnswerId, text: str, param: str) -> None:
    """Answer the question of a run. A question that already has an answer keeps it."""
    waits = await open_questions(parts.database, at.run_id, at.after)
    if not waits:
        return
    wait = waits[0]
    try:
        reply = parse_reply(wait.request.get("fields") or (), text)
        await parts.app.resume(
            at.run_id, reply, step=wait.path, answered_by=principal.actor, platform=principal.everywhere
        )
    except InvalidInput as error:
        raise InvalidValue(param, f"The run waits for an answer to its question. {error}") from None
    except WrongState:
        # Another answer was stored first, and the run continues with that answer.
        return


def parse_reply(fields: Sequence[Mapping[str, Any]], text: str) -> Mapping[str, Any] | str:
    """Return a message as an answer: a JSON object with the fields, or the value of the only required field."""
    try:
        found: Any = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if isinstance(found, dict):
        return cast("dict[str, Any]", found)
    needed = _needed(fields)
    if needed is None:
        return text
    same = [option for option in needed.get("options", ()) if option.casefold() == text.strip().casefold()]
    return {needed["name"]: same[0] if same else text}


def _needed(fields: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    if len(fields) == 1:
        return fields[0]
    required = [field for field in fields if field.get("required") and field.get("default") is None]
    return required[0] if len(required) == 1 else None


def _form(fields: Sequence[Mapping[str, Any]]) -> str:
    needed = _needed(fields)
    lines: list[str] = []
    if needed is not None and needed.get("type") in _CHOICES:
        lines.append(f"Answer with one of: {', '.join(needed['options'])}.")
    if len(fields) > 1:
        described = ", ".join(f'"{field["name"]}": {_described(field)}' for field in fields)
        lines.append(f"{'Or answer' if lines else 'Answer'} with a JSON object: {{{described}}}")
    return "\n".join(lines)


def _described(field: Mapping[str, Any]) -> str:
    options: Sequence[str] = field.get("options") or ()
    return " | ".join(f'"{option}"' for option in options) if options else str(field.get("label") or field.get("type"))


def _context(context: Any) -> list[str]:
    if not isinstance(context, Mapping):
        return [text_of(context)] if context else []
    named = cast("Mapping[str, Any]", context)
    return ["\n".join(f"{name}: {text_of(value)}" for name, value in named.items() if value not in (None, "", {}))]
