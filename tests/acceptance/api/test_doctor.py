"""The checks of `runlane doctor` over HTTP, and the serving processes that an operator sees."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import Client, Finding
from runlane.api import server_heartbeat
from runlane.app import App
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from runlane.store.sql import table_sizes
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store, eventually


async def test_an_operator_sees_what_is_wrong_and_how_to_correct_it(idle_api: Api) -> None:
    await idle_api.run("greet", wait=False)
    found = (await idle_api.get("/doctor")).json()
    assert found["healthy"] is False
    workers = next(finding for finding in found["findings"] if finding["check"] == "workers")
    assert (workers["level"], workers["message"]) == ("broken", "none online, and 1 run waits")
    assert "runlane worker" in workers["cure"]
    async with Client(idle_api.url, await idle_api.key()) as client:
        diagnosis = await client.admin.diagnosis()
    assert (diagnosis.healthy, diagnosis.schema_revision) == (False, found["schema_revision"])
    assert Finding(**workers) in diagnosis.findings


async def test_a_tenant_does_not_see_the_platform(idle_api: Api) -> None:
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await idle_api.key('operator', tenant='acme')}"}
    problem_of(await idle_api.get("/doctor", headers=acme), 403, "forbidden")


async def test_an_operator_sees_the_size_of_the_database_and_of_its_tables(idle_api: Api) -> None:
    await idle_api.run("greet", wait=False)
    async with Client(idle_api.url, await idle_api.key()) as client:
        found = await client.admin.database_size()
    assert found.bytes > 0
    assert found.tables is not None
    sizes = {table.name: table.bytes for table in found.tables}
    assert {"runs", "run_inputs", "usage_daily"} <= set(sizes)
    assert list(sizes.values()) == sorted(sizes.values(), reverse=True)
    assert 0 < sizes["runs"] < found.bytes
    await create_tenant(idle_api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await idle_api.key('operator', tenant='acme')}"}
    problem_of(await idle_api.get("/doctor/database", headers=acme), 403, "forbidden")


async def test_a_large_file_is_not_measured_table_by_table(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sizes, "MAX_MEASURED_BYTES", 1)
    found = await table_sizes.read_sizes(store.database)
    if store.database.dialect == "sqlite":
        assert (found.tables, found.note) == (None, "Tables are measured in files of up to 0 GB.")
    else:
        assert found.tables


async def test_every_serving_process_is_listed_from_its_start_until_it_stops(
    own_app: App, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_heartbeat, "EVERY_SECONDS", 600.0)
    async with serving(own_app) as first:

        async def servers() -> list[dict[str, Any]]:
            return (await first.get("/doctor")).json()["servers"]

        async with serving(copy_of(shop, settings)):

            async def both_are_listed() -> bool:
                return len(await servers()) == 2

            await eventually(both_are_listed)
            figures = (await servers())[0]["figures"]
            assert {"followers", "pages", "memory_mb", "bus", "connected", "worker"} <= set(figures)
        assert len(await servers()) == 1
