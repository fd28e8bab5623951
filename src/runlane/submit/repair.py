"""Repair in place: a failed run, or a fork, continues on the current versions of its definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runlane.domain.run import Status
from runlane.domain.text import dump_json, load_json
from runlane.errors import WrongState
from runlane.orchestration.repair import find_misfit
from runlane.store.definitions import load_pinned
from runlane.store.orchestration.fork import read_source
from runlane.store.orchestration.steps import StepOutcome, read_all_records
from runlane.store.queue.revival import AS_BEFORE, Revival, retry_run
from runlane.store.queue.run_changes import RunChange
from runlane.store.sql.database import Database
from runlane.store.sql.statement import Row
from runlane.submit.repeats import current_pins


class StepsDoNotFit(WrongState):
    """The recorded steps of a run do not fit the current versions."""


async def retry(database: Database, run_id: str, *, latest: bool = False, actor: str = "local") -> RunChange:
    """Retry a failed run, on its own versions or on the current ones."""
    how = AS_BEFORE
    if latest:
        plan, attempt = await latest_plan(database, run_id)
        how = Revival(plan=plan, attempt=attempt)
    return await retry_run(database, run_id, how, actor=actor)


async def latest_plan(database: Database, run_id: str) -> tuple[str | None, int]:
    """Return the plan of a failed run on the current versions, and the attempt that it was made for.

    None for a run of a task, which always executes the current code of its worker.
    """
    source = await read_source(database, run_id)
    if Status(source["status"]) is not Status.FAILED:
        raise WrongState(f"Run {run_id} is {source['status']}. Only a failed run can be retried.")
    if source["plan"] is None:
        return None, source["attempt"]
    plan: dict[str, Any] = load_json(source["plan"])
    plan["pins"] = await latest_pins(database, source, plan)
    return dump_json(plan), source["attempt"]


async def latest_pins(
    database: Database, source: Row, plan: Mapping[str, Any], *, before: int | None = None
) -> dict[str, str]:
    """Return the current versions for a run whose recorded steps fit them; of a fork, those before a number."""
    tenant, run_id = source["tenant"], source["id"]
    pinned = await current_pins(database, source)
    old, new = await load_pinned(database, tenant, plan["pins"]), await load_pinned(database, tenant, pinned)
    records = await read_all_records(database, run_id)
    if before is not None:
        # Only the records that the fork copies are compared.
        records = [
            record
            for record in records
            if record.no is not None and record.no < before and record.outcome is not StepOutcome.FAILED
        ]
    target = source["target"]
    misfit = find_misfit(target, load_json(source["input"]), plan, old, new, records)
    if misfit is not None:
        raise StepsDoNotFit(
            f'The recorded step "{misfit.path}" of run {run_id} does not fit the current version of {target}. '
            f"{misfit.reason} Retry the run on its own version, fork it at an earlier step, or restart it."
        )
    return pinned
