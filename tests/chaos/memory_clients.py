"""Four clients that change and read memories at random, and write down what was acknowledged.

Usage: python -m tests.chaos.memory_clients FOLDER ROUND OPERATIONS MEMORIES. The process is a memory node on
FOLDER/memory.db. Each client appends to FOLDER/client-N.jsonl: a line before an operation and one after its
acknowledgement. A line reaches the kernel at once, so it survives a SIGKILL. An operation without an acknowledgement is
sent again by the next process, with the same idempotency key. A read that misses what was acknowledged before is
written down, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from runlane.domain.memory import MemoryEntry, NewEntry
from runlane.errors import NotFound
from runlane.memory.opening import open_memory
from runlane.memory.service import MemoryService
from runlane.settings import load_settings
from runlane.store.sql.database import open_database
from runlane.testing import crash_points

TENANT = "default"
CLIENTS = 4


class ClientJournal:
    """What one client has sent and what was acknowledged."""

    def __init__(self, path: Path) -> None:
        self.lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: Any) -> None:
        self.lines.append(line)
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def unfinished(self) -> list[dict[str, Any]]:
        """Return the operations that were sent and not acknowledged."""
        done = {line["key"] for line in self.lines if line["phase"] in ("ack", "refused")}
        return [line for line in self.lines if line["phase"] == "sent" and line["key"] not in done]

    def added(self, memory: str) -> list[str]:
        """Return the entries of a memory that this client has added and not begun to delete."""
        gone = {line["entry"] for line in self.lines if line["phase"] == "sent" and line["kind"] == "delete"}
        return [
            line["id"]
            for line in self.lines
            if line["phase"] == "ack" and line["kind"] == "add" and line["memory"] == memory and line["id"] not in gone
        ]

    def word_of(self, entry: str) -> str:
        """Return a word that this entry alone has."""
        return word(next(line["key"] for line in self.lines if line["phase"] == "ack" and line.get("id") == entry))


def word(key: str) -> str:
    return f"w{key.replace('-', 'x')}"


async def send(service: MemoryService, journal: ClientJournal, line: dict[str, Any]) -> None:
    """Send one operation and write down its acknowledgement."""
    memory, key = line["memory"], line["key"]
    answer: Any = None
    try:
        match line["kind"]:
            case "add":
                answer = await service.add_entry(TENANT, memory, NewEntry(line["text"]), idempotency_key=key)
            case "delete":
                await service.delete_entry(TENANT, memory, line["entry"], idempotency_key=key)
            case "tags":
                await service.set_tags(TENANT, memory, line["entry"], {"n": line["text"]}, idempotency_key=key)
            case _:
                await service.put_fragment(TENANT, memory, line["name"], line["text"], idempotency_key=key)
    except NotFound:
        # The entry was deleted by this client before.
        journal.write(phase="refused", kind=line["kind"], key=key)
        return
    found = {"id": answer.id, "seq": answer.seq} if isinstance(answer, MemoryEntry) else {}
    journal.write(phase="ack", kind=line["kind"], memory=memory, key=key, **found)


async def client(service: MemoryService, folder: Path, number: int, round_: int, operations: int) -> None:
    chance = random.Random(f"{number}/{round_}")
    memories = (folder / "memories.txt").read_text().split()
    journal = ClientJournal(folder / f"client-{number}.jsonl")
    for line in journal.unfinished():
        await send(service, journal, line)
    for index in range(operations):
        memory = chance.choice(memories)
        key = f"{number}-{round_}-{index}"
        mine = journal.added(memory)
        kind = chance.choices(["add", "tags", "delete", "fragment", "read", "search"], [60, 10, 10, 10, 10, 10])[0]
        if kind in ("tags", "delete", "search") and not mine:
            kind = "add"
        if kind == "search":
            wanted = chance.choice(mine)
            hits = await service.search(TENANT, memory, journal.word_of(wanted))
            if [hit.entry.id for hit in hits] != [wanted]:
                journal.write(phase="missed", kind="search", key=key, memory=memory, missing=[wanted])
            continue
        if kind == "read":
            page = await service.list_entries(TENANT, memory, limit=500)
            missing = set(mine) - {entry.id for entry in page.entries}
            if missing and len(page.entries) < 500:
                journal.write(phase="missed", kind="read", key=key, memory=memory, missing=sorted(missing))
            continue
        line: dict[str, Any] = {
            "phase": "sent",
            "kind": kind,
            "memory": memory,
            "key": key,
            "text": f"text {word(key)}",
        }
        if kind in ("tags", "delete"):
            line["entry"] = chance.choice(mine)
        if kind == "fragment":
            line["name"] = f"client{number}"
        journal.write(**line)
        await send(service, journal, line)


async def main(folder: Path, round_: int, operations: int) -> None:
    crash_points.install_from_environment()
    settings = load_settings()
    database = await open_database(settings)
    opened = await open_memory(settings, database)
    await asyncio.gather(*(client(opened.service, folder, number, round_, operations) for number in range(CLIENTS)))
    await opened.close()
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
