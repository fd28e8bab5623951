"""Accept runs without keys in lanes that tenants share, in one round trip: for Postgres, which has writing CTEs.

The statement reads the virtual time of the lanes, moves the last finish tags of the tenants and stores the runs with
their start tags. `accept` does the same in a transaction, for runs with keys, priorities or delays, and on SQLite.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlalchemy import FromClause, Text, and_, exists, false, func, insert, literal_column, select
from sqlalchemy.sql.base import Executable

from runlane.domain.run import Accepted
from runlane.store.access.tenants import FREE
from runlane.store.queue.accept import NewRun, accept_alone
from runlane.store.queue.accept_statements import (
    ALONE_COLUMNS,
    RETURNS,
    insert_first_events,
    insert_inputs_alone,
    new_rows,
    timed,
)
from runlane.store.queue.start_tags import lane_times, take_tags
from runlane.store.sql.compound import CompoundWrite
from runlane.store.sql.database import Database
from runlane.store.sql.expressions import lit
from runlane.store.sql.schema import runs, tenants

# The statement compares every run with every tenant. For more runs, the round trips of a transaction cost less.
_MOST_RUNS: Final = 64


def _admit(batch: FromClause) -> FromClause:
    b = batch.c
    times = lane_times(select(b.target, b.lane).distinct().subquery("kinds")).cte("times").prefix_with("materialized")
    t = times.c
    in_lane = batch.join(times, and_(t.target == b.target, t.declared == b.lane))
    groups = (
        select(
            t.lane,
            b.tenant,
            literal_column("''", Text()).label("fairness_key"),
            func.count().label("count"),
            (func.max(func.least(t.next_tag, t.now)) * lit(1000)).label("virtual_ns"),
            false().label("limited"),
        )
        .select_from(in_lane)
        .where(t.fair)
        .group_by(t.lane, b.tenant)
        .subquery("groups")
    )
    taken = take_tags(groups).cte("taken")
    # By id, which is the order of acceptance.
    position = func.row_number().over(partition_by=[t.lane, b.tenant], order_by=b.id) - lit(1)
    count = func.count().over(partition_by=[t.lane, b.tenant])
    tag = (taken.c.finish_tag - taken.c.charge + taken.c.charge * position // count) // lit(1000)
    placed = (
        select(*b, tag.label("start_tag"))
        .select_from(in_lane.outerjoin(taken, and_(taken.c.lane == t.lane, taken.c.tenant == b.tenant)))
        .subquery("placed")
    )
    return timed(placed, exists().where(tenants.c.id == placed.c.tenant, FREE))


def _insert_runs(admitted: FromClause) -> Executable:
    rows = new_rows(admitted.c)
    rows["rank"] = func.coalesce(admitted.c.start_tag, rows["rank"])
    rows["start_tag"] = admitted.c.start_tag
    return (
        insert(runs)
        .from_select(list(rows), select(*rows.values()).select_from(admitted))
        .returning(runs.c.id, runs.c.status, runs.c.lane, runs.c.accepted_at)
    )


_ACCEPT_SHARED = CompoundWrite(
    "accept_shared",
    _insert_runs,
    columns=ALONE_COLUMNS,
    returns=RETURNS,
    links=[insert_inputs_alone, insert_first_events],
    admit=_admit,
    purpose="Store new runs without keys in lanes that tenants share, as one statement without a transaction.",
)


def is_plain(requests: Sequence[NewRun]) -> bool:
    """Return whether the statement can place these runs: few, without priority, and ready at once."""
    return len(requests) <= _MOST_RUNS and all(
        run.priority == 0 and run.delay_us == 0 and not run.hold for run in requests
    )


async def accept_shared(database: Database, requests: Sequence[NewRun]) -> dict[str, Accepted] | None:
    """Store plain runs without keys with one statement; return the verdicts by id, or None as `accept_alone` does."""
    return await accept_alone(database, requests, _ACCEPT_SHARED)
