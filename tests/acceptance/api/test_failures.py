"""Dead letters and bulk jobs over HTTP: found, grouped, handled and replayed, within the caller's tenant."""

from __future__ import annotations

import re

import pytest

from runlane import Client, InvalidRequest, NotFound, RunNotFound, WrongState
from runlane.domain.bulk import BulkState
from runlane.domain.dead_letter import LetterState
from runlane.domain.run import Status
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.serving import Api
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually


async def failed_runs(api: Api, count: int) -> list[str]:
    return [(await api.run("fail"))["run_id"] for _ in range(count)]


async def test_a_dead_letter_is_found_handled_and_retried(api: Api) -> None:
    first, second = await failed_runs(api, 2)
    page = (await api.get("/dead-letters")).json()
    assert [letter["run_id"] for letter in page["dead_letters"]] == [second, first]
    assert (page["open"], page["next_cursor"]) == (2, None)
    (group,) = (await api.get("/dead-letters/groups")).json()["groups"]
    assert (group["count"], group["targets"], group["sample"]["run_id"]) == (2, ["fail"], second)
    narrowed = await api.get("/dead-letters", params={"fingerprint": group["fingerprint"], "limit": 1})
    assert narrowed.json()["next_cursor"] is not None
    whole = (await api.get(f"/dead-letters/{first}")).json()
    assert (whole["state"], whole["times_died"], whole["run_status"]) == ("open", 1, "failed")
    assert "Traceback" in whole["attempts"][0]["error"]["traceback"]

    noted = (await api.post(f"/dead-letters/{first}/acknowledge", {"note": "seen"})).json()
    assert (noted["state"], noted["note"]) == ("acknowledged", "seen")
    problem_of(await api.post(f"/dead-letters/{first}/acknowledge", {}), 409, "wrong_state")
    assert (await api.get("/dead-letters")).json()["open"] == 1
    assert (await api.post(f"/dead-letters/{first}/assign", {"to": "ann"})).json()["assigned_to"] == "ann"
    retried = (await api.post(f"/dead-letters/{first}/retry", {})).json()
    assert (retried["state"], retried["new_run_id"]) == ("retrying", None)
    await eventually(lambda: _state(api, first, "open"), "dead again")
    assert (await api.get(f"/dead-letters/{first}")).json()["times_died"] == 2
    restarted = (await api.post(f"/dead-letters/{first}/retry", {"kind": "restart"})).json()
    await eventually(lambda: _state(api, restarted["new_run_id"], "open"), "the new run is dead")
    assert (await api.get(f"/dead-letters/{first}")).json()["state"] == "discarded"
    assert (await api.post(f"/dead-letters/{second}/discard", {"release": True})).json()["state"] == "discarded"
    problem_of(await api.post(f"/dead-letters/{second}/retry", {"kind": "fork"}), 422, "invalid_request")
    problem_of(await api.post(f"/dead-letters/{second}/retry", {"state": {"a": 1}}), 422, "invalid_input")
    problem_of(await api.get("/dead-letters", params={"cursor": "x"}), 422, "invalid_request")


async def _state(api: Api, run_id: str, state: str) -> bool:
    answer = await api.get(f"/dead-letters/{run_id}")
    return answer.status_code == 200 and answer.json()["state"] == state


async def test_bulk_jobs_over_the_client(api: Api) -> None:
    ids = await failed_runs(api, 3)
    async with Client(api.url, await api.key()) as client:
        assert await client.dead_letters.count() == 3
        wanted = {"target": "fail"}
        preview = await client.dead_letters.preview("acknowledge", filter=wanted)
        assert (preview.total, preview.run_ids) == (3, tuple(sorted(ids, reverse=True)))
        job = await client.dead_letters.bulk("acknowledge", filter=wanted, options={"note": "all"}, rate=1000)
        done = await client.bulk.wait(job.id, timeout=60)
        assert (done.state, done.changed, done.total) == (BulkState.COMPLETED, 3, 3)
        assert {letter.note async for letter in client.dead_letters.list(state="acknowledged")} == {"all"}
        refused = await client.bulk.create("cancel", run_ids=ids)
        assert (await client.bulk.wait(refused.id, timeout=60)).refused == 3
        items = [item async for item in client.bulk.items(refused.id, state="refused")]
        assert {item.code for item in items} == {"wrong_state"}
        assert [found.id async for found in client.bulk.list()] == [refused.id, job.id]
        assert (await client.bulk.stop(refused.id)).state is BulkState.COMPLETED
        tagged = await client.bulk.create("tag", filter=wanted, options={"add": ["seen"]})
        assert (await client.bulk.wait(tagged.id, timeout=60)).changed == 3
        assert [run.id async for run in client.list(tag="seen")] == sorted(ids, reverse=True)
        fresh = await client.dead_letters.retry(ids[0], "restart", lower_priority=0)
        assert (await client.wait(fresh, timeout=60)).status is Status.FAILED
        assert (await client.dead_letters.get(ids[0])).state is LetterState.DISCARDED
        assert (await client.dead_letters.discard(fresh, "known")).note == "known"
        with pytest.raises(WrongState):
            await client.dead_letters.acknowledge(fresh)
        with pytest.raises(InvalidRequest, match="matches nothing"):
            await client.bulk.create("cancel", filter={"target": "nothing"})
        with pytest.raises(InvalidRequest, match="filter is empty"):
            await client.dead_letters.bulk("discard", filter={})
        with pytest.raises(NotFound):
            await client.bulk.get("blk_none")
        with pytest.raises(RunNotFound):
            await client.bulk.create("cancel", run_ids=["run_none"])


async def test_another_tenants_letters_and_jobs_do_not_exist(api: Api) -> None:
    (run_id,) = await failed_runs(api, 1)
    job = (await api.post("/bulk", {"action": "cancel", "run_ids": [run_id]})).json()
    await create_tenant(api.parts.database, "acme", actor="test")
    headers = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    for method, path, body in (
        ("GET", f"/dead-letters/{run_id}", None),
        ("POST", f"/dead-letters/{run_id}/retry", {}),
        ("POST", f"/dead-letters/{run_id}/discard", {}),
        ("POST", f"/dead-letters/{run_id}/acknowledge", {}),
        ("POST", f"/dead-letters/{run_id}/assign", {"to": "ann"}),
        ("POST", "/dead-letters/bulk", {"action": "discard", "run_ids": [run_id]}),
        ("POST", "/bulk", {"action": "retry", "run_ids": [run_id]}),
        ("GET", f"/bulk/{job['job_id']}", None),
        ("GET", f"/bulk/{job['job_id']}/items", None),
        ("POST", f"/bulk/{job['job_id']}/stop", None),
    ):
        answer = await (api.get(path, headers=headers) if method == "GET" else api.post(path, body, headers=headers))
        assert answer.status_code == 404, (path, answer.text)
    assert (await api.get("/dead-letters", headers=headers)).json()["dead_letters"] == []
    assert (await api.get("/bulk", headers=headers)).json()["jobs"] == []
    nothing = {"action": "discard", "filter": {"state": ["open"]}}
    problem_of(await api.post("/dead-letters/bulk", nothing, headers=headers), 422, "invalid_request")
    assert await _state(api, run_id, "open")


async def test_open_letters_are_in_the_metrics(api: Api) -> None:
    await failed_runs(api, 2)
    text = (await api.client.get("/metrics")).text
    assert 'runlane_dead_letters_open{target="fail"} 2.0' in text
    assert re.search(r'runlane_dead_letters_total\{[^}]*code="', text)
    assert "runlane_dead_letter_oldest_seconds" in text
