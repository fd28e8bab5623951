"""Ways around the filters of an auth module: other spellings of ids, stored names, forged users, large lists."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk.errors import NotFoundError

from runlane.app import App
from runlane.domain.options import RunOptions
from runlane.store.schedules.crons import find_cron
from runlane.submit.cron_runs import cron_run
from tests.acceptance.api.agent_client import host, langgraph_client
from tests.acceptance.api.auth_modules import FILTERS, with_auth
from tests.acceptance.api.serving import Api, serving
from tests.acceptance.api.test_agent_auth import user

SCHEDULE = "0 3 * * *"
STEPS = [{"updates": [{"values": {"a": 1}, "as_node": "a"}]}]
# Every user creates and reads; only owners change.
CREATORS = """
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None):
    return (authorization or "").removeprefix("Bearer ")


@auth.on
async def everything(ctx, value):
    return True


@auth.on.threads.create
async def create(ctx, value):
    value.setdefault("metadata", {})["owner"] = ctx.user.identity


@auth.on.threads.update
@auth.on.threads.create_run
async def change(ctx, value):
    return {"owner": ctx.user.identity}
"""
ADMIN = {"langgraph_auth_user": {"identity": "admin"}, "langgraph_auth_user_id": "admin"}


@pytest.fixture
async def filtered(own_app: App, tmp_path: Path) -> AsyncGenerator[Api]:
    async with serving(with_auth(own_app, tmp_path, FILTERS)) as api:
        await host(api)
        yield api


def _as(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


async def test_another_spelling_of_an_id_names_the_same_thread(filtered: Api) -> None:
    async with user(filtered, "alice") as alice:
        hers = (await alice.threads.create())["thread_id"]
    command = {"id": 1, "method": "input.respond", "params": {"interrupt_id": "x", "response": "yes"}}
    for spelling in (hers, hers.upper(), hers.replace("-", ""), f"{{{hers}}}"):
        cron = {"assistant_id": "three", "schedule": SCHEDULE}
        for path, body in (("runs/crons", cron), ("commands", command)):
            answer = await filtered.client.post(f"/threads/{spelling}/{path}", json=body, headers=_as("bob"))
            assert answer.status_code == 404, (spelling, path, answer.text)


async def test_a_cron_has_the_user_of_its_request(filtered: Api) -> None:
    async with user(filtered, "bob") as bob:
        made = await bob.crons.create("three", schedule=SCHEDULE, config={"configurable": {"k": 1, **ADMIN}})
        assert await _configurable(filtered, made["cron_id"]) == {"k": 1, "langgraph_auth_user_id": "bob"}
        await bob.crons.update(made["cron_id"], config={"configurable": {"k": 2, **ADMIN}})
        assert await _configurable(filtered, made["cron_id"]) == {"k": 2, "langgraph_auth_user_id": "bob"}


async def _configurable(api: Api, cron_id: str) -> dict[str, Any]:
    """Return what the runs of a cron get, without the id of the cron."""
    cron = await find_cron(api.parts.database, "default", cron_id, None)
    given = cron_run(cron.settings, RunOptions()).request.config["configurable"]
    assert given.get("langgraph_auth_user", {}).get("identity") == given.get("langgraph_auth_user_id")
    return {name: given[name] for name in ("k", "langgraph_auth_user_id") if name in given}


async def test_an_assistant_does_not_set_the_user(idle_api: Api) -> None:
    await host(idle_api)
    async with langgraph_client(idle_api) as client:
        made = await client.assistants.create("three", config={"configurable": {"k": 1, **ADMIN}})
        run = await client.runs.create(None, made["assistant_id"])
    given = run["kwargs"]["config"]["configurable"]
    assert given["k"] == 1
    assert not [name for name in given if name.startswith("langgraph_auth_")]


async def test_the_metadata_of_a_thread_does_not_open_an_assistant(filtered: Api) -> None:
    async with user(filtered, "alice") as alice, user(filtered, "bob") as bob:
        hers = (await alice.assistants.create("three", context={"prompt": "hers"}))["assistant_id"]
        his = (await bob.threads.create(metadata={"assistant_id": hers}))["thread_id"]
        with pytest.raises(NotFoundError):
            await bob.threads.update_state(his, {"a": 1})
        body = {"metadata": {"assistant_id": hers}, "supersteps": STEPS}
        assert (await filtered.client.post("/threads", json=body, headers=_as("bob"))).status_code == 404
        assert await bob.threads.count() == 1


async def test_supersteps_need_the_right_to_update(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path, CREATORS)) as api:
        await host(api)
        hers = (
            await api.client.post("/threads", json={"metadata": {"graph_id": "three"}}, headers=_as("alice"))
        ).json()
        body = {"thread_id": hers["thread_id"], "if_exists": "do_nothing", "supersteps": STEPS}
        answer = await api.client.post("/threads", json=body, headers=_as("bob"))
        assert answer.status_code == 404, answer.text


async def test_a_cron_of_a_thread_needs_the_right_to_start_runs(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path, CREATORS)) as api:
        await host(api)
        hers = (await api.client.post("/threads", json={}, headers=_as("alice"))).json()["thread_id"]
        assert (await api.client.get(f"/threads/{hers}", headers=_as("bob"))).status_code == 200
        cron = {"assistant_id": "three", "schedule": SCHEDULE}
        answers = [
            await api.client.post(f"/threads/{hers}/runs/crons", json=cron, headers=_as(name))
            for name in ("bob", "alice")
        ]
        assert [answer.status_code for answer in answers] == [404, 200]


async def test_many_threads_have_one_rule(own_app: App, tmp_path: Path) -> None:
    async with serving(with_auth(own_app, tmp_path)) as api, user(api, "alice") as alice:
        await host(api)
        batch = await alice.runs.create_batch([{"assistant_id": "three", "if_not_exists": "create"}] * 20)
        assert len(batch) == 20


async def test_a_handler_is_not_called_for_endless_lists(filtered: Api) -> None:
    for path, body in (
        ("/runs/batch", [{"assistant_id": "three"}] * 1001),
        ("/threads/prune", {"thread_ids": [str(number) for number in range(1001)]}),
    ):
        answer = await filtered.client.post(path, json=body, headers=_as("bob"))
        assert answer.json()["message"].startswith("The request names 1001 runs or threads."), answer.text


async def test_a_body_is_not_read_before_its_sender_is_known(idle_api: Api) -> None:
    for method in ("DELETE", "PUT"):
        answer = await idle_api.client.request(
            method, "/store/items", content=b"not JSON", headers={"Authorization": "Bearer wrong"}
        )
        assert answer.status_code == 401, answer.text
