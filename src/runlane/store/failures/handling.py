"""The handling of dead letters by operators: acknowledge, assign, discard. Retries are changes of runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Text, bindparam, func, select, update

from runlane.domain.dead_letter import (
    ACKNOWLEDGEABLE,
    DISCARDABLE,
    MAX_ASSIGNEE,
    MAX_NOTE,
    DeadLetterSummary,
    LetterState,
)
from runlane.domain.text import check_text
from runlane.errors import RunNotFound, WrongState
from runlane.store.access.audit import append_audit
from runlane.store.failures.letters import LetterNotFound, summary
from runlane.store.queue.run_changes import RunChange, lock_key_of, release_in
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, now_us
from runlane.store.sql.schema import dead_letters
from runlane.store.sql.statement import Row, Statement

_by_id = dead_letters.c.run_id == bindparam("run_id")
_LOCK = Statement(
    "lock_dead_letter",
    select(dead_letters).where(_by_id).with_for_update(),
    purpose="Lock a dead letter while it is handled.",
)
_HANDLE = Statement(
    "handle_dead_letter",
    update(dead_letters)
    .where(_by_id, member(dead_letters.c.state, "states"))
    .values(
        state=bindparam("state"),
        handled_by=bindparam("actor"),
        handled_at=now_us(),
        note=func.coalesce(bindparam("note", type_=Text()), dead_letters.c.note),
    )
    .returning(dead_letters),
    purpose="Acknowledge or discard a dead letter.",
)
_ASSIGN = Statement(
    "assign_dead_letter",
    update(dead_letters).where(_by_id).values(assigned_to=bindparam("assignee", type_=Text())).returning(dead_letters),
    purpose="Assign a dead letter to a person, or to none.",
)


async def acknowledge(
    database: Database, run_id: str, *, note: str | None = None, actor: str = "local"
) -> DeadLetterSummary:
    """Acknowledge an open letter: it is still listed but no longer counted."""
    row = await database.transact(lambda session: acknowledge_in(session, run_id, note=check_note(note), actor=actor))
    return summary(row)


async def acknowledge_in(session: Session, run_id: str, *, note: str | None, actor: str) -> Row:
    """Acknowledge an open letter."""
    return await _handle(session, run_id, ACKNOWLEDGEABLE, LetterState.ACKNOWLEDGED, note, actor)


async def discard(
    database: Database, run_id: str, *, note: str | None = None, release: bool = False, actor: str = "local"
) -> tuple[DeadLetterSummary, RunChange | None]:
    """Discard a letter; its run stays failed. With `release`, the runs behind its ordering key are unblocked."""

    async def work(session: Session) -> tuple[DeadLetterSummary, RunChange | None]:
        row, change = await discard_in(session, run_id, note=check_note(note), release=release, actor=actor)
        return summary(row), change

    return await database.transact(work)


async def discard_in(
    session: Session, run_id: str, *, note: str | None, release: bool, actor: str
) -> tuple[Row, RunChange | None]:
    """Discard a letter. The lock of the ordering key is taken before any row."""
    change = None
    if release:
        try:
            await lock_key_of(session, run_id)
            change = await release_in(session, run_id)
        except RunNotFound:
            change = None  # retention has deleted the run
    return await _handle(session, run_id, DISCARDABLE, LetterState.DISCARDED, note, actor), change


async def assign(database: Database, run_id: str, assignee: str | None, *, actor: str = "local") -> DeadLetterSummary:
    """Assign a letter to a person; None removes the assignment."""
    checked = None if assignee is None else check_text(assignee, "The name", MAX_ASSIGNEE)
    return summary(await database.transact(lambda session: assign_in(session, run_id, checked, actor=actor)))


async def assign_in(session: Session, run_id: str, assignee: str | None, *, actor: str) -> Row:
    """Assign a letter to a person."""
    before = await _locked(session, run_id)
    rows = await session.fetch(_ASSIGN, run_id=run_id, assignee=assignee)
    old, new = {"assigned_to": before["assigned_to"]}, {"assigned_to": assignee}
    await _audit(session, before, "assign", old, new, actor)
    return rows[0]


def check_note(note: str | None) -> str | None:
    """Return the note if it can be stored."""
    return None if note is None else check_text(note, "The note", MAX_NOTE)


async def _handle(
    session: Session, run_id: str, states: Collection[LetterState], to: LetterState, note: str | None, actor: str
) -> Row:
    before = await _locked(session, run_id)
    allowed = session.texts([state.value for state in states])
    rows = await session.fetch(_HANDLE, run_id=run_id, states=allowed, state=to.value, note=note, actor=actor)
    if not rows:
        raise wrong_letter_state(before, to, states)
    new = {"state": to.value} if note is None else {"state": to.value, "note": note}
    await _audit(session, before, to.value, {"state": before["state"]}, new, actor)
    return rows[0]


async def _locked(session: Session, run_id: str) -> Row:
    rows = await session.fetch(_LOCK, run_id=run_id)
    if not rows:
        raise LetterNotFound(run_id)
    return rows[0]


def wrong_letter_state(row: Row, to: LetterState, states: Collection[LetterState]) -> WrongState:
    """Return the error for a letter whose state does not allow a change."""
    allowed = " or ".join(states)
    return WrongState(
        f"The dead letter of run {row['run_id']} is {row['state']}. Only one that is {allowed} can become {to.value}."
    )


async def _audit(session: Session, row: Row, verb: str, old: dict[str, Any], new: dict[str, Any], actor: str) -> None:
    await append_audit(
        session,
        actor=actor,
        tenant=row["tenant"],
        action=f"dead_letter.{verb}",
        subject=row["run_id"],
        old=old,
        new=new,
    )
