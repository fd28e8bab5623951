"""Questions to people: found by filter, counted, read by one person at a time, answered once, one or many."""

from __future__ import annotations

import asyncio

from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.flows import ARTICLE, TWO, bring
from tests.acceptance.api.serving import API, Api
from tests.acceptance.api.test_orchestrations import ended, paused
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store


async def test_questions_are_filtered_and_counted(api: Api) -> None:
    await bring(api.parts.database, ARTICLE, TWO)
    article = await paused(api, "article", message="lanes")
    two = await paused(api, "two")
    whole = (await api.get("/inbox")).json()["questions"]
    assert {(item["run_id"], item["about"]) for item in whole} == {(article, "step"), (two, "step")}
    assert (await api.get("/inbox/count")).json() == {
        "newest_at": max(item["opened_at"] for item in whole),
        "total": 3,
        "by_kind": {"step": 3, "approval": 0, "unknown_effect": 0, "budget": 0},
        "exact": True,
    }
    only = (await api.get("/inbox?target=orchestration:article")).json()["questions"]
    assert [item["run_id"] for item in only] == [article]
    early = "2026-01-01T00:00:00Z"
    for nothing in ("about=approval", "tool=pay", "agent=clerk", f"due_before={early}", f"asked_before={early}"):
        assert (await api.get(f"/inbox?{nothing}")).json() == {"questions": [], "next_cursor": None}, nothing
    newest = max(item["opened_at"] for item in whole)
    older = (await api.get("/inbox", params={"asked_before": newest})).json()["questions"]
    assert older == [item for item in whole if item["opened_at"] < newest]
    pages: list[str] = []
    cursor: str | None = None
    while True:
        params = {"limit": 1, "about": "step", **({"cursor": cursor} if cursor else {})}
        page = (await api.get("/inbox", params=params)).json()
        pages += [f"{item['run_id']} {item['path']}" for item in page["questions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert sorted(pages) == sorted(f"{item['run_id']} {item['path']}" for item in whole)


async def test_of_two_answers_one_counts_and_the_other_reads_it(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article", message="lanes")
    ann = {"Authorization": f"Bearer {await api.key('operator')}"}
    body = {"answers": [{"run_id": run_id, "response": {"decision": "approve"}}], "note": "read twice"}
    given = await asyncio.gather(*(api.post("/inbox/answer", body, headers=ann) for _ in range(2)))
    outcomes = [answer.json()["outcomes"][0] for answer in given]
    assert sorted(outcome["answered"] for outcome in outcomes) == [False, True]
    lost = next(outcome for outcome in outcomes if not outcome["answered"])
    assert lost["code"] == "wrong_state"
    await ended(api, run_id)
    seen = (await api.get(f"/inbox/{run_id}/ask")).json()
    assert (seen["state"], seen["note"], seen["answer"]["decision"]) == ("answered", "read twice", "approve")
    assert seen["question"]["answered_by"] == "operator"
    problem_of(await api.get(f"/inbox/{run_id}/draft"), 404, "not_found")


async def test_many_answers_have_an_outcome_each(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    first, second = await paused(api, "article"), await paused(api, "article")
    answer = await api.post(
        "/inbox/answer",
        {
            "answers": [
                {"run_id": first, "response": {"decision": "approve"}},
                {"run_id": second, "response": {"decision": "perhaps"}},
                {"run_id": "run_none", "response": {}},
            ]
        },
    )
    body = answer.json()
    assert (body["answered"], body["refused"]) == (1, 2)
    assert [outcome["code"] for outcome in body["outcomes"]] == [None, "invalid_input", "run_not_found"]
    await ended(api, first)
    too_many = {"answers": [{"run_id": "run_none"}] * 101}
    problem_of(await api.post("/inbox/answer", too_many), 422, "invalid_request")


async def test_a_question_is_read_by_one_person_at_a_time(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    run_id = await paused(api, "article")
    first = {"Authorization": f"Bearer {await api.key('operator')}"}
    second = {"Authorization": f"Bearer {await api.key('developer')}"}
    body = {"run_id": run_id, "path": "ask"}
    claimed = (await api.post("/inbox/claim", body, headers=first)).json()
    assert (claimed["question"]["claimed_by"], claimed["state"]) == ("operator", "open")
    refused = problem_of(await api.post("/inbox/claim", body, headers=second), 409, "conflict")
    assert '"operator"' in refused["message"]
    assert (await api.post("/inbox/claim", body, headers=first)).status_code == 200
    released = (await api.post("/inbox/claim", {**body, "release": True}, headers=first)).json()
    assert released["question"]["claimed_by"] is None
    assert (await api.post("/inbox/claim", body, headers=second)).status_code == 200
    # A claim ends after ten minutes, because its owner may have left.
    problem_of(await api.post("/inbox/claim", body, headers=first), 409, "conflict")
    store = Store(api.parts.app.settings, api.parts.database)
    await store.sql("update run_waits set claimed_until = claimed_until - 600000000")
    assert (await api.post("/inbox/claim", body, headers=first)).status_code == 200
    # Others may still answer.
    await api.post(f"/runs/{run_id}/resume", {"response": {"decision": "approve"}, "note": "urgent"}, headers=first)
    await ended(api, run_id)
    assert (await api.get(f"/inbox/{run_id}/ask")).json()["note"] == "urgent"
    problem_of(await api.post("/inbox/claim", body, headers=second), 409, "conflict")


async def test_another_tenant_neither_sees_nor_answers_nor_claims(api: Api) -> None:
    await bring(api.parts.database, ARTICLE)
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    run_id = await paused(api, "article")
    assert (await api.get("/inbox", headers=acme)).json()["questions"] == []
    assert (await api.get("/inbox/count", headers=acme)).json()["total"] == 0
    problem_of(await api.get(f"/inbox/{run_id}/ask", headers=acme), 404, "run_not_found")
    problem_of(await api.post("/inbox/claim", {"run_id": run_id, "path": "ask"}, headers=acme), 404, "run_not_found")
    body = {"answers": [{"run_id": run_id, "response": {"decision": "approve"}}]}
    outcome = (await api.post("/inbox/answer", body, headers=acme)).json()["outcomes"][0]
    assert outcome["code"] == "run_not_found"
    problem_of(await api.client.get(f"{API}/inbox?tenant=default", headers=acme), 404, "not_found")
    assert (await api.get(f"/runs/{run_id}")).json()["status"] == "paused"
