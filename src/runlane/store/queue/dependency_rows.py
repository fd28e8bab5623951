"""The statements of runs that start after other runs; see `dependencies`."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import FromClause, Text, and_, bindparam, case, delete, func, insert, or_, select, true, update
from sqlalchemy.sql.base import Executable

from runlane.domain.run import RunHook, Status
from runlane.store.events.run_ends import hooks_of_end
from runlane.store.queue.ordering import ready_status
from runlane.store.sql.expressions import has_bits, lit, member, now_us, upsert, with_bits, without_bits
from runlane.store.sql.schema import dependency_work, run_dependencies, run_results, runs
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.outbox import has_endpoints

# How many dependents one transaction settles, and how many of them it cancels.
SETTLED_AT_ONCE: Final = 1000
CANCELLED_AT_ONCE: Final = 100

_waits_for_runs = and_(runs.c.status == lit(Status.BLOCKED), has_bits(runs.c.hooks, RunHook.WAITS_FOR_RUNS))
LOCK_RUNS = Statement(
    "lock_runs_in_order",
    select(runs.c.id, runs.c.tenant, runs.c.status)
    .where(member(runs.c.id, "ids"))
    .order_by(runs.c.id)
    .with_for_update(),
    purpose="Lock runs in the order of their ids.",
)
TENANTS_OF_RUNS = Statement(
    "find_tenants_of_runs",
    select(runs.c.id, runs.c.tenant).where(member(runs.c.id, "ids")),
    purpose="Read the tenants of the runs that a new run starts after.",
)
MARK_PARENTS = Statement(
    "note_dependents",
    update(runs)
    .where(member(runs.c.id, "ids"), runs.c.ended_at.is_(None), ~has_bits(runs.c.hooks, RunHook.DEPENDENTS))
    .values(hooks=with_bits(runs.c.hooks, RunHook.DEPENDENTS)),
    purpose="Note with runs that others start after them.",
)


def _add(batch: FromClause) -> Executable:
    b = batch.c
    # An earlier try may have stored the rows.
    return (
        upsert(run_dependencies)
        .from_select(
            ["parent_id", "run_id", "after_on", "parent_status"],
            select(b.parent_id, b.run_id, b.after_on, b.parent_status).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["parent_id", "run_id"])
    )


ADD_DEPENDENCIES = Statement(
    "add_dependencies",
    _add,
    {"parent_id": Text(), "run_id": Text(), "after_on": Text(), "parent_status": Text()},
    purpose="Store which runs a new run starts after.",
)
_open_edges = (
    select(run_dependencies.c.parent_id, run_dependencies.c.run_id)
    .where(member(run_dependencies.c.parent_id, "ids"), run_dependencies.c.parent_status.is_(None))
    .order_by(run_dependencies.c.parent_id, run_dependencies.c.run_id)
    .limit(lit(SETTLED_AT_ONCE))
    .cte("open_edges")
)
NOTE_END = Statement(
    "note_end_of_parents",
    update(run_dependencies)
    .where(run_dependencies.c.parent_id == _open_edges.c.parent_id, run_dependencies.c.run_id == _open_edges.c.run_id)
    .values(parent_status=select(runs.c.status).where(runs.c.id == run_dependencies.c.parent_id).scalar_subquery())
    .returning(run_dependencies.c.run_id),
    purpose="Note with dependents how the runs that they wait for have ended.",
)
LOCK_WAITING = Statement(
    "lock_waiting_dependents",
    select(runs.c.id, runs.c.ordering_key)
    .where(member(runs.c.id, "ids"), _waits_for_runs)
    .order_by(runs.c.id)
    .with_for_update(),
    purpose="Lock runs that wait for other runs, in the order of their ids.",
)


def _count_of(*statuses: Status | None) -> Any:
    status = run_dependencies.c.parent_status
    found = or_(*(status.is_(None) if wanted is None else status == lit(wanted) for wanted in statuses))
    return func.sum(case((found, lit(1)), else_=lit(0)))


COUNT_ENDS = Statement(
    "count_dependencies",
    select(
        run_dependencies.c.run_id,
        func.min(run_dependencies.c.after_on).label("after_on"),
        func.count().label("total"),
        _count_of(None).label("open"),
        _count_of(Status.FAILED).label("failed"),
        _count_of(Status.CANCELLED).label("cancelled"),
    )
    .where(member(run_dependencies.c.run_id, "ids"))
    .group_by(run_dependencies.c.run_id),
    purpose="Count the runs that dependents wait for, by how they ended.",
)
RELEASE_DEPENDENTS = Statement(
    "release_dependents",
    update(runs)
    .where(member(runs.c.id, "ids"), _waits_for_runs)
    .values(
        hooks=without_bits(runs.c.hooks, RunHook.WAITS_FOR_RUNS),
        # A run that waits for its ordering key, too, stays blocked.
        status=case(
            (or_(runs.c.ordering_key.is_(None), runs.c.holds_key), ready_status(waits_for_runs=False)),
            else_=lit(Status.BLOCKED),
        ),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(
        runs.c.id, runs.c.lane, runs.c.status, runs.c.last_seq, runs.c.attempt, runs.c.hooks, runs.c.ordering_key,
        runs.c.holds_key,
    ),
    purpose="Make runs ready whose dependencies are met.",
)  # fmt: skip
CANCEL_IMPOSSIBLE = Statement(
    "cancel_impossible",
    update(runs)
    .where(member(runs.c.id, "ids"), _waits_for_runs)
    .values(
        status=lit(Status.CANCELLED),
        ended_at=now_us(),
        holds_key=False,
        hooks=without_bits(runs.c.hooks, RunHook.WAITS_FOR_RUNS),
        last_seq=runs.c.last_seq + lit(1),
    )
    .returning(
        runs.c.id, runs.c.lane, runs.c.status, runs.c.attempt, runs.c.last_seq, runs.c.ordering_key, runs.c.holds_key,
        runs.c.tenant, runs.c.target, hooks_of_end(), has_endpoints(runs.c.tenant).label("notifies"),
    ),
    purpose="Cancel runs whose dependencies cannot be met any more.",
)  # fmt: skip


def _store_reasons(batch: FromClause) -> Executable:
    return insert(run_results).from_select(
        ["run_id", "error"], select(batch.c.run_id, batch.c.error).select_from(batch)
    )


STORE_REASONS = Statement(
    "store_dependency_failures",
    _store_reasons,
    {"run_id": Text(), "error": Text()},
    purpose="Store why runs were cancelled that could never start.",
)


def _add_work(batch: FromClause) -> Executable:
    return (
        upsert(dependency_work)
        .from_select(
            ["run_id", "kind", "created_at"],
            select(batch.c.run_id, batch.c.kind, now_us()).select_from(batch).where(true()),
        )
        .on_conflict_do_nothing(index_elements=["run_id", "kind"])
    )


ADD_WORK = Statement(
    "add_dependency_work",
    _add_work,
    {"run_id": Text(), "kind": Text()},
    purpose="Leave dependents to the maintenance service.",
)
READ_WORK = Statement(
    "dependency_work",
    select(dependency_work.c.run_id, dependency_work.c.kind, runs.c.ordering_key)
    .select_from(dependency_work.outerjoin(runs, runs.c.id == dependency_work.c.run_id))
    .order_by(dependency_work.c.created_at, dependency_work.c.run_id)
    .limit(lit(CANCELLED_AT_ONCE)),
    purpose="Read what the ends of runs have left to the maintenance service.",
)
FINISH_WORK = Statement(
    "finish_dependency_work",
    delete(dependency_work).where(
        member(dependency_work.c.run_id, "ids"), dependency_work.c.kind == bindparam("kind", type_=Text())
    ),
    purpose="Remove what the maintenance service has settled.",
)
DEPENDENCIES_OF_RUN = Statement(
    "dependencies_of_run",
    select(
        run_dependencies.c.parent_id,
        run_dependencies.c.after_on,
        run_dependencies.c.parent_status,
        _waits_for_runs.label("waits"),
    )
    .select_from(run_dependencies.join(runs, runs.c.id == run_dependencies.c.run_id))
    .where(run_dependencies.c.run_id == bindparam("run_id"))
    .order_by(run_dependencies.c.parent_id),
    purpose="Read the runs that a run starts after.",
)
