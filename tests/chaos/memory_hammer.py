"""Add entries to one memory without a pause, and print each acknowledgement and each refusal.

Usage: python -m tests.chaos.memory_hammer MEMORY [PREFIX]. The process is a memory node, or writes to the database, as
its environment says. With a prefix for its entries, it requests the memory from other owners.
"""

from __future__ import annotations

import asyncio
import os
import sys

from runlane.domain.memory import NewEntry
from runlane.errors import Conflict, RunlaneError
from runlane.memory.opening import open_memory
from runlane.settings import load_settings
from runlane.store.sql.database import open_database
from runlane.testing import crash_points


async def main(memory: str, prefix: str | None = None) -> None:
    crash_points.install_from_environment()
    settings = load_settings()
    database = await open_database(settings)
    opened = await open_memory(settings, database)
    service = opened.service.forwarding(lambda _error: prefix is None)
    number = 0
    while True:
        try:
            entry = await service.add_entry("default", memory, NewEntry(f"{prefix or 'a'}{number}"))
        except Conflict as error:
            os.write(1, f"lost {error.code}\n".encode())
            break
        except RunlaneError as error:
            os.write(1, f"refused {error.code}\n".encode())
            await asyncio.sleep(0.05)
        else:
            os.write(1, f"ack {prefix or 'a'}{number} {entry.seq}\n".encode())
            number += 1
            await asyncio.sleep(0.005)
    # What was acknowledged and not replicated is listed.
    for parked in (await opened.service.status()).parked:
        os.write(1, f"parked {parked.waiting} {parked.superseded}\n".encode())
    os.write(1, b"done\n")
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))
