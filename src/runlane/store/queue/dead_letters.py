"""Dead letters: written, and moved from state to state, by the transactions that end and revive their runs.

A run that fails for good gets a letter, or its letter is opened again. A run that repeats a failed one has the hook
DEAD_LETTER, so that its end settles the letter; the end of every other run does not read this table.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    FromClause,
    Integer,
    SmallInteger,
    Text,
    bindparam,
    func,
    null,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.dead_letter import RETRYABLE, LetterState
from runlane.domain.fingerprint import FINGERPRINT_VERSION, code_of, fingerprint
from runlane.domain.run import RunHook, Status
from runlane.domain.text import clean_text, dump_json, load_json
from runlane.observability import metrics
from runlane.store.access.audit import NewAudit, append_audits
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_us, upsert
from runlane.store.sql.schema import dead_letters, run_attempts, run_inputs, run_results, run_steps, runs
from runlane.store.sql.statement import Row, Statement

MAX_MESSAGE: Final = 500
_MAX_CODE: Final = 200
# The author of changes that follow from the end of a run.
_AUTHOR: Final = "runlane"


def _failed_step(column: Any) -> Any:
    return (
        select(column)
        .where(run_steps.c.run_id == runs.c.id, run_steps.c.outcome == lit("failed"))
        .order_by(run_steps.c.no.desc())
        .limit(lit(1))
        .scalar_subquery()
    )


_DEAD = Statement(
    "read_failed_runs",
    select(
        runs.c.id,
        runs.c.target,
        runs.c.lane,
        runs.c.tenant,
        run_inputs.c.input,
        run_inputs.c.plan,
        run_results.c.error,
        _failed_step(run_steps.c.path).label("path"),
        _failed_step(run_steps.c.step_id).label("step_id"),
    )
    .select_from(
        runs.join(run_inputs, run_inputs.c.run_id == runs.c.id).join(run_results, run_results.c.run_id == runs.c.id)
    )
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id),
    purpose="Read the runs that become dead letters.",
)
_ATTEMPTS = Statement(
    "read_attempts_of_runs",
    select(run_attempts)
    .where(member(run_attempts.c.run_id, "ids"))
    .order_by(run_attempts.c.run_id, run_attempts.c.attempt),
    purpose="Read the attempts of the runs that become dead letters.",
)
_CONTENT = (
    "lane", "input", "error", "attempts", "code", "message", "fingerprint", "fingerprint_version", "last_step",
    "version",
)  # fmt: skip


def _bury(batch: FromClause) -> Executable:
    b = batch.c
    written = ("run_id", "tenant", "target", *_CONTENT, "times_died")
    statement = upsert(dead_letters).from_select(
        [*written, "first_failed_at", "died_at"],
        select(*(b[name] for name in written), func.coalesce(b.first_failed_at, now_us()), now_us())
        .select_from(batch)
        .where(true()),
    )
    again = statement.excluded
    return statement.on_conflict_do_update(
        index_elements=["run_id"],
        set_={
            **{name: again[name] for name in _CONTENT},
            "died_at": again.died_at,
            "times_died": dead_letters.c.times_died + lit(1),
            "state": lit(LetterState.OPEN),
            "handled_by": null(),
            "handled_at": null(),
            "note": null(),
            "retry_run_id": null(),
        },
    ).returning(dead_letters.c.run_id, dead_letters.c.tenant, dead_letters.c.times_died)


_ADD = Statement(
    "add_dead_letters",
    _bury,
    {
        "run_id": Text(),
        "tenant": Text(),
        "target": Text(),
        "lane": Text(),
        "input": Text(),
        "error": Text(),
        "attempts": Text(),
        "code": Text(),
        "message": Text(),
        "fingerprint": Text(),
        "fingerprint_version": SmallInteger(),
        "last_step": Text(),
        "version": Text(),
        "times_died": Integer(),
        "first_failed_at": BigInteger(),
    },
    purpose="Add dead letters, or open those of runs that have failed again.",
)
_REPEATED = Statement(
    "letters_of_repeated_runs",
    select(dead_letters.c.retry_run_id, dead_letters.c.times_died, dead_letters.c.first_failed_at).where(
        member(dead_letters.c.retry_run_id, "ids"), dead_letters.c.state == lit(LetterState.RETRYING)
    ),
    purpose="Read the dead letters that failed runs were to repeat.",
)


def _settle(batch: FromClause) -> Executable:
    b = batch.c
    replaced = dead_letters.c.retry_run_id == b.run_id
    return (
        update(dead_letters)
        .where(
            or_(dead_letters.c.run_id == b.run_id, replaced),
            dead_letters.c.state == lit(LetterState.RETRYING),
        )
        .values(state=b.state, note=func.coalesce(b.note, dead_letters.c.note), handled_at=now_us())
        .returning(dead_letters.c.run_id, dead_letters.c.tenant, dead_letters.c.state)
    )


_SETTLE = Statement(
    "settle_dead_letters",
    _settle,
    {"run_id": Text(), "state": Text(), "note": Text()},
    purpose="Settle the dead letters of runs whose repetition has ended.",
)
_retry: dict[str, Any] = {
    "state": lit(LetterState.RETRYING),
    "handled_by": bindparam("actor"),
    "handled_at": now_us(),
}
_may_be_retried = dead_letters.c.state.in_([lit(state) for state in RETRYABLE])
_REVIVED = Statement(
    "retry_dead_letter",
    update(dead_letters)
    .where(
        dead_letters.c.run_id == bindparam("run_id"),
        or_(~bindparam("only_retryable", type_=Boolean()), _may_be_retried),
    )
    .values(**_retry, retry_run_id=None)
    .returning(dead_letters.c.run_id),
    purpose="Note that the run of a dead letter is executed again.",
)
_REPLACED = Statement(
    "replace_dead_letter",
    update(dead_letters)
    .where(dead_letters.c.run_id == bindparam("run_id"), _may_be_retried)
    .values(**_retry, retry_run_id=bindparam("new_run_id"))
    .returning(dead_letters.c.run_id),
    purpose="Note that another run repeats the run of a dead letter.",
)


async def settle_letters(session: Session, ended: Sequence[Row]) -> None:
    """Add or settle the dead letters of runs that ended in this transaction.

    A row has the columns id, status, tenant and hooks.
    """
    dead = [row["id"] for row in ended if row["status"] == Status.FAILED]
    repeating = [row for row in ended if row["hooks"] & RunHook.DEAD_LETTER]
    before: dict[str, Row] = {}
    if repeating and dead:
        found = await session.fetch(_REPEATED, ids=session.texts([row["id"] for row in repeating]))
        before = {row["retry_run_id"]: row for row in found}
    if dead:
        await _add(session, dead, before)
    if repeating:
        rows = await session.fetch(_SETTLE, [_settled(row) for row in repeating])
        await append_audits(
            session,
            [
                NewAudit(_AUTHOR, row["tenant"], f"dead_letter.{row['state']}", row["run_id"], new=_state(row["state"]))
                for row in rows
            ],
        )


async def letter_revived(session: Session, run_id: str, actor: str, *, only_retryable: bool = False) -> bool:
    """Note that a failed run was made ready again; with `only_retryable`, return False if its letter was handled."""
    return bool(await session.fetch(_REVIVED, run_id=run_id, actor=actor, only_retryable=only_retryable))


async def letter_replaced(session: Session, run_id: str, new_run_id: str, actor: str) -> bool:
    """Note that a new run repeats a failed one; return False if the run has no letter that may be retried."""
    return bool(await session.fetch(_REPLACED, run_id=run_id, new_run_id=new_run_id, actor=actor))


def _settled(row: Row) -> tuple[str, str, str | None]:
    match Status(row["status"]):
        case Status.COMPLETED:
            return row["id"], LetterState.RESOLVED, None
        case Status.FAILED:
            # The run has an open letter of its own, which replaces the letters of the runs that it was to repeat.
            return row["id"], LetterState.DISCARDED, f"Replaced by {row['id']}, which has failed as well."
        case _:
            return row["id"], LetterState.DISCARDED, f"Run {row['id']} was cancelled."


async def _add(session: Session, run_ids: Collection[str], before: dict[str, Row]) -> None:
    ids = session.texts(sorted(run_ids))
    attempts: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in await session.fetch(_ATTEMPTS, ids=ids):
        attempts[row["run_id"]].append(attempt_value(row))
    rows = await session.fetch(_DEAD, ids=ids)
    for row in rows:
        metrics.DEAD_LETTERS.add(row["target"], clean_text(code_of(load_json(row["error"])), _MAX_CODE))
    added = await session.fetch(_ADD, [_letter(row, attempts[row["id"]], before.get(row["id"])) for row in rows])
    await append_audits(
        session,
        [
            NewAudit(
                _AUTHOR,
                row["tenant"],
                "dead_letter.open",
                row["run_id"],
                new={**_state(LetterState.OPEN), "times_died": row["times_died"]},
            )
            for row in added
            if row["times_died"] > 1
        ],
    )


def _letter(row: Row, attempts: list[dict[str, Any]], before: Row | None) -> tuple[Any, ...]:
    error: dict[str, Any] = load_json(row["error"])
    return (
        row["id"],
        row["tenant"],
        row["target"],
        row["lane"],
        row["input"],
        row["error"],
        dump_json(attempts),
        clean_text(code_of(error), _MAX_CODE),
        clean_text(str(error.get("message") or ""), MAX_MESSAGE),
        fingerprint(row["target"], row["step_id"] or error.get("step"), error),
        FINGERPRINT_VERSION,
        row["path"],
        None if row["plan"] is None else load_json(row["plan"]).get("pins", {}).get(row["target"]),
        1 if before is None else before["times_died"] + 1,
        None if before is None else before["first_failed_at"],
    )


def _state(state: str) -> dict[str, str]:
    return {"state": str(state)}


def attempt_value(row: Row) -> dict[str, Any]:
    """Return an attempt as JSON."""
    return {
        "attempt": row["attempt"],
        "worker_id": row["worker_id"],
        "started_at_us": row["started_at"],
        "ended_at_us": row["ended_at"],
        "outcome": row["outcome"],
        "error": load_json(row["error"]) if row["error"] else None,
    }
