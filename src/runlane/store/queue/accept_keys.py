"""Idempotency keys of new runs, decided by the primary key of their table in the transaction that stores the runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, FromClause, Text, delete, select, true
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql.base import Executable

from runlane.domain.run import Accepted, Status
from runlane.domain.tenant import bare_key
from runlane.errors import IdempotencyConflict, Unavailable
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import MARK, member, now_us
from runlane.store.sql.schema import idempotency_keys, runs
from runlane.store.sql.statement import Statement

if TYPE_CHECKING:
    from runlane.store.queue.accept import NewRun

KeyVerdict = Accepted | IdempotencyConflict


def _claim_keys(batch: FromClause) -> Executable:
    # Both dialects spell ON CONFLICT the same. A key whose window has ended belongs to the new run from now on.
    b = batch.c
    new = postgresql.insert(idempotency_keys).from_select(
        ["key", "fingerprint", "run_id", "created_at", "expires_at"],
        select(b.key, b.fingerprint, b.run_id, now_us(), now_us() + b.window_us).select_from(batch).where(true()),
    )
    names = ("fingerprint", "run_id", "created_at", "expires_at")
    return new.on_conflict_do_update(
        index_elements=["key"],
        set_={**{name: new.excluded[name] for name in names}, "start_id": None},
        where=idempotency_keys.c.expires_at <= now_us(),
    ).returning(idempotency_keys.c.key, idempotency_keys.c.run_id, MARK)


_CLAIM_KEYS = Statement(
    "claim_idempotency_keys",
    _claim_keys,
    {"key": Text(), "fingerprint": Text(), "run_id": Text(), "window_us": BigInteger()},
    purpose="Reserve idempotency keys for new runs.",
)
_READ_KEYS = Statement(
    "read_idempotency_keys",
    select(idempotency_keys, runs.c.status, runs.c.lane)
    .select_from(idempotency_keys.join(runs, runs.c.id == idempotency_keys.c.run_id))
    .where(member(idempotency_keys.c.key, "keys")),
    purpose="Read the runs stored under idempotency keys.",
)
_FREE_KEYS = Statement(
    "free_idempotency_keys",
    delete(idempotency_keys).where(member(idempotency_keys.c.run_id, "ids")),
    purpose="Free the idempotency keys of refused runs.",
)


async def replays(session: Session, requests: Sequence[NewRun]) -> tuple[dict[str, KeyVerdict], dict[str, str]]:
    """Return the verdicts on requests whose idempotency key belongs to an earlier run, by the id of the new run.

    Also return the requests that repeat another request of this batch, with its id, because they get its verdict.
    """
    verdicts: dict[str, KeyVerdict] = {}
    twins: dict[str, str] = {}
    keyed = {run.id: run for run in requests if run.idempotency_key is not None}
    if not keyed:
        return verdicts, twins
    first_of: dict[str | None, NewRun] = {}
    for run in keyed.values():
        first_of.setdefault(run.idempotency_key, run)
    # Sorted, so that two processes with the same keys wait for each other instead of deadlocking. Each key occurs once,
    # because a statement may change a row only once.
    members = sorted((run.idempotency_key, run.fingerprint, run.id, _window_us(run)) for run in first_of.values())
    won = {row["run_id"] for row in await session.fetch(_CLAIM_KEYS, members)}
    lost = [run for run in keyed.values() if run.id not in won]
    if not lost:
        return verdicts, twins
    keys = sorted({run.idempotency_key for run in lost if run.idempotency_key is not None})
    known = {row["key"]: row for row in await session.fetch(_READ_KEYS, keys=session.texts(keys))}
    first_of = {key: run for key, run in first_of.items() if run.id in won}
    for run in lost:
        key = run.idempotency_key or ""
        row = known.get(key)
        if row is not None:
            owner, same = row["run_id"], row["fingerprint"] == run.fingerprint
            status, start_id = Status(row["status"]), row["start_id"]
            verdicts[run.id] = Accepted(owner, status, row["lane"], replayed=True, start_id=start_id)
        else:
            first = first_of.get(key)
            if first is None:
                raise Unavailable("The run of an idempotency key was deleted at this moment; the next try stores it.")
            owner, same = first.id, first.fingerprint == run.fingerprint
            twins[run.id] = owner
        if not same:
            twins.pop(run.id, None)
            verdicts[run.id] = IdempotencyConflict(bare_key(key), owner)
    return verdicts, twins


def _window_us(run: NewRun) -> int | None:
    return None if run.flow is None else run.flow.idempotency_us


async def free_keys(session: Session, run_ids: Collection[str]) -> None:
    """Free the keys of rejected runs, so that the next request with one of them counts as the first."""
    await session.fetch(_FREE_KEYS, ids=session.texts(sorted(run_ids)))
