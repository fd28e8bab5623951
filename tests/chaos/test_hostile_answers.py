"""A hostile answer to a tool costs its own step at most: the worker continues, and reads what is legal."""

from __future__ import annotations

import gzip
from typing import Any

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from tests.chaos.cluster import MakeCluster
from tests.integration.http_server import Request, Writer, plain, serving

FACTS = b'{"facts": "' + b"many words " * 20_000 + b'", "last": true}'
TWO_MEMBERS = gzip.compress(FACTS[:100_000]) + gzip.compress(FACTS[100_000:])
BOMB = gzip.compress(b" " * 50_000_000) * 2


async def test_a_worker_reads_members_and_survives_a_bomb(make_cluster: MakeCluster) -> None:
    async def answer(request: Request, writer: Writer) -> None:
        body = BOMB if request.target == "/bomb" else TWO_MEMBERS
        headers = {"content-type": "application/json", "content-encoding": "gzip"}
        await plain(body, headers=headers)(request, writer)

    async with serving(answer) as server:
        cluster = await make_cluster("postgres", RUNLANE_OUTBOUND_ALLOW=f"127.0.0.1:{server.port}")
        tools = [
            {"name": name, "tool_type": "http", "method": "GET", "url": server.url(f"/{name}")}
            for name in ("bomb", "facts")
        ]
        flows: list[dict[str, Any]] = [
            {"id": name, "steps": [{"id": "call", "type": "tool", "forced_tool": name, "arguments": {}}]}
            for name in ("bomb", "facts")
        ]
        loaded = parse_bodies({"tools": tools, "orchestrations": flows})
        await sync_definitions(await cluster.app.database(), "default", loaded, actor="test")
        [worker] = await cluster.start_workers(1)
        bomb = await cluster.app.orchestrate("bomb", "go")
        facts = await cluster.app.orchestrate("facts", "go")
        failed = await cluster.app.wait(bomb.run_id, 60)
        ended = await cluster.app.wait(facts.run_id, 60)
        assert failed.status == "failed"
        assert failed.error is not None
        assert failed.error["type"] == "outbound_too_large", failed.error
        assert ended.status == "completed"
        assert ended.result == {"facts": "many words " * 20_000, "last": True}
        assert (failed.attempt, ended.attempt) == (1, 1)
        assert worker.alive
        await cluster.check_story()
