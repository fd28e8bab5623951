"""Accept runs that have concurrency limits and no keys: three statements for any number of runs.

This is the common case of limits. Everything else, and every refusal, is left to `accept`.
"""

from __future__ import annotations

from collections.abc import Sequence

from runlane.domain.run import Accepted
from runlane.store.queue.accept import NewRun, accepted_of, plain_columns
from runlane.store.queue.accept_statements import ACCEPT_LIMITED
from runlane.store.queue.limit_gate import LimitGate, accept_locks, open_gate, store_gate
from runlane.store.sql.database import Database, Session


class _NotStored(Exception):
    """Some runs need another statement; the transaction is rolled back."""


async def accept_limited(database: Database, requests: Sequence[NewRun]) -> dict[str, Accepted] | None:
    """Store runs that stand apart; return the verdicts by id.

    Return None when a limit refuses a run, a tenant has limits or shares lanes, or some runs exist; then use `accept`.
    """

    async def work(session: Session) -> dict[str, Accepted]:
        await session.lock(exclusive=accept_locks(requests))
        gate = await open_gate(session, [requests], holds_locks=True)
        if gate.refused:
            raise _NotStored
        rows = await session.write(ACCEPT_LIMITED, [_member(run, gate) for run in requests])
        if len(rows) < len(requests):
            raise _NotStored
        stored = accepted_of(rows)
        await store_gate(session, gate, stored, first_is_stored=True)
        return stored

    try:
        return await database.transact(work)
    except (_NotStored, *database.duplicates):
        return None


def _member(run: NewRun, gate: LimitGate) -> tuple[object, ...]:
    limits = gate.limits.get(run.id)
    if limits is None:
        return (*plain_columns(run), None, None, False)
    return (*plain_columns(run), gate.limits_text(run.id), limits[0].key, run.id in gate.waits)
