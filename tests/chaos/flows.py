"""Orchestrations for the chaos tests: steps in short form, and a model that records the calls of every process.

The model's script is a file in the cluster's folder, so the count of its calls outlives the processes that made them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.domain.run import Status
from tests.chaos.cluster import Cluster, Process, Row, eventually

SCRIPT = "script.json"
MODEL = f"scripted:{SCRIPT}"
_CALLS = "calls.jsonl"
# The scripted model writes short answers in pieces of this size.
_PIECE_CHARS = 8
Steps = dict[str, Any]


def ask(name: str, **more: Any) -> Steps:
    """Return a step that calls the model; the call is counted under the step's id."""
    return {
        "id": name, "type": "llm", "model": MODEL, "prompt_template": f"<{name}>", "output_key": name, **more,
    }  # fmt: skip


def say(name: str, text: str = "", **more: Any) -> Steps:
    return {"id": name, "type": "print", "print_content": text or name, "output_key": name, **more}


def human(name: str, **more: Any) -> Steps:
    field = {"name": "decision", "type": "select", "options": "approve,reject", "required": True}
    return {"id": name, "type": "human", "human_prompt": "Go on?", "human_fields": [field], "output_key": name, **more}


def in_a_row(*steps: Steps) -> list[Steps]:
    """Return the steps, each leading to the next one unless it has a `next_step_id`."""
    following = [step["id"] for step in steps[1:]]
    return [{"next_step_id": after, **step} for step, after in zip(steps, [*following, None], strict=True)]


def fan(*branches: list[Steps], after: Steps) -> list[Steps]:
    """Return branches that run at the same time and meet at `after`."""
    ways = [[step["id"] for step in branch] for branch in branches]
    split = {"id": "split", "type": "parallel", "parallel_branches": ways, "next_step_id": after["id"]}
    return [split, *(step for branch in branches for step in in_a_row(*branch)), after]


def slowly(text: str, seconds: float) -> dict[str, Any]:
    """Return an answer that takes `seconds`, during which its call is in flight and holds a worker slot."""
    pieces = -(-len(text) // _PIECE_CHARS)
    return {"say": text, "piece_delay_seconds": seconds / pieces}


class Flows:
    """The orchestrations of a cluster, whose processes find the script in its folder."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._folder = cluster.folder
        cluster.environment["RUNLANE_DEFINITIONS_DIR"] = str(cluster.folder)
        self.script()

    def script(self, delays: dict[str, float] | None = None, answers: Sequence[Any] = ("said",)) -> None:
        """Set the answers of the model: slow ones for the steps in `delays`, one of `answers` for the others."""
        entries = [{"when": f"<{name}>", **slowly(f"said {name}", seconds)} for name, seconds in (delays or {}).items()]
        script = {"calls": _CALLS, "answers": [*entries, *answers]}
        (self._folder / SCRIPT).write_text(json.dumps(script))

    async def sync(self, *orchestrations: dict[str, Any]) -> None:
        """Store these definitions and remove all others."""
        loaded = parse_bodies({"orchestrations": list(orchestrations)})
        database = await self.cluster.app.database()
        await sync_definitions(database, "default", loaded, actor="test", remove_missing=True)

    async def start(self, steps: list[Steps], **fields: Any) -> str:
        """Store an orchestration of these steps and start a run of it."""
        await self.sync({"id": "flow", "steps": steps, **fields})
        return (await self.cluster.app.orchestrate("flow", "m")).run_id

    def calls(self) -> list[Row]:
        """Return every call of the model so far, with its step and its process."""
        path = self._folder / _CALLS
        lines = path.read_text().splitlines() if path.exists() else []
        calls = [json.loads(line) for line in lines]
        return [{"step": _step(call["prompt"]), "pid": call["pid"], "key": call["key"]} for call in calls]

    def counts(self) -> Counter[str]:
        """Return how often each step has called the model."""
        return Counter(call["step"] for call in self.calls())

    async def called(self, step: str, times: int = 1, within_seconds: float = 60) -> Row:
        """Wait for the n-th call of a step and return it."""

        async def made() -> Row | None:
            calls = [call for call in self.calls() if call["step"] == step]
            return calls[times - 1] if len(calls) >= times else None

        return await eventually(made, f"call {times} of {step}", within_seconds, every=0.005)

    async def has(self, run_id: str, *statuses: Status) -> None:
        """Wait until the run has one of these statuses."""

        async def reached() -> bool:
            return (await self.cluster.app.get(run_id)).status in statuses

        await eventually(reached, f"run {run_id} {' or '.join(statuses)}")

    async def done(self, run_id: str) -> list[str]:
        """Return the ids of the steps that are recorded as done, in their order."""
        rows = await self.cluster.rows(
            f"select step_id from run_steps where run_id = '{run_id}' and outcome = 'done' order by no"
        )
        return [row["step_id"] for row in rows]

    async def recorded(self, run_id: str, *steps: str) -> None:
        """Wait until these steps are recorded as done."""

        async def stored() -> bool:
            return set(await self.done(run_id)) >= set(steps)

        await eventually(stored, f"records of {', '.join(steps)}")

    async def paths(self, run_id: str, kind: str) -> list[str]:
        """Return the paths of the steps with an event of this kind, in the order of the stream."""
        rows = await self.cluster.rows(
            f"select data from run_events where run_id = '{run_id}' and type = '{kind}' order by seq"
        )
        return [json.loads(row["data"]).get("path", "") for row in rows]

    async def check_once(self, run_id: str) -> None:
        """Check that each end of a step is emitted once, and that the emitted ends are the recorded ones.

        An inner orchestration has no record of its own: its steps have, with a `>` behind its path.
        """
        completed = await self.paths(run_id, "step_complete")
        rows = await self.cluster.rows(
            f"select path from run_steps where run_id = '{run_id}' and outcome = 'done' and kind not like '%condition' "
            "and kind not like '%items'"
        )
        recorded = [row["path"] for row in rows]
        inner = {path[: found.start()] for path in recorded for found in re.finditer("/>", path)}
        assert sorted(completed) == sorted([*recorded, *inner])
        assert set(completed) <= set(await self.paths(run_id, "step_start"))


def _step(prompt: str) -> str:
    """Return the id between the brackets, or the whole prompt if it has none."""
    inside = prompt.partition("<")[2].partition(">")[0]
    return inside or prompt


def worker_of(cluster: Cluster, pid: int) -> Process:
    """Return the process that has this id."""
    return next(process for process in cluster.processes if process.pid == pid)
