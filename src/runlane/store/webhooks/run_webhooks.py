"""The webhook URLs that runs were started with, stored with their runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import FromClause, Text, delete, exists, select, true
from sqlalchemy.sql.base import Executable

from runlane.store.sql.database import Session
from runlane.store.sql.expressions import lit, member, upsert
from runlane.store.sql.schema import run_webhooks, runs, webhook_deliveries, webhook_secrets
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.secrets import ADD_SECRETS, NewSecret


@dataclass(frozen=True, slots=True)
class RunWebhook:
    """The webhook of a new run. `secret` is as the caller gave it; it is encrypted before it is stored."""

    url: str
    secret: str | None = field(default=None, repr=False)
    sealed: NewSecret | None = None


def _insert(batch: FromClause) -> Executable:
    b = batch.c
    return (
        upsert(run_webhooks)
        .from_select(["run_id", "tenant", "url"], select(b.run_id, b.tenant, b.url).select_from(batch).where(true()))
        .on_conflict_do_nothing(index_elements=["run_id"])
    )


_ADD = Statement(
    "add_run_webhooks",
    _insert,
    {"run_id": Text(), "tenant": Text(), "url": Text()},
    purpose="Store the webhook URLs of new runs.",
)
_is_open = exists().where(
    webhook_deliveries.c.run_id == run_webhooks.c.run_id,
    webhook_deliveries.c.status.in_([lit("pending"), lit("delivering"), lit("held")]),
)
# The webhook of a deleted run stays while a delivery needs it; the retention of messages deletes it then.
DELETE_RUN_WEBHOOKS = Statement(
    "delete_run_webhooks",
    delete(run_webhooks).where(member(run_webhooks.c.run_id, "ids"), ~_is_open),
    purpose="Delete the webhook URLs of deleted runs that no delivery needs.",
)
DELETE_LEFT_WEBHOOKS = Statement(
    "delete_left_run_webhooks",
    delete(run_webhooks).where(
        member(run_webhooks.c.run_id, "ids"), ~exists().where(runs.c.id == run_webhooks.c.run_id), ~_is_open
    ),
    purpose="Delete the webhook URLs of runs that were deleted before their messages.",
)
DELETE_RUN_SECRETS = Statement(
    "delete_run_webhook_secrets",
    delete(webhook_secrets).where(
        member(webhook_secrets.c.owner, "ids"), ~exists().where(run_webhooks.c.run_id == webhook_secrets.c.owner)
    ),
    purpose="Delete the webhook secrets of deleted runs.",
)


async def add_run_webhooks(session: Session, webhooks: Sequence[tuple[str, str, RunWebhook]]) -> None:
    """Store the webhooks of new runs: run id, tenant and webhook."""
    await session.fetch(_ADD, [(run_id, tenant, webhook.url) for run_id, tenant, webhook in webhooks])
    if any(webhook.secret is not None for _, _, webhook in webhooks):
        raise ValueError("A webhook secret must be encrypted before it is stored.")
    secrets = [webhook.sealed for _, _, webhook in webhooks if webhook.sealed is not None]
    await session.fetch(ADD_SECRETS, [secret.row() for secret in secrets])


async def delete_run_webhooks(session: Session, run_ids: Sequence[str]) -> None:
    """Delete the webhooks of runs that are deleted, unless a delivery still needs them."""
    ids = session.texts(run_ids)
    await session.fetch(DELETE_RUN_WEBHOOKS, ids=ids)
    await session.fetch(DELETE_RUN_SECRETS, ids=ids)
