"""Search by meaning: embeddings by durable runs, combined with words; without a model, words alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from runlane import Status
from runlane.domain.memory import MemoryHit, NewEntry
from runlane.errors import InvalidRequest
from runlane.llm import embeddings
from runlane.memory import indexing
from runlane.memory.indexing import EMBEDDED_AT_ONCE, fuse
from runlane.memory.service import MemoryService
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from runlane.store.memory import vectors
from runlane.submit.memory_runs import start_reindex
from runlane.testing import FakeAnswer, FakeControl, FakeFault, FakeServer
from tests.chaos.proxy import Proxy
from tests.harness import eventually, settings_for
from tests.integration.process import Process
from tests.memory import TENANT, add, memory_node, new_memory

MODEL = "openai:embed-small"


@pytest.fixture
async def fake() -> AsyncGenerator[FakeServer]:
    async with FakeServer([FakeAnswer(text="unused")]) as server:
        yield server


@pytest.fixture
async def process(settings: Settings, fake: FakeServer) -> AsyncGenerator[Process]:
    """A process whose provider of embeddings is the fake one."""
    fields: dict[str, Any] = {
        "timer_seconds": 0.02,
        "memory_embedding_model": MODEL,
        "openai_base_url": f"{fake.url}/v1",
        "openai_api_key": "sk-test",
    }
    assert settings.database_url is not None
    process = Process(settings_for(settings.database_url.get_secret_value(), **fields))
    try:
        yield process
    finally:
        await process.stop()


async def find(service: MemoryService, memory_id: str, query: str, tenant: str = TENANT) -> dict[str, tuple[str, ...]]:
    hits = await service.search(tenant, memory_id, query)
    return {hit.entry.text: tuple(hit.found_by) for hit in hits}


async def indexed(process: Process, memory_id: str) -> None:
    """Wait until all entries of a memory have embeddings."""
    index = await (await process.app.connect()).memory_opener.index()
    assert index is not None

    async def is_complete() -> bool:
        state = await vectors.index_state(index.database, memory_id)
        return state is not None and state.model == MODEL and state.indexed_seq >= state.last_seq

    await eventually(is_complete)


async def test_entries_are_found_by_words_and_by_meaning(process: Process, fake: FakeServer) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    first = (await add(service, memory_id, "the automobile is red", "a film about the sea", "car keys are here"))[0]
    assert await find(service, memory_id, "car") == {"car keys are here": ("text",)}
    await process.start()
    await indexed(process, memory_id)
    found = await find(service, memory_id, "car")
    assert found["car keys are here"] == ("text", "vector")
    assert found["the automobile is red"] == ("vector",)
    assert next(iter(found)) == "car keys are here"
    # A deleted entry is not found, and its embedding is gone; a corrected one is replaced by its correction.
    await service.delete_entry(TENANT, memory_id, first.id)
    assert "the automobile is red" not in await find(service, memory_id, "car")
    await service.add_entry(TENANT, memory_id, NewEntry("my vehicle is blue"))
    await indexed(process, memory_id)
    assert (await find(service, memory_id, "car"))["my vehicle is blue"] == ("vector",)
    runs = [run async for run in process.app.list(target="runlane.memory.index", ordering_key=f"memory:{memory_id}")]
    assert len(runs) >= 2


async def test_a_search_without_its_provider_returns_what_words_find(
    process: Process, fake: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await add(service, memory_id, "the automobile is red", "car keys")
    await process.start()
    await indexed(process, memory_id)
    fake.control(FakeControl(fault=FakeFault(status=500, message="down")))
    assert await find(service, memory_id, "car") == {"car keys": ("text",)}
    # It accepts the call and does not answer.
    monkeypatch.setattr(embeddings, "_TIMEOUT_SECONDS", 600.0)
    monkeypatch.setattr(indexing, "_SEARCH_CALL_SECONDS", 0.05)
    fake.control(FakeControl(fault=FakeFault(kind="hang")))
    async with asyncio.timeout(120):
        assert await find(service, memory_id, "car") == {"car keys": ("text",)}
    fake.control(FakeControl(fault=None))


async def test_an_owner_searches_by_words_while_the_database_is_away(
    postgres_url: str, tmp_path: Path, fake: FakeServer
) -> None:
    model: dict[str, Any] = {
        "memory_embedding_model": MODEL,
        "openai_base_url": f"{fake.url}/v1",
        "openai_api_key": "sk-test",
    }
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db", **model) as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "car keys")
        assert await find(node.service, memory_id, "car") == {"car keys": ("text",)}
        proxy.refuse()
        await add(node.service, memory_id, "car park")
        assert set(await find(node.service, memory_id, "car")) == {"car keys", "car park"}
        proxy.accept()


async def test_a_refused_entry_does_not_stop_the_others(process: Process, fake: FakeServer) -> None:
    """Weakness 23: one row that the embedding service refuses was retried forever."""
    service = await process.app.memory()
    memory_id = await new_memory(service)
    fake.control(FakeControl(fault=FakeFault(status=400, message="bad input")))
    await add(service, memory_id, "the automobile is red")
    await process.start()
    await indexed(process, memory_id)
    fake.control(FakeControl(fault=None))
    await add(service, memory_id, "the vehicle is green")
    await indexed(process, memory_id)
    assert set(await find(service, memory_id, "car")) == {"the vehicle is green"}
    # Computed again, all entries have embeddings.
    accepted = await start_reindex(await process.app.connect(), TENANT, memory_id)
    assert (await process.end(accepted.run_id)).status is Status.COMPLETED
    assert set(await find(service, memory_id, "car")) == {"the vehicle is green", "the automobile is red"}


async def test_an_embedding_that_arrives_after_a_delete_brings_nothing_back(process: Process) -> None:
    """Weakness 23: an upsert after a later delete resurrected the entry in search."""
    service = await process.app.memory()
    memory_id = await new_memory(service)
    entry = (await add(service, memory_id, "the automobile is red"))[0]
    index = await (await process.app.connect()).memory_opener.index()
    assert index is not None
    late = vectors.UnindexedEntry(entry.id, entry.seq, entry.text)
    await service.delete_entry(TENANT, memory_id, entry.id)
    await vectors.store_vectors(index.database, memory_id, MODEL, [(late, [1.0] * 64)], entry.seq)
    assert await vectors.nearest_entries(index.database, memory_id, [1.0] * 64, 10) == []
    assert await find(service, memory_id, "car") == {}


async def test_an_attempt_continues_after_the_last_stored_batch(process: Process, fake: FakeServer) -> None:
    """A run that fails in its second batch does not pay for the first one again."""
    service = await process.app.memory()
    memory_id = await new_memory(service)
    await service.add_entries(TENANT, memory_id, [NewEntry(f"note {number}") for number in range(100)])
    index = await (await process.app.connect()).memory_opener.index()
    assert index is not None

    async def fail_next(_fraction: float) -> None:
        fake.control(FakeControl(fault=FakeFault(status=500, message="down")))

    with pytest.raises(RuntimeError):
        await index.index(memory_id, fail_next)
    fake.control(FakeControl(fault=None))

    async def ignore(_fraction: float) -> None:
        return

    assert (await index.index(memory_id, ignore))["entries"] == 100 - EMBEDDED_AT_ONCE
    embedded = [text for call in fake.meter.log if call.outcome == "200" for text in call.body["input"]]
    assert sorted(embedded) == sorted(f"note {number}" for number in range(100))


async def test_embeddings_stay_within_their_tenant(process: Process) -> None:
    service = await process.app.memory()
    await create_tenant(await process.app.database(), "acme", actor="test")
    mine, theirs = await new_memory(service), (await service.create_memory("acme", "notes")).id
    await add(service, mine, "the automobile is red")
    await service.add_entry("acme", theirs, NewEntry("the vehicle of acme"))
    await process.start()
    await asyncio.gather(indexed(process, mine), indexed(process, theirs))
    assert set(await find(service, mine, "car")) == {"the automobile is red"}
    assert set(await find(service, theirs, "car", "acme")) == {"the vehicle of acme"}


async def test_reindex_without_a_model_is_refused(settings: Settings) -> None:
    process = Process(settings)
    try:
        service = await process.app.memory()
        with pytest.raises(InvalidRequest, match="RUNLANE_MEMORY_EMBEDDING_MODEL"):
            await start_reindex(await process.app.connect(), TENANT, await new_memory(service))
    finally:
        await process.stop()


async def test_an_entry_that_both_ways_found_ranks_first(settings: Settings) -> None:
    process = Process(settings)
    try:
        service = await process.app.memory()
        memory_id = await new_memory(service)
        entries = await add(service, memory_id, "a", "b", "c")
    finally:
        await process.stop()
    by_id = {entry.id: entry for entry in entries}
    a, b, c = by_id
    hits: list[MemoryHit] = fuse([(by_id[a], 9.0), (by_id[b], 1.0)], [c, b, "deleted"], by_id, 10)
    assert [(hit.entry.text, hit.found_by) for hit in hits] == [
        ("b", ("text", "vector")),
        ("c", ("vector",)),
        ("a", ("text",)),
    ]
