"""Set, read and remove the webhook URL of an accepted run while the run has not ended."""

from __future__ import annotations

from sqlalchemy import Text, bindparam, delete, select, update

from runlane.domain.run import RunHook, Status
from runlane.errors import RunNotFound, WrongState
from runlane.store.sql.database import Database, Session
from runlane.store.sql.expressions import upsert, with_bits
from runlane.store.sql.schema import run_webhooks, runs
from runlane.store.sql.statement import Statement

_run = bindparam("run_id", type_=Text())
_tenant = bindparam("tenant", type_=Text())
_url = bindparam("url", type_=Text())
_LOCK = Statement(
    "lock_run_for_webhook",
    select(runs.c.status).where(runs.c.id == _run, runs.c.tenant == _tenant).with_for_update(),
    purpose="Lock a run whose webhook changes, so that its end is reported to the old or the new address.",
)
_HOOK = Statement(
    "hook_run",
    update(runs).where(runs.c.id == _run).values(hooks=with_bits(runs.c.hooks, RunHook.WEBHOOK)),
    purpose="Mark a run as one with a webhook.",
)
_SET = Statement(
    "set_run_webhook",
    upsert(run_webhooks)
    .values(run_id=_run, tenant=_tenant, url=_url)
    .on_conflict_do_update(index_elements=["run_id"], set_={"url": _url}),
    purpose="Set the webhook URL of a run.",
)
_READ = Statement(
    "read_run_webhook",
    select(run_webhooks.c.url).where(run_webhooks.c.run_id == _run, run_webhooks.c.tenant == _tenant),
    purpose="Read the webhook URL of a run.",
)
_REMOVE = Statement(
    "remove_run_webhook",
    delete(run_webhooks).where(run_webhooks.c.run_id == _run, run_webhooks.c.tenant == _tenant),
    purpose="Remove the webhook URL of a run.",
)


async def set_address(database: Database, tenant: str, run_id: str, url: str | None) -> None:
    """Set the URL to which the end of a run is reported; None removes it. WrongState if the run has ended."""

    async def work(session: Session) -> None:
        rows = await session.fetch(_LOCK, run_id=run_id, tenant=tenant)
        if not rows:
            raise RunNotFound(run_id)
        if Status(rows[0]["status"]).terminal:
            raise WrongState(f"Run {run_id} has ended, so its webhook cannot be changed. Read its result.")
        if url is None:
            await session.fetch(_REMOVE, run_id=run_id, tenant=tenant)
            return
        await session.fetch(_SET, run_id=run_id, tenant=tenant, url=url)
        await session.fetch(_HOOK, run_id=run_id)

    await database.transact(work)


async def read_address(database: Database, tenant: str, run_id: str) -> str | None:
    """Return the URL to which the end of a run is reported."""
    rows = await database.query(_READ, run_id=run_id, tenant=tenant)
    return rows[0]["url"] if rows else None
