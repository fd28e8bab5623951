"""An assistant that remembers: two conversations share one memory, and a person reads it.

The model is scripted, so the example needs no key. In the first conversation the guest mentions an allergy, the
second one is a new session with the same guest. Everything is stored in SQLite files of a folder.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from pydantic import SecretStr

from runlane import App, Status
from runlane.settings import Settings

HERE = Path(__file__).parent
GUEST = {"guest": "ada"}


async def say(app: App, message: str) -> tuple[str, str]:
    """Send the first message of a new conversation; return the answer and the id of its run."""
    posted = await app.chat("concierge", message, input=GUEST)
    run = await app.wait(posted.run_id, timeout=60)
    if run.status is not Status.COMPLETED:
        raise SystemExit(f"The run {run.id} is {run.status.value}: {run.error}")
    print(f"\nGuest:     {message}")
    for event in await app.events(run.id):
        if event.type == "tool_execution":
            print(f"           [{event.data['tool_name']} {event.data['args']}]")
    print(f"Assistant: {run.result}", flush=True)
    return str(run.result), run.id


async def show_memory(app: App) -> None:
    """Print what the memory has, as a person reads it with `runlane memory`."""
    memory = await app.memory()
    for item in await memory.list_memories("default"):
        context = await memory.get_fragment("default", item.id, "context")
        page = await memory.list_entries("default", item.id)
        print(f"\nMemory {item.title}\n  context: {context.content.strip()}")
        for entry in page.entries:
            print(f"  entry:   {entry.text}")


async def main(folder: Path) -> None:
    """Hold two conversations and show the memory."""
    app = App(Settings(database_url=SecretStr(f"sqlite:///{folder / 'runlane.db'}"), worker_health_port=0))
    async with app:
        await app.sync(HERE / "definitions")
        worker = await app.worker()
        await worker.start()
        try:
            await say(app, "Hello, I am Ada. I am allergic to nuts, and I like a view of the sea.")
            await show_memory(app)
            await say(app, "What should the kitchen know about me?")
        finally:
            await worker.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="Where to store the databases. Default: a temporary folder.")
    given: Path | None = parser.parse_args().folder
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(given or Path(temporary)))
