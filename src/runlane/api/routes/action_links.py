"""Action links: one link gives one answer to one question, for one named person, from a mail or a chat.

Opening the link shows a page; the button on it gives the answer. The link is the credential: it needs no key, grants
nothing else, and ends with its question, its time and the key that made it.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from runlane import queries
from runlane.api.answer_page import answer_page, gone_page, page_headers
from runlane.api.auth import RunsWrite
from runlane.api.client_side import client_side
from runlane.api.dashboard.pages import new_nonce
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.routes.visibility import require_visible
from runlane.api.schemas.inbox import CreateLink
from runlane.api.serializers import ValueBody
from runlane.api.services import Services, parts_of
from runlane.domain.action_link import LINK_PATH, ActionLink
from runlane.domain.hints import Topic
from runlane.domain.text import clean_text
from runlane.domain.wait import QuestionDetail, QuestionKind, QuestionState, question_kind
from runlane.errors import Forbidden, RunlaneError, WrongState
from runlane.store.orchestration.action_links import NewLink, create_action_link, find_action_link, note_link_use
from runlane.store.orchestration.inbox import find_question
from runlane.store.orchestration.waits import Wait
from runlane.submit.orchestrations import answer_run, check_answer

changes = APIRouter(tags=["inbox"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])
# The token in the path authenticates, so no route of this router has a key.
pages = APIRouter(include_in_schema=False)


@changes.post("/inbox/links", status_code=201, response_model=ActionLink, responses=answers(404, 409))
async def create_link(request: Request, principal: RunsWrite, body: CreateLink) -> ValueBody:
    """Make a link that gives this answer to a question without a key, once. Its address is returned this once."""
    parts = parts_of(request)
    if not parts.app.settings.action_links:
        raise Forbidden("Action links are not enabled on this server. Set RUNLANE_ACTION_LINKS=true to allow them.")
    await require_visible(parts, principal, body.run_id)
    wait = await find_question(parts.database, body.run_id, body.path)
    detail = await queries.get_question(parts.database, body.run_id, body.path)
    _require_linkable(wait, detail)
    check_answer(wait, body.response)
    seconds = body.expires_in_seconds if wait.due_in_us is None else min(body.expires_in_seconds, wait.due_in_us / 1e6)
    link, token = await create_action_link(
        parts.database,
        NewLink(
            wait.tenant, wait.run_id, wait.path, wait.opened_at_us, body.response, clean_text(body.person, 200),
            principal.key_id, principal.name, int(seconds * 1_000_000),
        ),
    )  # fmt: skip
    side = client_side(request)
    base = (parts.app.settings.public_url or f"{side.origin}{side.prefix}").rstrip("/")
    return ValueBody(link.at(f"{base}{LINK_PATH}{token}"), 201)


def _require_linkable(wait: Wait, detail: QuestionDetail) -> None:
    """Refuse questions whose answer a forwarded mail must not give."""
    if detail.state is not QuestionState.OPEN:
        raise WrongState(f"The question of run {wait.run_id} at {wait.path} is {detail.state.value}.")
    kind = question_kind(wait.path)
    once = kind is QuestionKind.APPROVAL and wait.request.get("effect") not in ("repeatable", "ask")
    if kind in (QuestionKind.BUDGET, QuestionKind.UNKNOWN_EFFECT) or once or wait.answerable_by != "tenant":
        raise Forbidden(
            "Questions about budgets, unknown effects and tools that must be called once are answered with a key only. "
            "Send the address of the question in the dashboard instead."
        )


@pages.get(f"{LINK_PATH}{{token}}")
async def show_answer(request: Request, token: str) -> Response:
    """Show the question and the answer that the link gives. Nothing changes."""
    nonce = new_nonce()
    parts = parts_of(request)
    found = await _find(parts, token)
    if found is None:
        return Response(gone_page(nonce, None), 404, page_headers(nonce), "text/html")
    link, detail = found
    if detail.state is not QuestionState.OPEN:
        return Response(gone_page(nonce, detail), 200, page_headers(nonce), "text/html")
    return Response(answer_page(nonce, link, detail.question), 200, page_headers(nonce), "text/html")


@pages.post(f"{LINK_PATH}{{token}}")
async def give_answer(request: Request, token: str) -> Response:
    """Give the answer of the link, if its question is open; then show who has answered what."""
    nonce = new_nonce()
    parts = parts_of(request)
    found = await _find(parts, token)
    if found is None:
        return Response(gone_page(nonce, None), 404, page_headers(nonce), "text/html")
    link, detail = found
    if detail.state is QuestionState.OPEN:
        try:
            await _answer(parts, link, detail)
        except RunlaneError as error:
            # Another answer was faster; what it was follows.
            if error.http_status >= 500:
                raise
        detail = await queries.get_question(parts.database, link.run_id, link.path)
    return Response(gone_page(nonce, detail), 200, page_headers(nonce), "text/html")


async def _find(parts: Services, token: str) -> tuple[ActionLink, QuestionDetail] | None:
    if not parts.app.settings.action_links:
        return None
    link = await find_action_link(parts.database, token)
    if link is None:
        return None
    return link, await queries.get_question(parts.database, link.run_id, link.path)


async def _answer(parts: Services, link: ActionLink, detail: QuestionDetail) -> None:
    change = await answer_run(
        parts.database,
        link.run_id,
        link.response,
        step=link.path,
        answered_by=f"{link.person} (link of {link.created_by})",
        platform=False,
    )
    parts.connection.publish_change(change)
    parts.connection.bus.hint(Topic.INBOX, None, link.run_id)
    await note_link_use(parts.database, link, detail.question.tenant)
