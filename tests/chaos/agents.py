"""Agents for the chaos tests: a provider with known prices in another process, definitions, and the command line.

Every call costs PRICE_USD, so the spending of a run follows from the calls that the provider counted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.run import Status
from runlane.testing.fake_provider import FakeAnswer, FakeProvider
from tests import forking
from tests.chaos.cluster import ROOT, RUNLANE, Cluster, Row, eventually

MODEL = "acme:big"
# The calls count against the limits of this credential.
CREDENTIAL = MODEL.partition(":")[0]
PRICE_USD = 0.01
TOKENS_IN, TOKENS_OUT = 7, 10
KEY = "sk-canary-key-of-acme-7391"
PROMPT = "canary-system-prompt-5512"


def priced(text: str = "Done.", **more: Any) -> FakeAnswer:
    """Return an answer that costs PRICE_USD."""
    return FakeAnswer(text=text, tokens_in=TOKENS_IN, tokens_out=TOKENS_OUT, **more)


def environment(provider: FakeProvider, **more: str) -> dict[str, str]:
    """Return the variables with which workers call this provider."""
    price = {"input_usd_per_million": 0, "output_usd_per_million": PRICE_USD / TOKENS_OUT * 1_000_000}
    open_ = {"base_url": provider.openai_url, "prices": {"big": price}}
    return {
        "RUNLANE_PROVIDERS": json.dumps({"acme": open_ | {"secret": "ACME_KEY"}, "open": open_}), "ACME_KEY": KEY,
        **forking.PROVIDERS, **more,
    }  # fmt: skip


def fan_out(ways: int = 20) -> list[dict[str, Any]]:
    """Return steps that run `ways` agents at once."""
    step = {
        "id": "ask", "type": "agent", "agent_id": "helper", "prompt_template": "Task {state.item}", "output_key": "ask",
    }  # fmt: skip
    loop = {
        "id": "each", "type": "loop", "for_each": f"list(range({ways}))", "loop_step_ids": ["ask"],
        "max_concurrency": ways, "output_key": "each",
    }  # fmt: skip
    return [loop, step]


async def define(
    cluster: Cluster,
    steps: list[dict[str, Any]],
    *,
    agent: dict[str, Any] | None = None,
    agents: Iterable[dict[str, Any]] = (),
    tools: Iterable[dict[str, Any]] = (),
    tenant: str = "default",
    **fields: Any,
) -> None:
    """Store an orchestration called `flow` and an agent called `helper`."""
    helper = {"id": "helper", "model": MODEL, "system_prompt": f"You are the {PROMPT}.", **(agent or {})}
    bodies = {
        "orchestrations": [{"id": "flow", "steps": steps, "max_losses": 100, **fields}],
        "agents": [helper, *agents],
        "tools": list(tools),
    }
    await sync_definitions(await cluster.app.database(), tenant, parse_bodies(bodies), actor="test")


async def start(cluster: Cluster, count: int = 1) -> list[str]:
    """Start `count` runs of the flow and return their ids."""
    return [(await cluster.app.orchestrate("flow", "go")).run_id for _ in range(count)]


async def has_status(cluster: Cluster, run_id: str, status: Status) -> Row:
    """Wait until the run has the status and return its row."""

    async def look() -> Row | None:
        (row,) = await cluster.rows(f"select * from runs where id = '{run_id}'")
        assert row["ended_at"] is None or row["status"] == status, row
        return row if row["status"] == status else None

    return await eventually(look, f"{status} of {run_id}")


async def cli_json(cluster: Cluster, *command: str) -> Any:
    """Run a command with --json and return its output."""
    done = await asyncio.to_thread(
        forking.run,
        [*RUNLANE, *command, "--json"],
        cwd=ROOT,
        env=cluster.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def answers_given(provider: FakeProvider) -> int:
    """Return how many answers the provider was paid for."""
    return int(provider.stats()["outcomes"].get("200", 0))
