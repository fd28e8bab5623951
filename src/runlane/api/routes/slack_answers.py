"""Buttons in Slack that answer a question. The value of a button is the token of an action link.

Slack signs the raw body and the time. A request that is older than five minutes is rejected. Only the users that the
setting lists may answer, and the answer names the user whom Slack has authenticated.
"""

from __future__ import annotations

import time
from typing import Any, Final

import structlog
from fastapi import Request
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.responses import Response

from runlane.access.slack_clicks import SlackClick, read_click
from runlane.access.webhook_signatures import HookRequest
from runlane.api.body import read_bounded
from runlane.api.link_answers import find_link, give_answer
from runlane.api.router import RawRouter
from runlane.api.services import Services, parts_of
from runlane.domain.action_link import LINK_PATH
from runlane.domain.text import dump_json
from runlane.domain.wait import QuestionDetail, QuestionState
from runlane.errors import OutboundError
from runlane.outbound.client import Outbound
from runlane.outbound.limits import OutboundLimits
from runlane.settings import Settings

log = structlog.get_logger(__name__)

router = RawRouter(include_in_schema=False)

_MAX_BYTES: Final = 256 * 1024
# The maximum number of characters in a message.
_SHOWN_QUESTION: Final = 1500
_SHOWN_ANSWER: Final = 1000
_REPLY_LIMITS: Final = OutboundLimits(connect_seconds=5, read_seconds=10, total_seconds=10, max_redirects=0)


@router.post(f"{LINK_PATH}slack")
async def receive_click(request: Request) -> Response:
    """Submit the answer of the button that a user has clicked, and reply in Slack with the stored answer."""
    parts = parts_of(request)
    secret = parts.app.settings.slack_signing_secret
    if secret is None:
        # The response is that of a path which does not exist, so that a caller without a key learns nothing about
        # settings.
        raise HTTPException(404)
    headers = {name.lower(): value for name, value in request.headers.items()}
    hook = HookRequest(headers, await read_bounded(request, _MAX_BYTES))
    click = read_click(secret.get_secret_value(), hook, time.time())
    reply = await _answer(parts, click)
    # Slack shows an error if no response arrives within three seconds, so the message is sent after the response.
    return Response(background=BackgroundTask(_send, parts.app.settings, click.reply_url, reply))


async def _answer(parts: Services, click: SlackClick) -> dict[str, Any]:
    """Return the message about a click. It replaces the buttons, or is private if the question is not answered."""
    if click.user_id not in parts.app.settings.slack_user_ids:
        log.warning("slack_user_refused", user_id=click.user_id)
        return _private(f"You may not answer questions. Ask an operator to add your user id, {click.user_id}.")
    found = await find_link(parts, click.token)
    if found is None:
        return _private("This button is not valid. It has expired, or it was revoked.")
    link, detail = found
    person = f"{click.user_name} in Slack"
    detail = await give_answer(parts, link, detail, person, used_by=f"slack:{click.user_id}")
    return {"replace_original": True, "text": describe_end(detail)}


def describe_end(detail: QuestionDetail) -> str:
    """Return the outcome of a question as text of a Slack message."""
    question = (detail.question.prompt or detail.question.name)[:_SHOWN_QUESTION]
    if detail.state is not QuestionState.ANSWERED:
        return _escaped(f"{question}\nThe question is {detail.state.value}. No answer is needed.")
    answer = detail.answer if isinstance(detail.answer, str) else dump_json(detail.answer)
    return _escaped(f"{question}\nAnswered by {detail.question.answered_by}: {answer[:_SHOWN_ANSWER]}")


def _private(text: str) -> dict[str, Any]:
    return {"response_type": "ephemeral", "replace_original": False, "text": _escaped(text)}


def _escaped(text: str) -> str:
    """Return text that Slack shows unchanged: without links and without mentions of users and channels."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


async def _send(settings: Settings, url: str | None, message: dict[str, Any]) -> None:
    if url is None:
        return
    outbound = Outbound(settings)
    try:
        body = dump_json(message).encode()
        headers = {"content-type": "application/json"}
        await outbound.request("POST", url, headers=headers, content=body, limits=_REPLY_LIMITS, keep_bytes=1024)
    except OutboundError as error:
        # The answer is stored; only the message about it was not sent.
        log.warning("slack_reply_failed", error=type(error).__name__)
    finally:
        await outbound.close()
