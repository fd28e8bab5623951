"""Buttons in Slack: signed by Slack, recent, clicked by a user of the list, and the value is the token of a link."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import AsyncGenerator
from hashlib import sha256
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from pydantic import SecretStr

from runlane.api.routes.slack_answers import describe_end
from runlane.api.services import WorkerOptions
from runlane.domain.wait import Question, QuestionDetail, QuestionState
from runlane.outbound.client import Outbound
from runlane.settings import Settings
from tests.acceptance.api.flows import ARTICLE, bring
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_action_links import make, page_of
from tests.acceptance.api.test_orchestrations import ended, paused
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually

SECRET = "8f742231b10e8888abcd99baac85a5aa"
PATH = "/answer/slack"
REPLY = "https://hooks.slack.com/actions/T1/2/3"


@pytest.fixture
async def slack(settings: Settings) -> AsyncGenerator[Api]:
    """A server with a worker, whose questions two users of Slack may answer."""
    allowed = {"action_links": True, "slack_signing_secret": SecretStr(SECRET), "slack_users": "U1, W2"}
    async with serving(copy_of(shop, settings.model_copy(update=allowed)), worker=WorkerOptions()) as api:
        await bring(api.parts.database, ARTICLE)
        yield api


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the server sends to Slack."""
    sent: list[tuple[str, dict[str, Any]]] = []

    async def request(_self: Outbound, _method: str, url: str, *, content: bytes, **_: Any) -> None:
        sent.append((url, json.loads(content)))

    monkeypatch.setattr(Outbound, "request", request)
    return sent


def form(link: dict[str, Any], user: str = "U1", reply: str = REPLY) -> bytes:
    token = page_of(link).rpartition("/")[2]
    payload = {
        "type": "block_actions",
        "user": {"id": user, "username": "ann <!channel>"},
        "actions": [{"action_id": "approve", "type": "button", "value": token}],
        "response_url": reply,
    }
    return urlencode({"payload": json.dumps(payload)}).encode()


async def click(api: Api, body: bytes, *, sent_at: int | None = None, secret: str = SECRET) -> httpx2.Response:
    at = str(int(time.time()) if sent_at is None else sent_at)
    signature = hmac.new(secret.encode(), b"v0:" + at.encode() + b":" + body, sha256).hexdigest()
    headers = {
        "Authorization": "",
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": at,
        "X-Slack-Signature": f"v0={signature}",
    }
    return await api.client.post(PATH, content=body, headers=headers)


async def state_of(api: Api, run_id: str) -> str:
    return (await api.get(f"/inbox/{run_id}/ask")).json()["state"]


async def test_a_click_of_a_listed_user_answers_and_replaces_the_buttons(
    slack: Api, replies: list[tuple[str, dict[str, Any]]]
) -> None:
    run_id = await paused(slack, "article", message="A <b>bold</b> text")
    link = await make(slack, run_id, person="Slack")
    assert (await click(slack, form(link))).status_code == 200
    await ended(slack, run_id)
    seen = (await slack.get(f"/inbox/{run_id}/ask")).json()
    assert seen["answer"]["decision"] == "approve"
    assert seen["question"]["answered_by"].startswith("ann <!channel> in Slack (link of ")
    used = (await slack.get("/audit", params={"action": "link.use"})).json()["entries"][0]
    assert (used["subject"], used["new"]["used_by"]) == (run_id, "slack:U1")
    ((url, message),) = await eventually(lambda: replies, "the reply")
    assert (url, message["replace_original"]) == (REPLY, True)
    assert "Answered by ann &lt;!channel&gt; in Slack" in message["text"]
    assert "<" not in message["text"]
    # A second click, of a colleague, sees who was first.
    await click(slack, form(link, "W2"))
    again = await eventually(lambda: replies[1:], "the second reply")
    assert again[0][1]["text"] == message["text"]


async def test_clicks_that_slack_did_not_sign_in_time_are_rejected(slack: Api) -> None:
    run_id = await paused(slack, "article")
    body = form(await make(slack, run_id))
    problem_of(await click(slack, body, secret="guessed"), 401, "signature_rejected")
    for age in (-301, 301):
        problem_of(await click(slack, body, sent_at=int(time.time()) + age), 401, "signature_rejected")
    problem_of(await slack.client.post(PATH, content=body), 401, "signature_rejected")
    problem_of(await click(slack, b"payload=%7B%7D"), 422, "invalid_request")
    problem_of(await click(slack, b"x" * 300_000), 413, "too_large")
    assert await state_of(slack, run_id) == "open"


async def test_users_outside_the_list_and_revoked_links_decide_nothing(
    slack: Api, replies: list[tuple[str, dict[str, Any]]]
) -> None:
    run_id = await paused(slack, "article")
    link = await make(slack, run_id)
    assert (await click(slack, form(link, "U3"))).status_code == 200
    await slack.client.delete(f"/api/v2/inbox/links/{link['id']}")
    await click(slack, form(link))
    # An address that is not Slack's is not called.
    await click(slack, form(link, reply="https://hooks.slack.com.example.com/x"))
    sent = await eventually(lambda: replies if len(replies) == 2 else None, "two replies")
    texts = [message["text"] for _, message in sent]
    assert texts[0].startswith("You may not answer questions.")
    assert texts[1].startswith("This button is not valid.")
    assert {message["response_type"] for _, message in sent} == {"ephemeral"}
    assert await state_of(slack, run_id) == "open"


async def test_buttons_are_off_by_default(api: Api) -> None:
    refused = problem_of(await click(api, b"payload=%7B%7D"), 404, "not_found")
    # As for any path that does not exist: no name of a setting.
    assert refused["message"] == f"{PATH} does not exist. See /docs for the paths."


@pytest.mark.parametrize("state", QuestionState)
def test_messages_in_slack_are_short(state: QuestionState) -> None:
    long = "x" * 100_000
    question = Question(
        "run_1", "orchestration:a", "default", "ask", "ask", "human", "ask", long, (), None, 1, None, None, "Ann"
    )
    assert len(describe_end(QuestionDetail(question, state, {"text": long}))) < 3000


def test_the_secret_needs_links_and_a_list_of_users() -> None:
    for missing in ({"slack_users": "U1"}, {"action_links": True}):
        with pytest.raises(ValueError, match="RUNLANE_SLACK_SIGNING_SECRET needs"):
            Settings(slack_signing_secret=SecretStr(SECRET), **missing)  # pyright: ignore[reportArgumentType]
