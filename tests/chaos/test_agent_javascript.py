"""The unmodified JavaScript SDK under Node: two replicas behind a balancer without stickiness, and two workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.tenant import DEFAULT_TENANT
from tests import npm
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, PAY
from tests.chaos.balancer import Balancer
from tests.chaos.cluster import Cluster, MakeCluster, Process
from tests.forking import GRAPHS
from tests.scale import scaled

MODULE = "tests.chaos.sdk_graphs"
FOLDER = Path(__file__).parent / "javascript"
# Checks of the newest version of the SDK, and of the one before, which has no streams of threads.
CHECKS = {"all": 39, "streams": 15}


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    npm.install(FOLDER)


@pytest.mark.parametrize(
    ("kind", "with_redis", "wanted"),
    # Events travel in another way on each; the other calls are the same code.
    [
        ("postgres", True, "all"),
        ("postgres", False, scaled("streams", "all")),
        ("sqlite", False, scaled("streams", "all")),
    ],
)
async def test_every_call_of_the_javascript_sdk(
    make_cluster: MakeCluster, request: pytest.FixtureRequest, kind: str, with_redis: bool, wanted: str
) -> None:
    environment = {"RUNLANE_REDIS_URL": request.getfixturevalue("chaos_redis").url} if with_redis else {}
    cluster = await make_cluster(kind, **environment, **GRAPHS)
    cluster.tasks = MODULE
    agents = parse_bodies({"agents": [HELPER, CAREFUL], "tools": [PAY]})
    await sync_definitions(await cluster.app.database(), DEFAULT_TENANT, agents, actor="test")
    victim, other = cluster.start_server(), cluster.start_server()
    await cluster.start_workers(2)
    async with Balancer([await cluster.url_of(victim), await cluster.url_of(other)]) as balancer:
        lines = await _run_checks(cluster, balancer, victim, wanted)
        assert min(balancer.used[0], balancer.used[1]) > 10
    checks = [line for line in lines if "check" in line]
    problems = [f"{line['sdk']}, {line['check']}:\n{line['problem']}" for line in checks if "problem" in line]
    assert not problems, "\n".join(problems)
    assert len(checks) == CHECKS[wanted], [line["check"] for line in checks]
    assert lines[-1] == {"done": True}


async def _run_checks(cluster: Cluster, balancer: Balancer, victim: Process, wanted: str) -> list[dict[str, Any]]:
    """Run the checks in one process of Node, do to the servers what they ask for, and return what they report."""
    node = await asyncio.create_subprocess_exec(
        str(npm.WITH_NODE), "node", "--experimental-websocket", "run.mjs", balancer.url, wanted,
        cwd=FOLDER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert node.stdin is not None
    assert node.stdout is not None
    lines: list[dict[str, Any]] = []
    try:
        async for text in node.stdout:
            line = json.loads(text)
            lines.append(line)
            if line.get("ask") == "cut":
                if victim.alive:
                    victim.kill()
                balancer.cut()
                cluster.open_gate(line["detail"])
                node.stdin.write(b"done\n")
        await node.wait()
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
    return lines
