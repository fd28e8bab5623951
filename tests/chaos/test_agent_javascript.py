"""The unmodified JavaScript SDK under Node: two replicas behind a balancer without stickiness, and two workers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests import npm
from tests.chaos.balancer import Balancer
from tests.chaos.cluster import Cluster, MakeCluster, Process
from tests.forking import GRAPHS

MODULE = "tests.chaos.sdk_graphs"
FOLDER = Path(__file__).parent / "javascript"
# Checks of the newest version of the SDK, and of the one before, which has no streams of threads.
CHECKS = 37


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    npm.install(FOLDER)


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
async def test_every_call_of_the_javascript_sdk(
    make_cluster: MakeCluster, request: pytest.FixtureRequest, kind: str
) -> None:
    environment = {} if kind == "sqlite" else {"RUNLANE_REDIS_URL": request.getfixturevalue("chaos_redis").url}
    cluster = await make_cluster(kind, **environment, **GRAPHS)
    cluster.tasks = MODULE
    victim, other = cluster.start_server(), cluster.start_server()
    await cluster.start_workers(2)
    async with Balancer([await cluster.url_of(victim), await cluster.url_of(other)]) as balancer:
        lines = await _run_checks(cluster, balancer, victim)
        assert min(balancer.used[0], balancer.used[1]) > 10
    checks = [line for line in lines if "check" in line]
    problems = [f"{line['sdk']}, {line['check']}:\n{line['problem']}" for line in checks if "problem" in line]
    assert not problems, "\n".join(problems)
    assert len(checks) == CHECKS, [line["check"] for line in checks]
    assert lines[-1] == {"done": True}


async def _run_checks(cluster: Cluster, balancer: Balancer, victim: Process) -> list[dict[str, Any]]:
    """Run all checks in one process of Node, do to the servers what they ask for, and return what they report."""
    node = await asyncio.create_subprocess_exec(
        str(npm.WITH_NODE), "node", "--experimental-websocket", "run.mjs", balancer.url,
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
