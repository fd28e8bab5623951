"""Filters of auth modules for crons, by their metadata, and for items of the store, by their values."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from langgraph_sdk.errors import APIStatusError, ConflictError, NotFoundError

from runlane.app import App
from tests.acceptance.api.agent_client import host
from tests.acceptance.api.auth_modules import FILTERS, with_auth
from tests.acceptance.api.serving import Api, serving
from tests.acceptance.api.test_agent_auth import user


@pytest.fixture
async def filtered(own_app: App, tmp_path: Path) -> AsyncGenerator[Api]:
    async with serving(with_auth(own_app, tmp_path, FILTERS)) as api:
        await host(api)
        yield api


async def test_a_cron_exists_for_its_owner_alone(filtered: Api) -> None:
    async with user(filtered, "alice") as alice, user(filtered, "bob") as bob:
        hers = await alice.crons.create("three", schedule="0 3 * * *", metadata={"topic": "x"})
        his = await bob.crons.create("three", schedule="0 4 * * *")
        assert hers["metadata"] == {"topic": "x", "owner": "alice"}
        assert [item["cron_id"] for item in await alice.crons.search()] == [hers["cron_id"]]
        assert (await alice.crons.count(), await bob.crons.count()) == (1, 1)
        # A search for another owner finds the user's own crons: the handler sets the owner.
        assert [item["cron_id"] for item in await bob.crons.search(metadata={"owner": "alice"})] == [his["cron_id"]]
        for call in (
            bob.crons.update(hers["cron_id"], schedule="0 5 * * *"),
            bob.crons.update(hers["cron_id"], metadata={"owner": "bob"}),
            bob.crons.delete(hers["cron_id"]),
        ):
            with pytest.raises(NotFoundError):
                await call
        (kept,) = await alice.crons.search()
        assert (kept["schedule"], kept["metadata"]["owner"]) == ("0 3 * * *", "alice")
        changed = await alice.crons.update(hers["cron_id"], schedule="0 6 * * *")
        assert (changed["schedule"], changed["metadata"]["owner"]) == ("0 6 * * *", "alice")
        await alice.crons.delete(hers["cron_id"])
        assert (await alice.crons.count(), await bob.crons.count()) == (0, 1)


async def test_a_cron_needs_an_assistant_that_its_user_sees(filtered: Api) -> None:
    async with user(filtered, "alice") as alice, user(filtered, "bob") as bob:
        hers = (await alice.assistants.create("three"))["assistant_id"]
        with pytest.raises(NotFoundError):
            await bob.crons.create(hers, schedule="0 3 * * *")
        mine = await bob.crons.create("three", schedule="0 3 * * *")
        with pytest.raises(NotFoundError):
            await bob.crons.search(assistant_id=hers)
        assert [item["cron_id"] for item in await bob.crons.search()] == [mine["cron_id"]]


async def test_an_item_is_visible_by_its_value(filtered: Api) -> None:
    async with user(filtered, "alice") as alice, user(filtered, "bob") as bob:
        await alice.store.put_item(("a",), "hers", {"owner": "alice", "text": "x"})
        await alice.store.put_item(("b",), "all", {"public": True, "text": "y"})
        assert (await alice.store.get_item(("a",), "hers"))["value"]["text"] == "x"
        assert await bob.store.get_item(("a",), "hers") is None
        assert (await bob.store.get_item(("b",), "all"))["value"]["text"] == "y"
        assert [item["key"] for item in (await bob.store.search_items(()))["items"]] == ["all"]
        assert [item["key"] for item in (await bob.store.search_items((), filter={"text": "x"}))["items"]] == []
        assert (await bob.store.list_namespaces())["namespaces"] == [["b"]]
        assert (await alice.store.list_namespaces())["namespaces"] == [["a"], ["b"]]
        # A hidden item is neither replaced nor deleted, and a user cannot store what it would not see.
        with pytest.raises(ConflictError):
            await bob.store.put_item(("a",), "hers", {"owner": "bob"})
        with pytest.raises(APIStatusError) as refused:
            await bob.store.put_item(("c",), "k", {"owner": "alice"})
        assert refused.value.status_code == 403
        await bob.store.delete_item(("a",), "hers")
        assert (await alice.store.get_item(("a",), "hers"))["value"] == {"owner": "alice", "text": "x"}
        await bob.store.put_item(("b",), "all", {"public": True, "text": "z"})
        await alice.store.delete_item(("b",), "all")
        assert await alice.store.get_item(("b",), "all") is None
