"""Start a refund of 250 euro over HTTP with the LangGraph client, and answer its question."""

from __future__ import annotations

import asyncio
import os
from typing import Any, cast

from langgraph_sdk import get_client


async def main() -> None:
    """Execute the graph once."""
    client = get_client(url=os.environ.get("RUNLANE_URL", "http://127.0.0.1:8765"))
    thread = await client.threads.create()
    given: dict[str, Any] = {"order": "A-17", "euro": 250, "log": []}
    stream = client.runs.stream(thread["thread_id"], "refunds", input=given, stream_mode="updates")
    async for part in cast("Any", stream):
        print(part.event, part.data)
    state: Any = await client.threads.get_state(thread["thread_id"])
    (question,) = state["interrupts"]
    print("The graph asks:", question["value"])
    ended = await cast("Any", client.runs).wait(thread["thread_id"], "refunds", command={"resume": "yes"})
    print("The graph ended:", ended)


if __name__ == "__main__":
    asyncio.run(main())
