"""The items of bulk jobs: selected when a job is created, and settled one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import (
    FromClause,
    Integer,
    Select,
    Text,
    bindparam,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.sql.base import Executable

from runlane.domain.bulk import BulkItem, BulkItemPage, ItemState
from runlane.domain.text import clean_text
from runlane.errors import RunNotFound
from runlane.store.failures.letters import MATCHING, OF_TENANT, LetterFilter
from runlane.store.failures.run_selection import RUNS_MATCHING, RUNS_OF_TENANT, selection_parameters
from runlane.store.queue.search import RunFilter, in_session
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import lit, member, now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import bulk_items, dead_letters, runs
from runlane.store.sql.statement import Statement

_MAX_REASON: Final = 1000
_limit = bindparam("limit", type_=Integer())
_COLUMNS = ["job_id", "no", "run_id", "state"]


def _newest(key: Any, *conditions: Any) -> Select[Any]:
    return select(key.label("run_id")).where(*conditions).order_by(key.desc()).limit(_limit)


_sources: dict[str, Select[Any]] = {
    "runs": _newest(runs.c.id, *RUNS_MATCHING),
    "tenant_runs": _newest(runs.c.id, *RUNS_MATCHING, RUNS_OF_TENANT),
    "letters": _newest(dead_letters.c.run_id, *MATCHING),
    "tenant_letters": _newest(dead_letters.c.run_id, *MATCHING, OF_TENANT),
}


def _insert(source: Select[Any]) -> Executable:
    found = source.subquery("found")
    key = found.c.run_id
    number = func.row_number().over(order_by=key.desc())
    return insert(bulk_items).from_select(
        _COLUMNS, select(bindparam("job_id", type_=Text()), number, key, lit(ItemState.PENDING)).select_from(found)
    )


_SELECT = {
    name: Statement(f"select_bulk_{name}", _insert(source), purpose="Store the items of a bulk job by a filter.")
    for name, source in _sources.items()
}
_PREVIEW = {
    name: Statement(f"preview_bulk_{name}", source, purpose="Find the runs that a bulk job would select.")
    for name, source in _sources.items()
}


def _insert_ids(batch: FromClause) -> Executable:
    return insert(bulk_items).from_select(
        _COLUMNS,
        select(bindparam("job_id", type_=Text()), batch.c.no, batch.c.run_id, lit(ItemState.PENDING)).select_from(
            batch
        ),
    )


_INSERT_IDS = Statement(
    "store_bulk_items",
    _insert_ids,
    {"no": Integer(), "run_id": Text()},
    purpose="Store the items of a bulk job by their ids.",
)
_VISIBLE_RUNS = Statement(
    "visible_runs",
    select(runs.c.id.label("run_id")).where(member(runs.c.id, "ids"), optional("tenant", runs.c.tenant)),
    purpose="Find those of some runs that a tenant may see.",
)
_VISIBLE_LETTERS = Statement(
    "visible_letters",
    select(dead_letters.c.run_id).where(
        member(dead_letters.c.run_id, "ids"), optional("tenant", dead_letters.c.tenant)
    ),
    purpose="Find those of some runs whose dead letters a tenant may see.",
)
_of_job = bulk_items.c.job_id == bindparam("job_id")
_COUNT = Statement(
    "count_items_of_job", select(func.count().label("count")).where(_of_job), purpose="Count the items of a bulk job."
)
_CUT = Statement(
    "cut_bulk_items",
    delete(bulk_items).where(_of_job, bulk_items.c.no > _limit),
    purpose="Delete the items of a new bulk job beyond its limit.",
)
_PENDING = Statement(
    "pending_bulk_items",
    select(bulk_items.c.no, bulk_items.c.run_id)
    .where(_of_job, bulk_items.c.state == lit(ItemState.PENDING))
    .order_by(bulk_items.c.no)
    .limit(_limit),
    purpose="Read the next items of a bulk job.",
)
_one = (_of_job, bulk_items.c.no == bindparam("no", type_=Integer()))
_SETTLE = Statement(
    "settle_bulk_item",
    update(bulk_items)
    .where(*_one, bulk_items.c.state == lit(ItemState.PENDING))
    .values(state=lit(ItemState.CHANGED), settled_at=now_us())
    .returning(bulk_items.c.no),
    purpose="Settle an item of a bulk job, once.",
)
_REFUSE = Statement(
    "refuse_bulk_item",
    update(bulk_items)
    .where(*_one)
    .values(state=lit(ItemState.REFUSED), code=bindparam("code"), reason=bindparam("reason")),
    purpose="Note why a run of a bulk job was not changed.",
)
_NOTE_RUN = Statement(
    "note_new_run",
    update(bulk_items).where(*_one).values(new_run_id=bindparam("new_run_id")),
    purpose="Note the run that was started for an item of a bulk job.",
)
_LIST = Statement(
    "list_bulk_items",
    select(bulk_items)
    .where(_of_job, optional("state", bulk_items.c.state), bulk_items.c.no > bindparam("after", type_=Integer()))
    .order_by(bulk_items.c.no)
    .limit(_limit),
    purpose="Read a page of the items of a bulk job.",
)
_CHANGED = Statement(
    "changed_bulk_items",
    select(bulk_items.c.run_id).where(_of_job, bulk_items.c.state == lit(ItemState.CHANGED)).order_by(bulk_items.c.no),
    purpose="Read the runs that a bulk job has changed.",
)

Selection = RunFilter | LetterFilter


def _source(wanted: Selection) -> str:
    kind = "letters" if isinstance(wanted, LetterFilter) else "runs"
    return kind if wanted.tenant is None else f"tenant_{kind}"


def _parameters(session: Session, wanted: Selection) -> dict[str, Any]:
    if isinstance(wanted, LetterFilter):
        return wanted.parameters(session)
    return selection_parameters(session, wanted)


async def _in_session(session: Session, wanted: Selection) -> Selection | None:
    """Return the selection with the key of its chat session; None if nothing can match."""
    return wanted if isinstance(wanted, LetterFilter) else await in_session(session, wanted)


async def select_items(session: Session, job_id: str, selected: Selection, limit: int) -> tuple[int, bool]:
    """Store the newest matching runs as the items of a new job; return how many, and whether more match."""
    wanted = await _in_session(session, selected)
    if wanted is None:
        return 0, False
    given = _parameters(session, wanted)
    await session.fetch(_SELECT[_source(wanted)], **given, job_id=job_id, limit=limit + 1)
    found = (await session.fetch(_COUNT, job_id=job_id))[0]["count"]
    if found > limit:
        await session.fetch(_CUT, job_id=job_id, limit=limit)
    return min(found, limit), found > limit


async def store_ids(session: Session, job_id: str, run_ids: Sequence[str]) -> None:
    """Store these runs as the items of a new job, in this order."""
    await session.fetch(_INSERT_IDS, list(enumerate(run_ids, start=1)), job_id=job_id)


async def preview_items(database: Database, selected: Selection, limit: int) -> tuple[list[str], bool]:
    """Return the runs that a job would select, and whether more match."""

    async def work(session: Session) -> list[str]:
        wanted = await _in_session(session, selected)
        if wanted is None:
            return []
        rows = await session.fetch(_PREVIEW[_source(wanted)], **_parameters(session, wanted), limit=limit + 1)
        return [row["run_id"] for row in rows]

    found = await database.transact(work)
    return found[:limit], len(found) > limit


async def check_visible(session: Session, run_ids: Sequence[str], tenant: str | None, *, letters: bool) -> None:
    """Raise RunNotFound for the first run that does not exist or is of another tenant; None means every tenant."""
    statement = _VISIBLE_LETTERS if letters else _VISIBLE_RUNS
    found = {row["run_id"] for row in await session.fetch(statement, ids=session.texts(run_ids), tenant=tenant)}
    for run_id in run_ids:
        if run_id not in found:
            raise RunNotFound(run_id)


async def pending_items(database: Database, job_id: str, limit: int) -> list[tuple[int, str]]:
    """Return numbers and runs of the next items of a job."""
    rows = await database.query(_PENDING, job_id=job_id, limit=limit)
    return [(row["no"], row["run_id"]) for row in rows]


async def settle_item(session: Session, job_id: str, no: int) -> bool:
    """Settle an item as changed; return False if it was settled before."""
    return bool(await session.fetch(_SETTLE, job_id=job_id, no=no))


async def refuse_item(session: Session, job_id: str, no: int, code: str, reason: str) -> None:
    """Note that the run of an item was not changed."""
    await session.fetch(_REFUSE, job_id=job_id, no=no, code=code, reason=clean_text(reason, _MAX_REASON))


async def note_new_run(session: Session, job_id: str, no: int, run_id: str) -> None:
    """Note the run that was started for an item."""
    await session.fetch(_NOTE_RUN, job_id=job_id, no=no, new_run_id=run_id)


async def list_items(
    database: Database, job_id: str, *, state: ItemState | None = None, after: int = 0, limit: int = 100
) -> BulkItemPage:
    """Return a page of the items of a job, in order; `after` is the last number of the previous page."""
    rows = await database.query(
        _LIST, job_id=job_id, state=None if state is None else state.value, after=after, limit=limit
    )
    items = tuple(from_row(BulkItem, row, state=ItemState(row["state"])) for row in rows)
    return BulkItemPage(items, str(items[-1].no) if len(items) == limit else None)


async def changed_runs(database: Database, job_id: str) -> list[str]:
    """Return the runs that a job has changed, newest first."""
    return [row["run_id"] for row in await database.query(_CHANGED, job_id=job_id)]
