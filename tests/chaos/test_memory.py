"""Memory under SIGKILL at every failpoint, with Postgres away, and with two nodes that fight for a memory."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import asyncpg
import pytest

from runlane.domain.memory import CommitState, NewEntry
from runlane.errors import MemoryOwnedElsewhere
from runlane.store.sql.database import Database
from runlane.testing.crash_points import CrashPoint
from tests import forking
from tests.chaos.memory_clients import CLIENTS
from tests.chaos.proxy import Proxy
from tests.harness import eventually
from tests.memory import TENANT, add, check_index, check_log, memory_node, new_memory, texts_of
from tests.scale import scaled

POINTS = (
    "memory.before_commit",
    "memory.committed",
    "words.before_commit",
    "words.committed",
    "replicate.read",
    "replicate.before_commit",
    "replicate.committed",
    "replicate.marked",
)
ROUNDS = scaled(len(POINTS), 200)
MEMORIES = scaled(12, 300)
OPERATIONS = scaled(30, 60)


def start(folder: Path, url: str, *arguments: str, crash: CrashPoint | None = None) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RUNLANE_DATABASE_URL": url,
        "RUNLANE_MEMORY_PATH": str(folder / "memory.db"),
        "RUNLANE_MEMORY_MODE": "replicated",
    }
    if crash is not None:
        environment["TEST_CRASH_POINT"] = str(crash)
    command = [sys.executable, "-m", *arguments]
    return cast("Any", forking.Popen)(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


async def ended(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    output, _ = await asyncio.to_thread(process.communicate)
    return process.returncode, output.decode()


@pytest.mark.timeout(scaled(600, 5400))
async def test_everything_acknowledged_is_stored_in_order_and_once(postgres_url: str, tmp_path: Path) -> None:
    """Killed at every failpoint of writing and replication, restarted on the same file, and compared at the end."""
    async with memory_node(postgres_url, tmp_path / "setup.db") as setup:
        memories = [await new_memory(setup.service, f"m{number}") for number in range(MEMORIES)]
    (tmp_path / "memories.txt").write_text("\n".join(memories))
    chance = random.Random(15)
    for number in range(ROUNDS):
        point = CrashPoint(POINTS[number % len(POINTS)], nth=chance.randint(1, 12))
        process = start(
            tmp_path, postgres_url, "tests.chaos.memory_clients", str(tmp_path), str(number), "1000", crash=point
        )
        code, output = await ended(process)
        assert code == -signal.SIGKILL, f"{point} was not reached:\n{output}"
    last = start(tmp_path, postgres_url, "tests.chaos.memory_clients", str(tmp_path), str(ROUNDS), str(OPERATIONS))
    assert await ended(last) == (0, "")
    async with memory_node(postgres_url, tmp_path / "memory.db") as node:
        assert node.node is not None
        for memory_id in memories:
            assert (await node.service.await_commit(TENANT, memory_id, 120)).state is CommitState.COMMITTED
            await check_log(node.node.remote, memory_id)
        await check_index(node)
    remote = await remote_rows(postgres_url)
    assert local_rows(tmp_path / "memory.db", {row["memory_id"] for row in remote}) == remote
    check_journals(tmp_path, remote, await fragments(postgres_url))


async def remote_rows(url: str) -> list[dict[str, Any]]:
    return await fetch(url, f"select {_COLUMNS} from memory_entries order by memory_id, seq")


async def fragments(url: str) -> dict[tuple[str, str], str]:
    rows = await fetch(url, "select memory_id, name, content from memory_fragments")
    return {(row["memory_id"], row["name"]): row["content"] for row in rows}


_COLUMNS = "id, memory_id, seq, changed_seq, text, tags, created_at, corrects, corrected_by, deleted_at"


async def fetch(url: str, query: str) -> list[dict[str, Any]]:
    connection = await cast("Any", asyncpg).connect(url)
    try:
        return [dict(row) for row in await connection.fetch(query)]
    finally:
        await connection.close()


def local_rows(path: Path, memories: set[str]) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    rows = connection.execute(f"select {_COLUMNS} from memory_entries order by memory_id, seq").fetchall()
    connection.close()
    return [dict(row) for row in rows if row["memory_id"] in memories]


def check_journals(folder: Path, rows: list[dict[str, Any]], documents: dict[tuple[str, str], str]) -> None:
    """Compare what the clients were promised with what is stored."""
    by_id = {row["id"]: row for row in rows}
    texts = [row["text"] for row in rows if row["deleted_at"] is None]
    assert len(texts) == len(set(texts)), "an entry was stored twice"
    acknowledged = 0
    for number in range(CLIENTS):
        lines = [json.loads(line) for line in (folder / f"client-{number}.jsonl").read_text().splitlines()]
        assert [line for line in lines if line["phase"] == "missed"] == []
        sent = {line["key"]: line for line in lines if line["phase"] == "sent"}
        acks = [line for line in lines if line["phase"] == "ack"]
        acknowledged += len(acks)
        assert len({line["key"] for line in acks}) == len(acks)
        positions: dict[str, int] = {}
        deleted = {line["entry"] for line in sent.values() if line["kind"] == "delete"}
        written: dict[tuple[str, str], str] = {}
        tags: dict[str, str] = {}
        for ack in acks:
            asked = sent[ack["key"]]
            if ack["kind"] == "add":
                row = by_id[ack["id"]]
                assert row["seq"] == ack["seq"] > positions.get(ack["memory"], 0), "the order differs"
                positions[ack["memory"]] = ack["seq"]
                assert (row["deleted_at"] is not None) == (ack["id"] in deleted)
                assert row["deleted_at"] is not None or row["text"] == asked["text"]
            elif ack["kind"] == "delete":
                assert by_id[asked["entry"]]["deleted_at"] is not None
            elif ack["kind"] == "tags":
                tags[asked["entry"]] = asked["text"]
            else:
                written[ack["memory"], asked["name"]] = asked["text"]
        for entry_id, text in tags.items():
            row = by_id[entry_id]
            assert row["deleted_at"] is not None or json.loads(row["tags"]) == {"n": text}
        for key, content in written.items():
            assert documents[key] == content
    assert acknowledged > 0


async def test_postgres_away_under_load(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds continue while Postgres is away; the log drains in order, and await_commit reports both.

    No add sends anything to Postgres, so none waits for it however long it takes. The bench measures the latencies.
    """
    waited: list[str] = []
    async with Proxy(postgres_url) as proxy, memory_node(proxy.url, tmp_path / "memory.db") as node:
        assert node.node is not None
        memories = [await new_memory(node.service, f"m{number}") for number in range(8)]
        for memory_id in memories:
            await add(node.service, memory_id, "first")
        adds = record_calls(node.node.remote, waited, monkeypatch)
        proxy.refuse()
        entries = scaled(40, 2000)

        async def load(memory_id: str) -> None:
            adds.add(cast("asyncio.Task[Any]", asyncio.current_task()))
            for number in range(entries):
                await node.service.add_entry(TENANT, memory_id, NewEntry(f"{number}"))

        await asyncio.gather(*(load(memory_id) for memory_id in memories))
        assert (await node.service.await_commit(TENANT, memories[0], 0.01)).state is CommitState.TIMEOUT
        # Later changes do not delay a caller that waits.
        waiting = asyncio.create_task(node.service.await_commit(TENANT, memories[0], 120))
        waiters = node.node.waiters
        await eventually(lambda: len(waiters) == 1, "a caller that waits")
        steady = asyncio.create_task(load(memories[0]))
        proxy.accept()
        result = await waiting
        assert (result.state, result.seq) == (CommitState.COMMITTED, entries + 2)
        await steady
        assert waited == []
        for memory_id in memories:
            assert (await node.service.await_commit(TENANT, memory_id, 120)).state is CommitState.COMMITTED
            await check_log(node.node.remote, memory_id)
        expected = ["first", *(str(number) for number in range(entries))]
        for memory_id in memories[1:]:
            assert await texts_of(node.service, memory_id, consistency="committed") == expected


