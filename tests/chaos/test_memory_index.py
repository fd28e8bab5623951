"""Workers die while they compute embeddings: the next one continues, and no call is paid twice but the lost one."""

from __future__ import annotations

from collections import Counter

from runlane import Status
from runlane.domain.memory import NewEntry
from runlane.memory.indexing import EMBEDDED_AT_ONCE
from runlane.testing import FakeAnswer, FakeServer
from runlane.testing.crash_points import CrashPoint
from tests.chaos.cluster import MakeCluster, Process, eventually
from tests.memory import TENANT, new_memory

ENTRIES = 2 * EMBEDDED_AT_ONCE + 10
# Of the first call, whose answer is lost; and of the second one, after its vectors are stored.
DEATHS = (CrashPoint("memory.embedded", nth=1), CrashPoint("memory.indexed", nth=2))


async def test_an_index_run_continues_after_its_worker_was_killed(make_cluster: MakeCluster) -> None:
    cluster = await make_cluster("postgres")
    service = await cluster.app.memory()
    memory_id = await new_memory(service)
    texts = [f"note {number}" for number in range(ENTRIES)]
    for first in range(0, ENTRIES, 100):
        await service.add_entries(TENANT, memory_id, [NewEntry(text) for text in texts[first : first + 100]])
    async with FakeServer([FakeAnswer(text="unused")]) as fake:
        environment = {
            "RUNLANE_MEMORY_EMBEDDING_MODEL": "openai:embed-small",
            "OPENAI_BASE_URL": f"{fake.url}/v1",
            "OPENAI_API_KEY": "sk-test",
        }
        for death in DEATHS:
            worker = cluster.start_worker(crash=death, environment=environment)

            async def died(process: Process = worker) -> bool:
                return not process.alive

            await eventually(died, f"the death of a worker at {death}")
        cluster.start_worker(environment=environment)

        async def indexed() -> bool:
            rows = await cluster.rows(
                "select 1 from memory_indexes x join memories m on m.id = x.memory_id where x.indexed_seq >= m.last_seq"
            )
            return bool(rows)

        await eventually(indexed, "the embeddings of all entries")
        sent = Counter(text for call in fake.meter.log if call.outcome == "200" for text in call.body["input"])
    assert set(sent) == set(texts)
    # The answer to the first call was lost with its worker; everything else was paid once.
    assert Counter(sent.values()) == {2: EMBEDDED_AT_ONCE, 1: ENTRIES - EMBEDDED_AT_ONCE}
    (stored,) = await cluster.rows(
        "select count(*) as vectors, count(distinct entry_id) as entries from memory_vectors"
    )
    assert (stored["vectors"], stored["entries"]) == (ENTRIES, ENTRIES)

    async def ended() -> bool:
        return await cluster.count("ended_at is null") == 0

    await eventually(ended, "the end of the runs")
    runs = [run async for run in cluster.app.list(target="runlane.memory.index")]
    assert {run.status for run in runs} == {Status.COMPLETED}
