"""Two nodes of one database: a change that reaches the wrong one is made by the owner of its memory."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import httpx2
import pytest

from runlane import Client, MemoryOwnerUnreachable, RetryPolicy
from runlane.domain.memory import NewEntry
from tests.acceptance.api.serving import API, Api, Process, copy_of, process, serving
from tests.acceptance.api.shop import app as shop
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

    # One hop only, and the owner checks the key: the node that sends a request on adds no authority.
    marked = {"Runlane-Forwarded": memory_id}
    refused = await node.client.post(f"{path}/entries", json={"text": "x"}, headers=marked)
    assert (refused.status_code, refused.json()["code"]) == (409, "memory_owned_elsewhere")
    assert refused.json()["owner_url"] == owner_url
    async with httpx2.AsyncClient(base_url=owner_url, trust_env=False) as anonymous:
        problem_of(await anonymous.post(f"{path}/entries", json={"text": "x"}, headers=marked), 401, "unauthorized")
    reader = {"Authorization": f"Bearer {await node.key('viewer')}"}
    problem_of(await node.client.post(f"{path}/entries", json={"text": "x"}, headers=reader), 403, "forbidden")
    assert (await node.client.delete(path)).status_code == 200
    problem_of(await node.client.get(f"{path}/entries"), 404, "not_found")


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
