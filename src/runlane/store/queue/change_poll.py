"""Find changes in a database without a bus: SQLite, which several processes may have open.

Each poll compares the newest, the running and the newly ended runs with those of the previous poll, and reads the new
entries of the audit log. It reads a few hundred rows, however many runs exist. Older runs that do not change are not
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, bindparam, func, select

from runlane.domain.hints import Hint, Topic
from runlane.domain.run import Status
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import audit, runs, workers
from runlane.store.sql.statement import Row, Statement

_LOOKED_AT: Final = 200
_limit = bindparam("limit", type_=Integer())
_signature = (runs.c.id, runs.c.status, runs.c.last_seq)
_NEWEST = Statement(
    "newest_run_signatures",
    select(*_signature).order_by(runs.c.id.desc()).limit(_limit),
    purpose="Read the state of the newest runs, to compare it with an earlier look.",
)
_RUNNING = Statement(
    "running_run_signatures",
    select(*_signature).where(runs.c.status == lit(Status.RUNNING)).limit(_limit),
    purpose="Read the state of running runs, to compare it with an earlier look.",
)
_ENDED = Statement(
    "newly_ended_runs",
    select(*_signature, runs.c.ended_at)
    .where(runs.c.ended_at.is_not(None), runs.c.ended_at > bindparam("after", type_=BigInteger()))
    .order_by(runs.c.ended_at)
    .limit(_limit),
    purpose="Read the runs that have ended since an earlier look.",
)
_LAST_END = Statement(
    "last_end_of_a_run", select(func.max(runs.c.ended_at).label("last")), purpose="Read when the last run ended."
)
_AUDIT = Statement(
    "newest_audit_actions",
    select(audit.c.id, audit.c.tenant, audit.c.action, audit.c.subject)
    .where(audit.c.id > bindparam("after", type_=Text()))
    .order_by(audit.c.id.desc())
    .limit(_limit),
    purpose="Read the newest entries of the audit log.",
)
_WORKERS = Statement(
    "worker_signatures",
    select(workers.c.id, workers.c.status, workers.c.drain_requested_at).order_by(workers.c.id.desc()).limit(_limit),
    purpose="Read the state of the newest workers, to compare it with an earlier look.",
)
# The topics of hints by the first part of the name of an audited action. An action that is missing here may concern any
# topic.
_TOPICS: Final = {
    "concurrency_limit": Topic.LIMITS,
    "dead_letter": Topic.DEAD_LETTERS,
    "key": Topic.ACCESS,
    "lane": Topic.LANES,
    "kind": Topic.LANES,
    "limits": Topic.LIMITS,
    "quota": Topic.ACCESS,
    "role": Topic.ACCESS,
    "schedule": Topic.SCHEDULES,
    "secret": Topic.SECRETS,
    "session": Topic.ACCESS,
    "tenant": Topic.ACCESS,
    "trigger": Topic.TRIGGERS,
    "webhook": Topic.DELIVERIES,
    "webhook_source": Topic.TRIGGERS,
    "worker": Topic.WORKERS,
}


class _Seen(NamedTuple):
    runs: dict[str, tuple[str, int]]
    workers: frozenset[tuple[object, ...]]
    last_end: int
    last_audit: str


class ChangePoll:
    """Keeps the result of the last poll. The first poll reports no changes."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seen: _Seen | None = None

    async def look(self) -> list[Hint]:
        """Return hints about the changes since the last poll."""
        before = self._seen

        async def work(session: Session) -> tuple[_Seen, list[Hint]]:
            return await _look(session, before)

        self._seen, hints = await self._database.transact(work)
        return hints


async def _look(session: Session, before: _Seen | None) -> tuple[_Seen, list[Hint]]:
    last_end = (await session.fetch(_LAST_END))[0]["last"] or 0 if before is None else before.last_end
    ended = await session.fetch(_ENDED, after=last_end, limit=_LOOKED_AT)
    newest = await session.fetch(_NEWEST, limit=_LOOKED_AT)
    running = await session.fetch(_RUNNING, limit=_LOOKED_AT)
    states = {row["id"]: (row["status"], row["last_seq"]) for row in (*newest, *running, *ended)}
    actions = await session.fetch(_AUDIT, after="" if before is None else before.last_audit, limit=_LOOKED_AT)
    known = frozenset(
        (row["id"], row["status"], row["drain_requested_at"]) for row in await session.fetch(_WORKERS, limit=_LOOKED_AT)
    )
    seen = _Seen(
        states,
        known,
        ended[-1]["ended_at"] if ended else last_end,
        actions[0]["id"] if actions else "" if before is None else before.last_audit,
    )
    if before is None:
        return seen, []
    changed = [run_id for run_id, state in states.items() if before.runs.get(run_id) != state]
    # A run that was running and is no longer in any of the lists has been paused or requeued.
    changed += [
        run_id for run_id, (status, _) in before.runs.items() if run_id not in states and status == Status.RUNNING
    ]
    hints = [Hint(Topic.RUNS, None, (run_id,)) for run_id in changed]
    hints += _audited(actions)
    if known != before.workers:
        hints.append(Hint(Topic.WORKERS))
    return seen, hints


def _audited(actions: Sequence[Row]) -> list[Hint]:
    found: list[Hint] = []
    for row in actions:
        kind = row["action"].partition(".")[0]
        if kind == "run":
            found.append(Hint(Topic.RUNS, row["tenant"], (row["subject"],)))
        else:
            topic = _TOPICS.get(kind, Topic.ALL)
            # Lanes, workers and shared limits belong to no tenant.
            shared = topic in (Topic.ALL, Topic.LANES, Topic.WORKERS, Topic.LIMITS, Topic.DEFINITIONS)
            found.append(Hint(topic, None if shared else row["tenant"]))
    return found
