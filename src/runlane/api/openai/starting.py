"""Start or continue the run of a request: a single run of an agent, the next turn of a conversation, or an answer.

The next message of a conversation answers the question of its paused run, so such a request continues that run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

import orjson
from fastapi import Request

from runlane.access.policy import may_see, require
from runlane.api.error_responses import rate_headers
from runlane.api.idempotency import KeyReused, RequestInProgress
from runlane.api.openai.errors import InvalidValue, ParameterRefused
from runlane.api.openai.ids import RESPONSE, AnswerId
from runlane.api.openai.questions import answer_question, open_questions
from runlane.api.services import Services, parts_of
from runlane.domain.access import Permission, Principal
from runlane.domain.conversation import RequestConversation
from runlane.domain.options import RunOptions
from runlane.domain.run import Run
from runlane.errors import Conflict, NotFound, RateQuota, RunNotFound, UnknownSession
from runlane.observability import tracing
from runlane.store.access.idempotency import claim_answer, drop_claim, keep_answer
from runlane.store.chat.turns import find_session, read_before
from runlane.store.definitions import find_definition
from runlane.store.queue.runs import find_run
from runlane.submit.chat import ChatRequest
from runlane.submit.orchestrations import StartRequest

_SESSION: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Asked(NamedTuple):
    """A request: its agent, its message and its options."""

    agent: str
    message: str
    conversation: RequestConversation
    options: RunOptions
    trace: str | None = None


class Started(NamedTuple):
    """The answer that a request started or continued, and the headers of the response."""

    id: AnswerId
    headers: Mapping[str, str]


class Continued(NamedTuple):
    """The last turn of a conversation. Its run is None if it is no longer stored."""

    session_id: str
    turn: int
    run: Run | None


async def find_agent(parts: Services, principal: Principal, agent_id: str) -> Mapping[str, Any]:
    """Return the current definition of an agent. Raise UnknownDefinition if it does not exist."""
    # The response contains the answer, so the caller must be allowed to read runs.
    require(principal, Permission.RUNS_READ)
    return (await find_definition(parts.database, principal.tenant, "agent", agent_id)).body


async def find_answer(parts: Services, principal: Principal, text: str, prefix: str) -> tuple[AnswerId, Run]:
    """Return an answer and its run. Raise NotFound if it does not exist or the caller may not see it."""
    found = AnswerId.parse(text, prefix)
    try:
        run = None if found is None else await find_run(parts.database, found.run_id)
    except RunNotFound:
        run = None
    if found is None or run is None or not may_see(principal, run.tenant) or run.agent is None:
        raise NotFound(f'No response "{text[:200]}" exists. Check the id and the retention time.')
    if found.after > run.last_seq:
        raise NotFound(f'No response "{text[:200]}" exists. Check the id and the retention time.')
    return found, run


async def start_run(request: Request, principal: Principal, asked: Asked) -> Started:
    """Accept a run of the agent without a conversation."""
    start = StartRequest(asked.agent, asked.message, None, asked.options, kind="agent", conversation=asked.conversation)
    with tracing.span(f"accept {asked.agent}", _span(asked, principal)):
        accepted = await parts_of(request).app.submit(start, tenant=principal.tenant, trace=_trace(asked))
    if not accepted.run_id:
        raise Conflict(
            f'The flow control of the agent "{asked.agent}" started no run for this request ({accepted.outcome.value}).'
        )
    return started(request, AnswerId(accepted.run_id), accepted.quota)


async def post_turn(request: Request, principal: Principal, asked: Asked, last: Continued | None) -> Started:
    """Accept the next turn of a conversation, or the first turn of a new conversation."""
    conversation = asked.conversation
    if last is not None and last.run is not None:
        # The session stores one message per turn. Other messages of earlier requests are copied to the new turn.
        earlier = RequestConversation.from_plan(last.run.plan or {}).of_turn(last.turn)
        conversation = RequestConversation(
            (*earlier, *conversation.messages), conversation.instructions, conversation.settings
        )
    post = ChatRequest(
        asked.agent,
        asked.message,
        None if last is None else last.session_id,
        None,
        asked.options,
        conversation,
        None if last is None else last.turn,
    )
    with tracing.span(f"chat {asked.agent}", _span(asked, principal)):
        posted = await parts_of(request).app.post(post, tenant=principal.tenant, trace=_trace(asked))
    return started(request, AnswerId(posted.run_id), posted.quota)


def started(request: Request, found: AnswerId, quota: RateQuota | None = None) -> Started:
    """Return an answer with its headers. Responses to later errors of this request have the run's header, too."""
    request.state.runlane_run_id = found.run_id
    return Started(found, {"x-runlane-run-id": found.run_id, **rate_headers(quota)})


