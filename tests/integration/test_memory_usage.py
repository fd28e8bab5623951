"""What embeddings cost: in the usage of their tenant, and within its daily cap."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runlane.domain.usage import UsageRow
from runlane.memory import indexing
from runlane.memory.service import MemoryService
from runlane.settings import Settings
from runlane.store.access.tenants import TenantChange, set_tenant
from runlane.store.memory import vectors
from runlane.store.usage import read_usage
from runlane.testing import FakeAnswer, FakeServer
from tests.harness import eventually, settings_for
from tests.integration.process import Process
from tests.memory import TENANT, add, new_memory

MODEL = "acme:embed-small"
# The fake provider has one token for four characters.
ENTRY = "the automobile is red, and so on"
TOKENS = len(ENTRY) // 4
USD_PER_MILLION = 250_000.0


@pytest.fixture
async def fake() -> AsyncGenerator[FakeServer]:
    async with FakeServer([FakeAnswer(text="unused")]) as server:
        yield server


@pytest.fixture
async def process(settings: Settings, fake: FakeServer) -> AsyncGenerator[Process]:
    """A process whose provider of embeddings is the fake one, with prices."""
    price = {"input_usd_per_million": USD_PER_MILLION, "output_usd_per_million": 0}
    fields: dict[str, Any] = {
        "timer_seconds": 0.02,
        "memory_embedding_model": MODEL,
        "providers": {"acme": {"base_url": f"{fake.url}/v1", "prices": {"embed-small": price}}},
    }
    assert settings.database_url is not None
    process = Process(settings_for(settings.database_url.get_secret_value(), **fields))
    try:
        yield process
    finally:
        await process.stop()


async def usage(process: Process, group: Any = "model", tenant: str = TENANT) -> dict[str, UsageRow]:
    today = datetime.now(UTC).date()
    database = await process.app.database()
    rows = await read_usage(database, tenant, today - timedelta(days=1), today + timedelta(days=1), group)
    return {row.key: row for row in rows}


async def is_indexed(process: Process, memory_id: str) -> bool:
    index = await (await process.app.connect()).memory_opener.index()
    assert index is not None
    state = await vectors.index_state(index.database, memory_id)
    return state is not None and state.indexed_seq >= state.last_seq


async def found_by(service: MemoryService, memory_id: str) -> list[tuple[str, ...]]:
    return [tuple(hit.found_by) for hit in await service.search(TENANT, memory_id, ENTRY)]


async def cap(process: Process, dollars: float | None) -> None:
    change = TenantChange(
        max_cost_usd_per_day=dollars, unlimited=frozenset() if dollars else frozenset({"max_cost_usd_per_day"})
    )
    await set_tenant(await process.app.database(), TENANT, change, actor="test")


async def test_embeddings_are_in_the_usage_of_their_tenant(process: Process) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await add(service, memory_id, ENTRY)
    await process.start()
    await eventually(lambda: is_indexed(process, memory_id))
    assert await found_by(service, memory_id) == [("text", "vector")]
    # One call of the run, one of the search, each with the same content.
    used = (await usage(process))[MODEL]
    assert (used.calls, used.unpriced_calls, used.tokens_in, used.tokens_out) == (2, 0, 2 * TOKENS, 0)
    assert used.cost_usd == pytest.approx(2 * TOKENS * USD_PER_MILLION / 1_000_000)
    assert (await usage(process, "agent"))[""].calls == 2
    assert await usage(process, tenant="other") == {}


async def test_calls_without_a_known_price_are_counted_as_such(process: Process) -> None:
    process.app.settings.providers["acme"].prices.clear()
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await add(service, memory_id, ENTRY)
    await process.start()
    await eventually(lambda: is_indexed(process, memory_id))
    used = (await usage(process))[MODEL]
    assert (used.calls, used.unpriced_calls, used.tokens_in, used.cost_usd) == (1, 1, TOKENS, None)


async def test_a_tenant_that_has_reached_its_cap_pays_for_no_more_embeddings(
    process: Process, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "CAP_WAIT_SECONDS", 0.05)
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await add(service, memory_id, ENTRY)
    await process.start()
    await eventually(lambda: is_indexed(process, memory_id))
    await cap(process, TOKENS * USD_PER_MILLION / 1_000_000)
    # Searches find what words find, and runs wait until the tenant may spend again.
    assert await found_by(service, memory_id) == [("text",)]
    await add(service, memory_id, "another one")

    async def waits() -> bool:
        return any([run.attempt > 2 async for run in process.app.list(target="runlane.memory.index")])

    await eventually(waits, "a run that waits for the cap")
    assert (await usage(process))[MODEL].calls == 1
    await cap(process, None)
    await eventually(lambda: is_indexed(process, memory_id))
    assert await found_by(service, memory_id) == [("text", "vector"), ("vector",)]
    assert (await usage(process))[MODEL].calls == 3
