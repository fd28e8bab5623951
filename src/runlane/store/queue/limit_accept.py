"""Accept runs that have concurrency limits and no keys: few statements for any number of runs.

This is the common case of limits. Everything else, and every refusal, is left to `accept`. On Postgres, runs with the
limit of one key each have a statement that counts as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runlane.domain.run import Accepted
from runlane.store.queue.accept import NewRun, accepted_of, plain_columns
from runlane.store.queue.accept_counted import accept_counted, counted_runs
from runlane.store.queue.accept_statements import ACCEPT_LIMITED
from runlane.store.queue.limit_gate import LimitGate, accept_locks, open_gate, store_gate
from runlane.store.sql.database import Database, Session


class _NotStored(Exception):
    """Some runs need another statement; the transaction is rolled back."""


async def accept_limited(
    database: Database, requests: Sequence[NewRun], keep: Callable[[Mapping[str, Accepted]], None]
) -> Mapping[str, Accepted] | None:
    """Store the runs; return the verdicts by id. `keep` gets the verdicts before the commit, which may be in doubt.

    Return None when a limit refuses a run, a tenant has limits or shares lanes, or some runs exist; then use `accept`.
    """
    counted = counted_runs(requests) if database.dialect == "postgresql" else None

    async def work(session: Session) -> Mapping[str, Accepted]:
        if counted is None:
            stored = await _accept_by_gate(session, requests)
        else:
            stored = await accept_counted(session, requests, counted)
        if stored is None:
            raise _NotStored
        keep(stored)
        return stored

    try:
        return await database.transact(work)
    except (_NotStored, *database.duplicates):
        return None


async def _accept_by_gate(session: Session, requests: Sequence[NewRun]) -> Mapping[str, Accepted] | None:
    await session.lock(exclusive=accept_locks(requests))
    gate = await open_gate(session, [requests], holds_locks=True)
    if gate.refused:
        return None
    rows = await session.write(ACCEPT_LIMITED, [_member(run, gate) for run in requests])
    if len(rows) < len(requests):
        return None
    stored = accepted_of(rows)
    await store_gate(session, gate, stored, first_is_stored=True)
    return stored


def _member(run: NewRun, gate: LimitGate) -> tuple[object, ...]:
    limits = gate.limits.get(run.id)
    if limits is None:
        return (*plain_columns(run), None, None, False)
    return (*plain_columns(run), gate.limits_text(run.id), limits[0].key, run.id in gate.waits)
