"""What a configuration file sets for servers: when threads and items expire, and where webhooks may go."""

from __future__ import annotations

import pytest
from langgraph_sdk.errors import UnprocessableEntityError

from runlane.app import App
from runlane.domain.graph_registry import (
    AgentServerOptions,
    DefaultTtl,
    StoreOptions,
    StoreTtl,
    WebhookUrlRules,
)
from tests.acceptance.api.agent_client import host, langgraph_client
from tests.acceptance.api.serving import serving
from tests.harness import Store


async def test_threads_expire_by_default(own_app: App) -> None:
    own_app.agent_server = AgentServerOptions(thread_ttl=DefaultTtl(30, "keep_latest"))
    async with serving(own_app) as api, langgraph_client(api) as client:
        await host(api)
        made = (await client.threads.create())["thread_id"]
        kept = (await client.threads.create(ttl=5))["thread_id"]
        run = await client.runs.create(None, "three", on_completion="keep")
        created = "00000000-0000-4000-8000-000000000001"
        await client.runs.create(created, "three", if_not_exists="create")
        found = {
            thread: (await client.threads.get(thread, include=["ttl"]))["ttl"]
            for thread in (made, kept, run["thread_id"], created)
        }
        assert [(ttl["ttl_minutes"], ttl["strategy"]) for ttl in found.values()] == [
            (30, "keep_latest"),
            (5, "delete"),
            (30, "keep_latest"),
            (30, "keep_latest"),
        ]


async def test_items_expire_by_default(own_app: App, store: Store) -> None:
    own_app.graph_store = StoreOptions(ttl=StoreTtl(30.0, refresh_on_read=False))
    async with serving(own_app) as api, langgraph_client(api) as client:
        await client.store.put_item(("a",), "default", {"v": 1})
        await client.store.put_item(("a",), "own", {"v": 1}, ttl=5)
        before = await store.sql("select key, ttl_minutes, expires_at from store_items order by key")
        assert [(row["key"], row["ttl_minutes"]) for row in before] == [("default", 30.0), ("own", 5.0)]
        await client.store.get_item(("a",), "default")
        await client.store.search_items(("a",))
        assert await store.sql("select key, ttl_minutes, expires_at from store_items order by key") == before
        await client.store.get_item(("a",), "own", refresh_ttl=True)
        after = await store.sql("select key, expires_at from store_items order by key")
        assert after[1]["expires_at"] > before[1]["expires_at"]


async def test_webhooks_go_where_the_file_allows(own_app: App) -> None:
    own_app.agent_server = AgentServerOptions(webhook_urls=WebhookUrlRules(True, ("*.example.com",)))
    async with serving(own_app) as api, langgraph_client(api) as client:
        await host(api)
        thread = (await client.threads.create())["thread_id"]
        for url in ("http://hooks.example.com/", "https://example.org/"):
            with pytest.raises(UnprocessableEntityError, match=r"webhooks\.url"):
                await client.runs.create(thread, "three", webhook=url)
        assert await client.runs.list(thread) == []
        run = await client.runs.create(thread, "three", webhook="https://hooks.example.com/x")
        assert run["status"] == "pending"
