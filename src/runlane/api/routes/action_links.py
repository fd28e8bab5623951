"""Action links: a link gives one answer to one question, for one named person, from a mail or a chat.

Opening the link shows a page with a button that gives the answer. The link is the credential: it needs no key and
grants nothing else. It ends with its question, at its expiry, and with the key that created it.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Depends, Path, Request
from starlette.responses import Response

from runlane import queries
from runlane.access.policy import tenant_to_list
from runlane.api.answer_page import answer_page, gone_page, page_headers
from runlane.api.auth import RunsWrite
from runlane.api.client_side import client_side
from runlane.api.dashboard.pages import new_nonce
from runlane.api.error_responses import answers
from runlane.api.idempotency import IdempotentRoute, idempotency_header
from runlane.api.link_answers import find_link, give_answer
from runlane.api.router import RawRouter
from runlane.api.routes.visibility import require_visible
from runlane.api.schemas.inbox import CreateLink
from runlane.api.serializers import ValueBody
from runlane.api.services import parts_of
from runlane.domain.action_link import LINK_PATH, ActionLink
from runlane.domain.text import clean_text
from runlane.domain.wait import QuestionDetail, QuestionKind, QuestionState, question_kind
from runlane.errors import Forbidden, WrongState
from runlane.store.orchestration.action_links import (
    NewLink,
    create_action_link,
    revoke_action_link,
)
from runlane.store.orchestration.inbox import find_question
from runlane.store.orchestration.waits import Wait
from runlane.submit.orchestrations import check_answer

changes = RawRouter(tags=["inbox"], route_class=IdempotentRoute, dependencies=[Depends(idempotency_header)])
# The token in the path authenticates the request, so the routes of this router need no key.
pages = RawRouter(include_in_schema=False)

LinkId = Annotated[str, Path(description="The link's id.", max_length=64)]
_ADDRESS: Final = frozenset({"url"})


@changes.post("/inbox/links", status_code=201, response_model=ActionLink, responses=answers(404, 409))
async def create_link(request: Request, principal: RunsWrite, body: CreateLink) -> ValueBody:
    """Create a link that gives this answer to a question once, without a key. Only this response contains its URL."""
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
    response = ValueBody(link.at(f"{base}{LINK_PATH}{token}"), 201)
    response.shown_once = _ADDRESS
    return response


def _require_linkable(wait: Wait, detail: QuestionDetail) -> None:
    """Refuse questions whose answer must not be given through a mail that may be forwarded."""
    if detail.state is not QuestionState.OPEN:
        raise WrongState(f"The question of run {wait.run_id} at {wait.path} is {detail.state.value}.")
    kind = question_kind(wait.path)
    once = kind is QuestionKind.APPROVAL and wait.request.get("effect") not in ("repeatable", "ask")
    if kind in (QuestionKind.BUDGET, QuestionKind.UNKNOWN_EFFECT) or once or wait.answerable_by != "tenant":
        raise Forbidden(
            "Questions about budgets, unknown effects and tools that must be called once need a key for the answer. "
            "Send the URL of the question in the dashboard instead."
        )


@changes.delete("/inbox/links/{link_id}", response_model=ActionLink, responses=answers(404))
async def revoke_link(request: Request, principal: RunsWrite, link_id: LinkId) -> ValueBody:
    """Revoke a link, at once and everywhere."""
    database = parts_of(request).database
    owner = tenant_to_list(principal)
    return ValueBody(await revoke_action_link(database, link_id, actor=principal.actor, tenant=owner))


@pages.get(f"{LINK_PATH}{{token}}")
async def show_answer(request: Request, token: str) -> Response:
    """Show the question and the answer that the link gives. The request changes nothing."""
    nonce = new_nonce()
    found = await find_link(parts_of(request), token)
    if found is None:
        return Response(gone_page(nonce, None), 404, page_headers(nonce), "text/html")
    link, detail = found
    if detail.state is not QuestionState.OPEN:
        return Response(gone_page(nonce, detail), 200, page_headers(nonce), "text/html")
    return Response(answer_page(nonce, link, detail.question), 200, page_headers(nonce), "text/html")


@pages.post(f"{LINK_PATH}{{token}}")
async def use_link(request: Request, token: str) -> Response:
    """Give the answer of the link if its question is open; then show the answer and its author."""
    nonce = new_nonce()
    parts = parts_of(request)
    found = await find_link(parts, token)
    if found is None:
        return Response(gone_page(nonce, None), 404, page_headers(nonce), "text/html")
    link, detail = found
    detail = await give_answer(parts, link, detail, link.person)
    return Response(gone_page(nonce, detail), 200, page_headers(nonce), "text/html")