def record_calls(database: Database, names: list[str], monkeypatch: pytest.MonkeyPatch) -> set[asyncio.Task[Any]]:
    """Note each call of the database by one of the tasks that are added to the result."""
    tasks: set[asyncio.Task[Any]] = set()

    def recorded(name: str, inner: Any) -> Any:
        async def call(*arguments: Any, **more: Any) -> Any:
            if asyncio.current_task() in tasks:
                names.append(name)
            return await inner(*arguments, **more)

        return call

    for name in ("query", "transact", "execute_single"):
        monkeypatch.setattr(database, name, recorded(name, getattr(database, name)))
    return tasks


async def test_two_nodes_fight_for_a_memory(postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node is frozen past its lease: another one takes the memory, nothing interleaves, the first one is refused."""
    monkeypatch.setenv("RUNLANE_MEMORY_LEASE_SECONDS", "2")
    async with memory_node(postgres_url, tmp_path / "b.db", memory_lease_seconds=60) as other:
        assert other.node is not None
        memory_id = await new_memory(other.service)
        process = start(tmp_path, postgres_url, "tests.chaos.memory_hammer", memory_id)
        try:
            assert process.stdout is not None
            output = process.stdout

            async def next_line() -> str:
                return (await asyncio.to_thread(output.readline)).decode().strip()

            lines = [await next_line() for _ in range(30)]
            assert all(line.startswith("ack") for line in lines), lines
            os.kill(process.pid, signal.SIGSTOP)

            async def taken() -> bool:
                try:
                    await add(other.service, memory_id, "b0")
                except MemoryOwnedElsewhere:
                    return False
                return True

            await eventually(taken, "the other node owns the memory")
            await add(other.service, memory_id, "b1", "b2")
            os.kill(process.pid, signal.SIGCONT)
            while lines[-1] != "done":
                lines.append(await next_line())
                await add(other.service, memory_id, f"b{len(lines)}")
            assert (await other.service.await_commit(TENANT, memory_id, 60)).state is CommitState.COMMITTED
        finally:
            process.kill()
            process.communicate()
        acks = [line.split()[1] for line in lines if line.startswith("ack")]
        assert any(line.startswith(("lost", "refused")) for line in lines), lines[-5:]
        stored = await texts_of(other.service, memory_id, consistency="committed")
        first_b = next(index for index, text in enumerate(stored) if text.startswith("b"))
        assert all(text.startswith("b") for text in stored[first_b:]), "the nodes interleave"
        assert stored[:first_b] == acks[:first_b]
        await check_log(other.node.remote, memory_id)
    # What the first node had acknowledged and not replicated is in its file, parked.
    waiting = [ack for ack in acks if ack not in stored]
    if waiting:
        assert any(line.startswith("parked") for line in lines)
        connection = sqlite3.connect(tmp_path / "memory.db")
        kept = connection.execute(
            "select e.text from memories m join memory_entries e on e.memory_id = m.id and e.seq > m.applied_seq"
        ).fetchall()
        connection.close()
        assert {row[0] for row in kept} >= set(waiting)
