"""Tags of runs. A run has them as a list for its readers, and `run_tags` has one row for each, for lists by tag.

Both change in one transaction. A run without tags has no rows, so accepting and executing it costs nothing. A run that
a schedule has started also has a row for that schedule, and a fork has one for the run that it repeats; callers cannot
set the tags of these rows (see `schedule_mark` and `fork_mark`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import FromClause, Text, delete, select, true, update
from sqlalchemy.sql.base import Executable

from runlane.domain.tags import TagChange
from runlane.domain.text import dump_json, load_json
from runlane.errors import InvalidRequest, RunNotFound
from runlane.store.access.audit import append_audit
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import member, upsert
from runlane.store.sql.schema import run_tags, runs
from runlane.store.sql.statement import Statement


@dataclass(frozen=True, slots=True)
class TaggedRun:
    """The tags of a run before and after a change; `refusal` is the reason why they did not change."""

    run_id: str
    tenant: str
    old: tuple[str, ...]
    new: tuple[str, ...]
    refusal: InvalidRequest | None = None


def _add(batch: FromClause) -> Executable:
    # `where true` keeps SQLite's parser from reading ON as a join.
    rows = select(batch.c.tenant, batch.c.tag, batch.c.run_id).select_from(batch).where(true())
    # An earlier try whose result was lost may have stored them.
    return upsert(run_tags).from_select(["tenant", "tag", "run_id"], rows).on_conflict_do_nothing()


def _set(batch: FromClause) -> Executable:
    return update(runs).where(runs.c.id == batch.c.id).values(tags=batch.c.tags).returning(runs.c.id)


_ADD = Statement(
    "add_tags",
    _add,
    {"tenant": Text(), "tag": Text(), "run_id": Text()},
    purpose="Add runs to the lists of their tags.",
)
_LOCK = Statement(
    "lock_tagged_runs",
    select(runs.c.id, runs.c.tenant, runs.c.tags).where(member(runs.c.id, "ids")).order_by(runs.c.id).with_for_update(),
    purpose="Lock runs while their tags are changed.",
)
_SET = Statement("set_tags", _set, {"id": Text(), "tags": Text()}, purpose="Change the tags of runs.")
_REMOVE = Statement(
    "remove_tags",
    delete(run_tags).where(member(run_tags.c.run_id, "ids"), member(run_tags.c.tag, "tags")),
    purpose="Remove runs from the lists of their tags.",
)


def tags_json(tags: Sequence[str]) -> str | None:
    """Return tags as they are stored with their run."""
    return dump_json(tags) if tags else None


def tags_of(stored: str | None) -> tuple[str, ...]:
    """Return the tags that are stored with a run."""
    return () if stored is None else tuple(load_json(stored))


async def add_tags(session: Session, tagged: Iterable[tuple[str, str, Sequence[str]]]) -> None:
    """Add new runs, each with its tenant, id and tags, to the lists of their tags."""
    await session.fetch(_ADD, [(tenant, tag, run_id) for tenant, run_id, tags in tagged for tag in tags])


async def set_tags(session: Session, run_ids: Sequence[str], change: TagChange) -> list[TaggedRun]:
    """Change the tags of those of the runs that exist; return them with their old and new tags."""
    changed: list[TaggedRun] = []
    for row in await session.fetch(_LOCK, ids=session.texts(sorted(set(run_ids)))):
        old = tags_of(row["tags"])
        try:
            changed.append(TaggedRun(row["id"], row["tenant"], old, change.apply(old)))
        except InvalidRequest as refusal:
            changed.append(TaggedRun(row["id"], row["tenant"], old, old, refusal))
    different = [run for run in changed if run.new != run.old]
    if different:
        await session.fetch(_SET, [(run.run_id, tags_json(run.new)) for run in different])
        # Tags are removed by their names, so that marks stay.
        old = sorted({tag for run in different for tag in run.old})
        await session.fetch(_REMOVE, ids=session.texts([run.run_id for run in different]), tags=session.texts(old))
        await add_tags(session, ((run.tenant, run.run_id, run.new) for run in different))
    return changed


async def tag_run(database: Database, run_id: str, change: TagChange, *, actor: str) -> TaggedRun:
    """Change the tags of one run. Raises RunNotFound, and InvalidRequest if it would have too many."""
    return await database.transact(lambda session: tag_in(session, run_id, change, actor=actor))


async def tag_in(session: Session, run_id: str, change: TagChange, *, actor: str) -> TaggedRun:
    """Change the tags of one run in the transaction of the session."""
    found = await set_tags(session, [run_id], change)
    if not found:
        raise RunNotFound(run_id)
    (run,) = found
    if run.refusal is not None:
        raise run.refusal
    if run.new != run.old:
        await append_audit(
            session,
            actor=actor,
            tenant=run.tenant,
            action="run.tag",
            subject=run_id,
            old={"tags": run.old},
            new={"tags": run.new},
        )
    return run