async def find_continued(
    parts: Services, principal: Principal, agent: str, previous: str | None, session_id: str | None
) -> Continued | None:
    """Return the turn that a request continues, given by its response or its conversation."""
    if previous is not None and session_id is not None:
        raise InvalidValue("previous_response_id", "Give either 'previous_response_id' or 'conversation', not both.")
    if previous is not None:
        return await _after_response(parts, principal, agent, previous)
    if session_id is not None:
        return await _last_turn(parts, principal, session_id)
    return None


async def _after_response(parts: Services, principal: Principal, agent: str, previous: str) -> Continued:
    _, run = await find_answer(parts, principal, previous, RESPONSE)
    if run.agent != agent:
        raise InvalidValue(
            "model", f'The response "{previous}" belongs to the agent "{run.agent}". Continue it with that model.'
        )
    chat: Mapping[str, Any] | None = (run.plan or {}).get("chat")
    if chat is None:
        raise ParameterRefused(
            "previous_response_id",
            f'The response "{previous}" does not belong to a conversation, because its request had store=false. Send '
            "its messages in 'input' instead.",
        )
    return Continued(chat["session_id"], chat["turn"], run)


async def _last_turn(parts: Services, principal: Principal, session_id: str) -> Continued:
    if _SESSION.fullmatch(session_id) is None:
        raise UnknownSession(session_id[:200])
    session = await find_session(parts.database, session_id)
    if not may_see(principal, session.tenant):
        raise UnknownSession(session_id)
    turns = await read_before(parts.database, session_id, session.turns + 1, 1)
    run = await find_run(parts.database, turns[0].run_id) if turns and turns[0].kept else None
    return Continued(session_id, session.turns, run)


async def answer_in_turn(parts: Services, principal: Principal, last: Continued, asked: Asked) -> AnswerId | None:
    """Answer the question that the last turn waits for; None if it does not wait for a person.

    A request that is repeated with its Idempotency-Key gets the response of the first request.
    """
    run, key = last.run, asked.options.idempotency_key
    if run is None:
        return None
    if key is None:
        return await _answer(parts, principal, run, asked)
    scope = "\x1f".join((principal.tenant, principal.key_id, "openai answer", last.session_id, key))
    name = sha256(scope.encode()).hexdigest()
    known = await claim_answer(parts.database, name, sha256(f"{scope}\x1f{asked.message}".encode()).hexdigest())
    if known is None:
        return await _answer_once(parts, principal, run, asked, name)
    if not known.same_request:
        raise KeyReused(f'The Idempotency-Key "{key}" was used before with another message. Use a new one.')
    if known.status is None or known.body is None:
        raise RequestInProgress("The first request with this Idempotency-Key is still in progress. Retry in a moment.")
    return AnswerId(*orjson.loads(known.body))


async def _answer_once(parts: Services, principal: Principal, run: Run, asked: Asked, name: str) -> AnswerId | None:
    found = None
    try:
        found = await _answer(parts, principal, run, asked)
        if found is not None:
            await keep_answer(parts.database, name, 200, orjson.dumps(list(found)).decode())
    finally:
        if found is None:
            await drop_claim(parts.database, name)
    return found


async def _answer(parts: Services, principal: Principal, run: Run, asked: Asked) -> AnswerId | None:
    at = AnswerId(run.id, run.last_seq)
    if not await open_questions(parts.database, run.id, run.last_seq):
        return None
    await answer_question(parts, principal, at, asked.message, "input")
    return at


def _span(asked: Asked, principal: Principal) -> dict[str, str]:
    return {"runlane.agent": asked.agent, "runlane.tenant": principal.tenant}


def _trace(asked: Asked) -> str | None:
    return tracing.current_parent() or tracing.valid_parent(asked.trace)
