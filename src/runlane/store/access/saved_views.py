"""Saved views of a tenant: list, save and delete."""

from __future__ import annotations

from sqlalchemy import bindparam, delete, func, insert, select

from runlane.domain.saved_view import MAX_VIEWS, SavedView
from runlane.errors import Conflict, NotFound
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import now_us, optional
from runlane.store.sql.rows import from_row
from runlane.store.sql.schema import saved_views
from runlane.store.sql.statement import Statement

_v = saved_views.c
_one = (_v.tenant == bindparam("tenant"), _v.page == bindparam("page"), _v.name == bindparam("name"))
_LIST = Statement(
    "list_saved_views",
    select(saved_views).where(_v.tenant == bindparam("tenant"), optional("page", _v.page)).order_by(_v.page, _v.name),
    purpose="Read the saved views of a tenant.",
)
_COUNT = Statement(
    "count_saved_views",
    select(func.count().label("n")).select_from(saved_views).where(_v.tenant == bindparam("tenant")),
    purpose="Count the saved views of a tenant.",
)
_DELETE = Statement(
    "delete_saved_view", delete(saved_views).where(*_one).returning(saved_views), purpose="Delete a saved view."
)
_ADD = Statement(
    "add_saved_view",
    insert(saved_views)
    .values(
        tenant=bindparam("tenant"),
        page=bindparam("page"),
        name=bindparam("name"),
        query=bindparam("query"),
        created_by=bindparam("created_by"),
        updated_at=now_us(),
    )
    .returning(saved_views),
    purpose="Add a saved view.",
)


async def list_views(database: Database, tenant: str, page: str | None = None) -> list[SavedView]:
    """Return the saved views of a tenant, of one page if given, by name."""
    return [from_row(SavedView, row) for row in await database.query(_LIST, tenant=tenant, page=page)]


async def save_view(database: Database, tenant: str, page: str, name: str, query: str, *, actor: str) -> SavedView:
    """Save a view, or replace the one with its name."""

    async def work(session: Session) -> SavedView:
        known = await session.fetch(_DELETE, tenant=tenant, page=page, name=name)
        if not known and (await session.fetch(_COUNT, tenant=tenant))[0]["n"] >= MAX_VIEWS:
            raise Conflict(f'The tenant "{tenant}" has {MAX_VIEWS} saved views, which is the limit. Delete some.')
        given = {"tenant": tenant, "page": page, "name": name, "query": query, "created_by": actor}
        return from_row(SavedView, (await session.fetch(_ADD, **given))[0])

    return await database.transact(work)


async def delete_view(database: Database, tenant: str, page: str, name: str) -> SavedView:
    """Delete a saved view and return it."""

    async def work(session: Session) -> SavedView:
        for row in await session.fetch(_DELETE, tenant=tenant, page=page, name=name):
            return from_row(SavedView, row)
        raise NotFound(f'No saved view "{name}" of the page "{page}" exists.')

    return await database.transact(work)
