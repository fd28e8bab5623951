"""Handover of a memory with a SIGKILL of its owner or of the process that requested it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from runlane import Status
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.memory import CommitState
from runlane.testing.crash_points import CrashPoint
from tests import forking
from tests.chaos.cluster import MakeCluster
from tests.chaos.flows import MODEL, Flows
from tests.harness import eventually
from tests.memory import TENANT, add, check_log, direct_memory, memory_node, new_memory, texts_of

ANSWERS: list[Any] = [
    {"when": "Keep code", "tool": "remember", "arguments": {"text": "A code."}},
    {"say": "Done."},
]
AGENT = {"id": "friend", "model": MODEL, "memory": {"vault": "default", "title": "shared", "context": "none"}}


class Hammer:
    """A process that adds entries to a memory without a pause, and what it was acknowledged."""

    def __init__(
        self, url: str, memory_id: str, prefix: str, path: Path | None = None, crash: CrashPoint | None = None
    ) -> None:
        environment = {
            **os.environ,
            "RUNLANE_DATABASE_URL": url,
            "RUNLANE_MEMORY_MODE": "direct" if path is None else "replicated",
            "RUNLANE_MEMORY_LEASE_SECONDS": "2",
        }
        if path is not None:
            environment["RUNLANE_MEMORY_PATH"] = str(path)
        if crash is not None:
            environment["TEST_CRASH_POINT"] = str(crash)
        command = [sys.executable, "-m", "tests.chaos.memory_hammer", memory_id, prefix]
        self.process = cast("Any", forking.Popen)(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.lines: list[str] = []

    @property
    def acknowledged(self) -> list[str]:
        return [line.split()[1] for line in self.lines if line.startswith("ack")]

    async def read(self, count: int) -> None:
        """Read lines until there are this many acknowledgements."""
        while len(self.acknowledged) < count:
            line = (await asyncio.to_thread(self.process.stdout.readline)).decode()
            assert line, self.lines[-5:]
            self.lines.append(line.strip())

    async def killed(self) -> None:
        """Wait for the crash point."""
        output, _ = await asyncio.to_thread(self.process.communicate)
        self.lines += [line for line in output.decode().splitlines() if line]
        assert self.process.returncode == -signal.SIGKILL, self.lines[-5:]

    async def end(self) -> None:
        """Kill the process and read the rest."""
        self.process.kill()
        await self.killed()


def check(stored: list[str], *writers: list[str]) -> None:
    """Check that everything acknowledged is stored once, and in the order of each writer."""
    assert len(stored) == len(set(stored)), "an entry was stored twice"
    for texts in writers:
        mine = set(texts)
        assert [text for text in stored if text in mine] == texts


@pytest.mark.parametrize("point", ["handover.replicated", "handover.released"])
async def test_an_owner_that_is_killed_during_a_handover_loses_nothing(
    postgres_url: str, tmp_path: Path, point: str
) -> None:
    """Before the release, the memory waits for the lease of the owner; after it, the requesting process has it."""
    async with direct_memory(postgres_url) as other:
        memory_id = await new_memory(other.service)
        owner = Hammer(postgres_url, memory_id, "a", tmp_path / "a.db", CrashPoint(point))
        await owner.read(20)

        async def accepted() -> bool:
            await add(other.service, memory_id, "agent0")
            return True

        first = asyncio.create_task(eventually(accepted, "the memory is released"))
        await owner.killed()
        await first
        again = Hammer(postgres_url, memory_id, "b", tmp_path / "a.db")
        await again.read(20)
        await add(other.service, memory_id, "agent1")
        await again.read(len(again.acknowledged) + 5)
        await again.end()
        async with memory_node(postgres_url, tmp_path / "a.db") as node:
            await add(node.service, memory_id, "last")
            assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
            stored = await texts_of(node.service, memory_id, consistency="committed")
            assert await texts_of(node.service, memory_id) == stored
            assert node.node is not None
            await check_log(node.node.remote, memory_id)
        check(stored, [*owner.acknowledged, *again.acknowledged, "last"], ["agent0", "agent1", "last"])
        # What was killed before its acknowledgement is stored or not; nothing else is.
        assert len(stored) <= len(owner.acknowledged) + len(again.acknowledged) + 3 + 2


async def test_a_process_that_is_killed_after_its_request_delays_the_owner_only_for_a_moment(
    postgres_url: str, tmp_path: Path
) -> None:
    async with memory_node(postgres_url, tmp_path / "a.db") as node:
        memory_id = await new_memory(node.service)
        await add(node.service, memory_id, "a0")
        requester = Hammer(postgres_url, memory_id, "b", crash=CrashPoint("handover.requested"))
        acknowledged = ["a0"]
        while requester.process.poll() is None:
            acknowledged.append(f"a{len(acknowledged)}")
            await add(node.service, memory_id, acknowledged[-1])
        await requester.killed()
        await add(node.service, memory_id, "last")
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        assert await texts_of(node.service, memory_id, consistency="committed") == [*acknowledged, "last"]
        assert requester.acknowledged == []


async def test_an_agent_remembers_while_a_person_writes_through_the_node_that_owns_the_memory(
    make_cluster: MakeCluster, tmp_path: Path
) -> None:
    """The worker of the agent has no memory file: it gets the memory for each change, and the node gets it back."""
    cluster = await make_cluster("postgres")
    Flows(cluster).script(answers=ANSWERS)
    database = await cluster.app.database()
    await sync_definitions(database, "default", parse_bodies({"agents": [AGENT]}), actor="test")
    await cluster.start_workers(1)
    url = cluster.app.settings.database_url
    assert url is not None
    async with memory_node(url.get_secret_value(), tmp_path / "a.db") as node:
        memory_id = await new_memory(node.service, "shared")
        person = [f"person{number}" for number in range(10)]
        await add(node.service, memory_id, *person)
        posted = [await cluster.app.chat("friend", f"Keep code {number}.") for number in range(3)]
        waiting = asyncio.gather(*(cluster.app.wait(chat.run_id, 120) for chat in posted))
        while not waiting.done():
            person.append(f"person{len(person)}")
            await add(node.service, memory_id, person[-1])
        assert [run.status for run in await waiting] == [Status.COMPLETED] * 3
        assert (await node.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        stored = await texts_of(node.service, memory_id)
        assert [text for text in stored if text.startswith("person")] == person
        assert sorted(text for text in stored if not text.startswith("person")) == ["A code."] * 3
        await check_log(database, memory_id)


async def test_a_node_and_a_process_without_a_file_share_a_memory(postgres_url: str, tmp_path: Path) -> None:
    """Two processes that never pause: both are acknowledged, again and again."""
    async with direct_memory(postgres_url) as reader:
        memory_id = await new_memory(reader.service)
        node = Hammer(postgres_url, memory_id, "node", tmp_path / "a.db")
        direct = Hammer(postgres_url, memory_id, "direct")
        await asyncio.gather(node.read(20), direct.read(5))
        await direct.read(10)
        await node.read(len(node.acknowledged) + 20)
        await direct.end()
        await node.end()
        async with memory_node(postgres_url, tmp_path / "a.db") as opened:
            await add(opened.service, memory_id, "last")
            assert (await opened.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
            stored = await texts_of(opened.service, memory_id)
            assert opened.node is not None
            await check_log(opened.node.remote, memory_id)
        check(stored, node.acknowledged, direct.acknowledged)
