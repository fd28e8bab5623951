"""Runs that repeat another one: a fork from a recorded step, or a restart from the beginning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from runlane.definitions.schema.definition import Kind
from runlane.domain.concurrency import ConcurrencyLimit, limits_of_text
from runlane.domain.flow_keys import RunFlow, UniqueKey, label_of_key
from runlane.domain.ids import new_id
from runlane.domain.options import RunOptions
from runlane.domain.run import AGENT, MIN_PRIORITY, RunHook, Status
from runlane.domain.task import input_json
from runlane.domain.text import dump_json, load_json
from runlane.errors import InputTooLarge, NotFound, WrongState
from runlane.store.definitions import pins
from runlane.store.orchestration.fork import read_source, step_number
from runlane.store.queue.accept import NewRun
from runlane.store.queue.tags import tags_of
from runlane.store.sql.database import Database
from runlane.store.sql.statement import Row
from runlane.submit.tasks import new_run

# The changes of the state that a fork of forks contains.
MAX_EDIT_BYTES: Final = 4 * 1024 * 1024


async def forked_run(
    database: Database,
    run_id: str,
    path: str,
    state: Mapping[str, Any],
    idempotency_key: str | None = None,
    *,
    latest: bool = False,
) -> tuple[int, NewRun]:
    """Return a run that takes over the steps of this one before `path`, with these changes of its state.

    The first value is the number of that step. The fork is pinned to the same versions, or with `latest` to the current
    ones if the recorded steps fit them. Its plan names the run that it was made of.
    """
    source = await read_source(database, run_id)
    if source["plan"] is None:
        raise NotFound(f"Run {run_id} is not a run of an orchestration or agent, so it has no steps to fork from.")
    no = await step_number(database, run_id, path)
    plan: dict[str, Any] = load_json(source["plan"])
    # No parent waits for the fork.
    plan.pop("parent", None)
    # A fork of a fork applies the changes of both.
    before: list[dict[str, Any]] = plan["fork"]["edits"] if "fork" in plan else []
    earlier = [edit for edit in before if edit["no"] <= no]
    edit = {"no": no, "state": load_json(input_json(state, "the fork's state").decode())}
    edits = [*earlier, edit]
    # Each fork of a fork contains the changes of all before it.
    if len(dump_json(edits)) > MAX_EDIT_BYTES:
        raise InputTooLarge(
            f"The changes of the state, with those of the forks before, have more than {MAX_EDIT_BYTES} bytes as JSON. "
            "Store the data elsewhere and pass a reference."
        )
    plan["fork"] = {"run_id": run_id, "path": path, "edits": edits}
    if latest:
        from runlane.submit.repair import latest_pins

        plan["pins"] = await latest_pins(database, source, plan, before=no)
    fresh = new_run(
        source["target"],
        source["input"],
        RunOptions(idempotency_key=idempotency_key),
        lane=source["lane"],
        max_attempts=source["max_attempts"],
        max_losses=source["max_losses"],
        tenant=source["tenant"],
        trace=None,
        plan=dump_json(plan),
        mark=[plan["fork"], "latest"] if latest else plan["fork"],
    )
    return no, _with_letter(source, fresh._replace(fairness_key=source["fairness_key"], limits=_limits(source)))


async def restarted_run(database: Database, run_id: str, *, delay_us: int = 0, lowered_priority: int = 0) -> NewRun:
    """Return a run with the input and the options of this one, pinned to the current versions."""
    source = await read_source(database, run_id)
    if Status(source["status"]) is not Status.FAILED:
        raise WrongState(f"Run {run_id} is {source['status']}. Only a failed run can be restarted.")
    if source["is_turn"]:
        raise WrongState(
            f"Run {run_id} is a turn of a conversation, which cannot be started a second time. Resume it instead."
        )
    plan: dict[str, Any] = {} if source["plan"] is None else load_json(source["plan"])
    if plan:
        # No parent waits for the new run, and it begins at the first step.
        kept = {name: value for name, value in plan.items() if name not in ("parent", "fork")}
        plan = {**kept, "pins": await current_pins(database, source)}
    origin: dict[str, Any] = {} if source["origin"] is None else load_json(source["origin"])
    fresh = NewRun(
        id=new_id("run"),
        target=source["target"],
        lane=source["lane"],
        input=source["input"],
        priority=max(MIN_PRIORITY, source["priority"] - lowered_priority),
        max_attempts=source["max_attempts"],
        max_losses=source["max_losses"],
        delay_us=delay_us,
        hold=False,
        ordering_key=source["ordering_key"],
        on_dead=source["on_dead"],
        idempotency_key=None,
        fingerprint="",
        tenant=source["tenant"],
        plan=dump_json(plan) if plan else None,
        origin=dump_json({**origin, "restart_of": run_id}),
        fairness_key=source["fairness_key"],
        tags=tags_of(source["tags"]),
        flow=_unique_flow(source),
        limits=_limits(source),
    )
    return _with_letter(source, fresh)


def _limits(source: Row) -> tuple[ConcurrencyLimit, ...]:
    """Return the concurrency limits of the source: a run that repeats it counts under the same keys."""
    return limits_of_text(source["limits"])


def _unique_flow(source: Row) -> RunFlow | None:
    """Return the rule that a restart keeps, its unique key; the other rules were for the first start."""
    key: str | None = source["unique_key"]
    return None if key is None else RunFlow(unique=UniqueKey(key, label_of_key(key)))


async def current_pins(database: Database, source: Row) -> dict[str, str]:
    """Return the current versions of everything that a run of this target may use."""
    kind: Kind = "agent" if source["target"].startswith(AGENT) else "orchestration"
    return await pins(database, source["tenant"], source["target"].partition(":")[2], kind)


def _with_letter(source: Row, fresh: NewRun) -> NewRun:
    """Return the new run; the end of one that repeats a failed run settles its dead letter."""
    if Status(source["status"]) is not Status.FAILED:
        return fresh
    return fresh._replace(hooks=fresh.hooks | RunHook.DEAD_LETTER)
