"""Messages that are sent once: most of a budget or a quota is used, or a budget is reached.

A row for each notice is stored with its message, so that any number of processes and attempts report a fact once. A
tenant without endpoints has neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Float, FromClause, Integer, Text, cast, delete, func, literal, select, true
from sqlalchemy.sql.base import Executable

from runlane.domain.budget import BudgetNotice, SpendingCap, notice_of
from runlane.domain.quota import DAY_US, day_of
from runlane.domain.webhook_events import WebhookType
from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, now_once, now_us, upsert
from runlane.store.sql.schema import tenants, usage_daily, webhook_notices
from runlane.store.sql.statement import Row, Statement
from runlane.store.webhooks.outbox import NewMessage, read_subscriptions, store_messages

# Longer than a day, for the notices of a day; a run that lasts longer may be reported again.
_KEEP_US = 30 * DAY_US


class OnceMessage(NamedTuple):
    """A message about a subject that is sent once, or once on each day (UTC)."""

    subject: str
    daily: bool
    message: NewMessage


_KNOWN = Statement(
    "known_webhook_notices",
    select(webhook_notices.c.tenant, webhook_notices.c.subject, webhook_notices.c.type, webhook_notices.c.day).where(
        member(webhook_notices.c.tenant, "tenants"), member(webhook_notices.c.subject, "subjects")
    ),
    purpose="Find what was reported before.",
)


def _add(batch: FromClause) -> Executable:
    b = batch.c
    rows = select(b.tenant, b.subject, b.type, b.day, now_us()).select_from(batch).where(true())
    return (
        upsert(webhook_notices)
        .from_select(["tenant", "subject", "type", "day", "created_at"], rows)
        .on_conflict_do_nothing()
        .returning(webhook_notices.c.tenant, webhook_notices.c.subject, webhook_notices.c.type, webhook_notices.c.day)
    )


_ADD = Statement(
    "add_webhook_notices",
    _add,
    {"tenant": Text(), "subject": Text(), "type": Text(), "day": Integer()},
    purpose="Note what is reported, unless another transaction reports it.",
)
DELETE_NOTICES = Statement(
    "delete_webhook_notices",
    delete(webhook_notices).where(webhook_notices.c.created_at < now_once() - lit(_KEEP_US)),
    purpose="Delete old notes of what was reported.",
)
_today = cast(now_once() // lit(DAY_US), Integer)
_spent = (
    select(func.coalesce(func.sum(usage_daily.c.cost_usd), literal(0.0, Float())))
    .where(usage_daily.c.tenant == tenants.c.id, usage_daily.c.day == _today)
    .scalar_subquery()
)
_BUDGETS = Statement(
    "budgets_of_day",
    select(tenants.c.id, tenants.c.max_cost_usd_per_day, tenants.c.on_cap, _spent.label("spent")).where(
        member(tenants.c.id, "ids"), tenants.c.max_cost_usd_per_day.is_not(None)
    ),
    purpose="Read the daily budgets of tenants and what is spent of them.",
)


async def report_once(session: Session, given: Sequence[OnceMessage]) -> None:
    """Add the messages that were not sent before, in this transaction."""
    if not given:
        return
    owners = sorted({item.message.tenant for item in given})
    subscriptions = await read_subscriptions(session, owners)
    today = day_of(subscriptions.now_us)
    keys = {
        (item.message.tenant, item.subject, item.message.type, today if item.daily else 0): item.message
        for item in given
        if subscriptions.by_tenant.get(item.message.tenant)
    }
    if not keys:
        return
    subjects = session.texts(sorted({item.subject for item in given}))
    rows = await session.fetch(_KNOWN, tenants=session.texts(owners), subjects=subjects)
    known = {_key(row) for row in rows}
    # The rows are written in one order, so that two transactions never wait for each other.
    added = await session.fetch(_ADD, sorted(keys.keys() - known))
    await store_messages(session, [keys[_key(row)] for row in added], subscriptions)


def _key(row: Row) -> tuple[str, str, str, int]:
    return row["tenant"], row["subject"], row["type"], row["day"]


async def report_budgets(
    session: Session, notices: Iterable[tuple[str, str, str, BudgetNotice]], spenders: Iterable[str]
) -> None:
    """Report what attempts have noticed, each with tenant, run and lane, and the daily budgets of these tenants."""
    found = [_budget(tenant, notice, run_id, lane) for tenant, run_id, lane, notice in notices]
    names = sorted({*spenders})
    for row in await session.fetch(_BUDGETS, ids=session.texts(names)) if names else ():
        cap = SpendingCap("tenant", float(row["max_cost_usd_per_day"]), float(row["spent"]), row["on_cap"], row["id"])
        notice = notice_of(cap, "")
        if notice is not None:
            found.append(_budget(row["id"], notice))
    await report_once(session, found)


def _budget(tenant: str, notice: BudgetNotice, run_id: str | None = None, lane: str | None = None) -> OnceMessage:
    cap = notice.cap
    of_run = cap.scope in ("run", "step")
    kind = WebhookType.BUDGET_REACHED if notice.reached else WebhookType.BUDGET_WARNING
    data: Mapping[str, Any] = {
        "scope": cap.scope,
        "name": cap.name,
        "limit_usd": cap.limit_usd,
        "spent_usd": cap.spent_usd,
        "on_cap": cap.on_cap,
        "run_id": run_id if of_run else None,
        "target": notice.target if of_run else None,
        "lane": lane if of_run else None,
        "url": f"/api/v2/runs/{run_id}" if of_run else None,
    }
    # The subject includes the limit, so that a raised limit is reported again.
    subject = f"{f'{run_id}:' if of_run else ''}{cap.scope}:{cap.name}:{cap.limit_usd:g}"
    return OnceMessage(subject, not of_run, NewMessage(tenant, kind, data, run_id if of_run else None))


async def report_quota(session: Session, tenant: str, name: str, limit: int, used: int) -> None:
    """Report that most of a quota is used, once a day."""
    data = {"quota": name, "limit": limit, "used": used}
    message = NewMessage(tenant, WebhookType.QUOTA_WARNING, data)
    await report_once(session, [OnceMessage(f"quota:{name}", True, message)])
