"""Two nodes of one database: a change that reaches the wrong one is made by the owner of its memory."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
import pytest

from runlane import Client, MemoryOwnerUnreachable, RetryPolicy
from runlane.domain.memory import NewEntry
from runlane.memory import vaults
from tests.acceptance.api.serving import API, Api, Process, copy_of, process, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_browser_sessions import browser, sign_in
from tests.acceptance.api.test_runs import problem_of
from tests.harness import settings_for
from tests.server_process import free_port


@pytest.fixture
async def node(postgres_url: str, tmp_path: Path) -> AsyncGenerator[Api]:
    """The node that receives requests for memories of the other one."""
    settings = settings_for(postgres_url, memory_path=tmp_path / "b.db", memory_lease_seconds=60, grace_seconds=0.2)
    async with serving(copy_of(shop, settings)) as served:
        yield served


@pytest.fixture
def owner_url() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def owner(node: Api, owner_url: str, tmp_path: Path) -> Generator[Process]:
    """A node in a process of its own, with an address. It needs the keys of the first one."""
    environment = {
        "RUNLANE_MEMORY_PATH": str(tmp_path / "a.db"),
        "RUNLANE_MEMORY_NODE_URL": owner_url,
        "RUNLANE_MEMORY_LEASE_SECONDS": "60",
    }
    port = owner_url.rpartition(":")[2]
    with process("serve", "--port", port, settings=node.parts.app.settings, **environment) as started:
        assert started.wait_for("serving")["access"] == "keys"
        yield started


async def texts_at(url: str, memory_id: str, key: str) -> list[str]:
    async with Client(url, key) as client:
        page = await client.memory.list_entries(memory_id, after=0)
        return [entry.text for entry in page.entries]


async def test_a_change_is_made_by_the_owner_of_its_memory(node: Api, owner: Process, owner_url: str) -> None:
    key = await node.key()
    memory_id = (await node.post("/memory/memories", {"title": "shared"})).json()["id"]
    path = f"{API}/memory/memories/{memory_id}"
    async with Client(owner_url, key) as at_owner:
        await at_owner.memory.add_entry(memory_id, NewEntry("of the owner"))
    # The other node sends it on; the answer is the owner's, and a repetition has one effect.
    headers = {"Idempotency-Key": "once"}
    answers = [await node.client.post(f"{path}/entries", json={"text": "sent on"}, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    waited = await node.client.post(f"{path}/entries", json={"text": "in Postgres"}, params={"wait": "committed"})
    assert (waited.status_code, waited.headers["memory-commit"]) == (201, "committed")
    assert await texts_at(owner_url, memory_id, key) == ["of the owner", "sent on", "in Postgres"]
    assert await texts_at(node.url, memory_id, key) == ["of the owner", "sent on", "in Postgres"]
    # Errors of the owner are returned as they are, and the paths of older clients are sent on, too.
    problem_of(await node.client.delete(f"{path}/fragments/context"), 422, "invalid_request")
    vault = (await node.get("/memory/vaults")).json()["vaults"][0]["id"]
    older = await node.client.post(f"/v0/vaults/{vault}/memories/{memory_id}/entries", json={"rawEntry": "older"})
    assert older.status_code == 201, older.text
    assert (await node.client.post(f"{path}/await-commit", json={})).json()["state"] == "committed"

    # The owner checks the key: the node that sends a request on adds no authority.
    marked = {"Runlane-Forwarded": memory_id}
    async with httpx2.AsyncClient(base_url=owner_url, trust_env=False) as anonymous:
        problem_of(await anonymous.post(f"{path}/entries", json={"text": "x"}, headers=marked), 401, "unauthorized")
    reader = {"Authorization": f"Bearer {await node.key('viewer')}"}
    problem_of(await node.client.post(f"{path}/entries", json={"text": "x"}, headers=reader), 403, "forbidden")
    assert (await node.client.delete(path)).status_code == 200
    problem_of(await node.client.get(f"{path}/entries"), 404, "not_found")
    # The owner has recorded it, and the node that sent it on has not.
    recorded = (await node.get("/audit", params={"action": "memory.delete"})).json()["entries"]
    assert [entry["subject"] for entry in recorded] == [memory_id]


async def test_a_request_that_cannot_be_sent_on_is_made_here_after_a_handover(
    node: Api, owner: Process, owner_url: str
) -> None:
    """One hop only, and the cookie of a browser session is for the pages of one address: the owner gives the memory."""
    key = await node.key()
    memory_id = (await node.post("/memory/memories", {"title": "shared"})).json()["id"]
    path = f"{API}/memory/memories/{memory_id}/entries"
    async with Client(owner_url, key) as at_owner, browser(node) as page:
        await sign_in(page, key)
        await at_owner.memory.add_entry(memory_id, NewEntry("of the owner"))
        signed_in = await page.post(path, json={"text": "of a page"}, params={"wait": "committed"})
        assert (signed_in.status_code, signed_in.headers["memory-commit"]) == (201, "committed"), signed_in.text
        # The node has no address, so the other one cannot send this on either.
        await at_owner.memory.add_entry(memory_id, NewEntry("of the owner again"))
        once = await node.client.post(path, json={"text": "sent on twice"}, headers={"Runlane-Forwarded": memory_id})
        assert once.status_code == 201, once.text
        texts = ["of the owner", "of a page", "of the owner again", "sent on twice"]
        assert await texts_at(node.url, memory_id, key) == texts
        await at_owner.memory.add_entry(memory_id, NewEntry("last"))
        waited = await page.post(f"{API}/memory/memories/{memory_id}/await-commit", json={})
        assert (waited.status_code, waited.json()["state"]) == (200, "committed"), waited.text
        assert (await page.delete(f"{API}/memory/memories/{memory_id}")).status_code == 200


async def test_a_memory_that_its_owner_cannot_release_is_refused_with_its_address(
    node: Api, owner: Process, owner_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await node.key()
    memory_id = (await node.post("/memory/memories", {"title": "shared"})).json()["id"]
    async with Client(owner_url, key) as at_owner:
        await at_owner.memory.add_entry(memory_id, NewEntry("acknowledged"))
        # An owner that is frozen inside a transaction of the replication holds the row of the memory until Postgres
        # disconnects it; until then the answer is 503.
        await at_owner.memory.await_commit(memory_id, 30)
    owner.signal(signal.SIGSTOP)
    try:
        monkeypatch.setattr(vaults, "WAIT_SECONDS", 0.5)
        path, marked = f"{API}/memory/memories/{memory_id}/entries", {"Runlane-Forwarded": memory_id}
        refused = await node.client.post(path, json={"text": "x"}, headers=marked)
    finally:
        owner.signal(signal.SIGCONT)
    assert (refused.status_code, refused.json()["code"]) == (409, "memory_owned_elsewhere")
    assert refused.json()["owner_url"] == owner_url


async def test_an_owner_that_does_not_answer_is_reported_in_time(node: Api, owner: Process, owner_url: str) -> None:
    key = await node.key()
    memory_id = (await node.post("/memory/memories", {"title": "shared"})).json()["id"]
    async with Client(owner_url, key) as at_owner:
        await at_owner.memory.add_entry(memory_id, NewEntry("acknowledged"))
        await at_owner.memory.await_commit(memory_id, 30)
    owner.signal(signal.SIGKILL)
    owner.ended()
    path = f"{API}/memory/memories/{memory_id}/entries"
    unanswered = await node.client.post(path, json={"text": "waits"})
    assert "Idempotency-Key" in problem_of(unanswered, 503, "memory_owner_unreachable")["message"]
    assert int(unanswered.headers["retry-after"]) >= 1
    async with Client(node.url, key, retry_policy=RetryPolicy(give_up_seconds=0)) as client:
        with pytest.raises(MemoryOwnerUnreachable):
            await client.memory.add_entry(memory_id, NewEntry("waits"))
    # Reads need no owner.
    assert await texts_at(node.url, memory_id, key) == ["acknowledged"]
