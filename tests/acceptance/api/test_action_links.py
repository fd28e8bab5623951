"""Action links: one answer to one question, for one person, without a key; opening one changes nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane.api.auth import RequestAccess
from runlane.api.link_answers import find_link, give_answer
from runlane.api.services import WorkerOptions
from runlane.domain.access import Permission
from runlane.domain.wait import QuestionState
from runlane.settings import Settings
from runlane.store.access.roles import set_role
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.flows import ARTICLE, bring
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_orchestrations import ended, paused
from tests.acceptance.api.test_runs import problem_of

APPROVE = {"decision": "approve"}


@pytest.fixture
async def linking(settings: Settings) -> AsyncGenerator[Api]:
    """A server with a worker that allows links."""
    allowed = settings.model_copy(update={"action_links": True})
    async with serving(copy_of(shop, allowed), worker=WorkerOptions()) as api:
        await bring(api.parts.database, ARTICLE)
        yield api


async def make(api: Api, run_id: str, **fields: Any) -> dict[str, Any]:
    body = {"run_id": run_id, "path": "ask", "person": "Ann <b>", "response": APPROVE, **fields}
    answer = await api.post("/inbox/links", body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def page_of(link: dict[str, Any]) -> str:
    return "/answer/" + link["url"].rpartition("/answer/")[2]


async def test_a_link_gives_its_answer_by_its_button_alone(linking: Api) -> None:
    run_id = await paused(linking, "article", message="<script>alert(1)</script>")
    link = await make(linking, run_id)
    assert link["url"].startswith("http")
    anonymous = {"Authorization": ""}
    for _ in range(2):
        shown = await linking.client.get(page_of(link), headers=anonymous)
        assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
        assert "script-src 'self'" in shown.headers["content-security-policy"]
        assert "<script>" not in shown.text
        assert "Ann &lt;b&gt;" in shown.text
    assert (await linking.get(f"/inbox/{run_id}/ask")).json()["state"] == "open"
    given = await linking.client.post(page_of(link), headers=anonymous)
    assert (given.status_code, "The question is answered" in given.text) == (200, True)
    await ended(linking, run_id)
    seen = (await linking.get(f"/inbox/{run_id}/ask")).json()
    assert (seen["state"], seen["answer"]["decision"]) == ("answered", "approve")
    assert seen["question"]["answered_by"].startswith("Ann <b> (link of ")
    again = await linking.client.post(page_of(link), headers=anonymous)
    assert "Answered by Ann &lt;b&gt;" in again.text
    used = [entry for entry in (await linking.get("/audit")).json()["entries"] if entry["action"].startswith("link.")]
    assert [entry["action"] for entry in used] == ["link.use", "link.create"]


async def test_a_link_ends_with_its_key_and_its_time(linking: Api) -> None:
    run_id = await paused(linking, "article")
    created = (await linking.post("/keys", {"name": "mailer", "role": "operator"})).json()
    mailer = {"Authorization": f"Bearer {created['key']}"}
    body = {"run_id": run_id, "path": "ask", "person": "Ann", "response": APPROVE}
    link = (await linking.post("/inbox/links", body, headers=mailer)).json()
    assert (await linking.client.get(page_of(link))).status_code == 200
    await linking.client.delete(f"{API}/keys/{created['id']}")
    assert (await linking.client.post(page_of(link))).status_code == 404
    expired = await make(linking, run_id)
    await linking.parts.database.transact(_expire_links)
    assert (await linking.client.post(page_of(expired))).status_code == 404
    for wrong in ("/answer/x", "/answer/" + "a" * 43):
        assert (await linking.client.get(wrong)).status_code == 404
    assert (await linking.get(f"/inbox/{run_id}/ask")).json()["state"] == "open"


async def test_a_link_is_made_only_for_a_valid_answer_to_an_own_question(linking: Api) -> None:
    run_id = await paused(linking, "article")
    body = {"run_id": run_id, "path": "ask", "person": "Ann", "response": APPROVE}
    problem_of(await linking.post("/inbox/links", {**body, "response": {"decision": "maybe"}}), 422, "invalid_input")
    problem_of(await linking.post("/inbox/links", {**body, "path": "draft"}), 404, "not_found")
    problem_of(await linking.post("/inbox/links", {**body, "person": ""}), 422, "invalid_request")
    await create_tenant(linking.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await linking.key('operator', tenant='acme')}"}
    problem_of(await linking.post("/inbox/links", body, headers=acme), 404, "run_not_found")
    viewer = {"Authorization": f"Bearer {await linking.key('viewer')}"}
    problem_of(await linking.post("/inbox/links", body, headers=viewer), 403, "forbidden")


async def test_links_are_off_by_default(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article")
    body = {"run_id": run_id, "path": "ask", "person": "Ann", "response": APPROVE}
    problem_of(await api.post("/inbox/links", body), 403, "forbidden")
    assert (await api.client.get("/answer/" + "a" * 43)).status_code == 404


async def test_links_are_listed_and_revoked(linking: Api) -> None:
    run_id = await paused(linking, "article")
    links = [await make(linking, run_id, person=person) for person in ("Ann", "Ben")]
    listed = (await linking.get("/inbox/links", params={"run_id": run_id})).json()["links"]
    assert [(link["id"], link["url"]) for link in listed] == [(link["id"], None) for link in links]
    await create_tenant(linking.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await linking.key('operator', tenant='acme')}"}
    assert (await linking.get("/inbox/links", headers=acme)).json()["links"] == []
    path = f"{API}/inbox/links/{links[0]['id']}"
    problem_of(await linking.client.delete(path, headers=acme), 404, "not_found")
    assert (await linking.client.delete(path)).json()["id"] == links[0]["id"]
    problem_of(await linking.client.delete(path), 404, "not_found")
    assert (await linking.client.post(page_of(links[0]))).status_code == 404
    entry = (await linking.get("/audit", params={"action": "link.revoke"})).json()["entries"][0]
    assert (entry["subject"], entry["old"]["person"]) == (run_id, "Ann")
    assert (await linking.client.post(page_of(links[1]))).status_code == 200
    # The question is decided, so the link is of no use and not listed.
    assert (await linking.get("/inbox/links", params={"run_id": run_id})).json()["links"] == []


async def test_the_address_of_a_link_is_not_kept_for_a_repeated_request(linking: Api) -> None:
    run_id = await paused(linking, "article")
    body = {"run_id": run_id, "path": "ask", "person": "Ann", "response": APPROVE}
    once = {"Idempotency-Key": "one-link"}
    first, second = [(await linking.post("/inbox/links", body, headers=once)).json() for _ in range(2)]
    assert (first["id"], second["url"]) == (second["id"], None)
    assert (await linking.client.get(page_of(first))).status_code == 200


async def _expire_links(session: Any) -> None:
    from sqlalchemy import update

    from runlane.store.sql.schema import action_links
    from runlane.store.sql.statement import Statement

    await session.fetch(Statement("expire_links", update(action_links).values(expires_at=1), purpose="For a test."))


async def test_a_link_does_not_answer_a_question_that_is_asked_again(linking: Api) -> None:
    run_id = await paused(linking, "article")
    link = await make(linking, run_id)
    token = page_of(link).removeprefix("/answer/")
    found = await find_link(linking.parts, token)
    assert found is not None
    # The step is performed again and asks at the same path, after the link was found.
    await linking.parts.database.transact(_ask_again)
    detail = await give_answer(linking.parts, *found, "Ann")
    assert detail.state is QuestionState.OPEN
    assert (await linking.client.post(page_of(link))).status_code == 404
    assert (await linking.get("/inbox/links")).json()["links"] == []
    current = await make(linking, run_id)
    assert (await linking.client.post(page_of(current))).status_code == 200
    assert (await linking.get(f"/inbox/{run_id}/ask")).json()["state"] == "answered"


async def test_a_link_ends_when_the_role_of_its_key_loses_the_permission(linking: Api) -> None:
    run_id = await paused(linking, "article")
    database = linking.parts.database
    await set_role(database, "mailer", {Permission.RUNS_WRITE}, actor="test")
    mailer = {"Authorization": f"Bearer {await linking.key('mailer')}"}
    body = {"run_id": run_id, "path": "ask", "person": "Ann", "response": APPROVE}
    link = (await linking.post("/inbox/links", body, headers=mailer)).json()
    assert (await linking.client.get(page_of(link))).status_code == 200
    await set_role(database, "mailer", {Permission.RUNS_READ}, actor="test")
    assert (await linking.client.post(page_of(link))).status_code == 404
    assert (await linking.get(f"/inbox/{run_id}/ask")).json()["state"] == "open"


async def test_links_of_an_open_server_end_when_it_gets_keys(settings: Settings) -> None:
    allowed = settings.model_copy(update={"action_links": True})
    opened = RequestAccess.OPEN_ON_LOOPBACK
    async with serving(copy_of(shop, allowed), access=opened, worker=WorkerOptions(), key=False) as api:
        await bring(api.parts.database, ARTICLE)
        run_id = await paused(api, "article")
        link = await make(api, run_id)
        assert (await api.client.get(page_of(link))).status_code == 200
        assert len((await api.get("/inbox/links")).json()["links"]) == 1
    async with serving(copy_of(shop, allowed), worker=WorkerOptions()) as api:
        assert (await api.client.get(page_of(link))).status_code == 404
        assert (await api.client.post(page_of(link))).status_code == 404
        assert (await api.get("/inbox/links")).json()["links"] == []
        assert (await api.get(f"/inbox/{run_id}/ask")).json()["state"] == "open"


async def _ask_again(session: Any) -> None:
    from sqlalchemy import update

    from runlane.store.sql.schema import run_waits
    from runlane.store.sql.statement import Statement

    again = update(run_waits).values(opened_at=run_waits.c.opened_at + 1)
    await session.fetch(Statement("ask_again", again, purpose="For a test."))
