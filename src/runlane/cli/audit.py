"""`runlane audit`: the log of administrative changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import on_server_or_database
from runlane.cli.options import ApiKey, Before, Json, Limit, Url
from runlane.cli.output import format_time, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.access import AuditEntry
    from runlane.store.sql.database import Database

app = typer.Typer()


@app.command(name="list")
def list_audit(
    tenant: Annotated[str | None, typer.Option(help="Only changes in this tenant.")] = None,
    action: Annotated[str | None, typer.Option(help="Only this kind of change, such as key.revoke.")] = None,
    subject: Annotated[str | None, typer.Option(help="Only changes of this object, such as a lane.")] = None,
    actor: Annotated[str | None, typer.Option(help="Only changes of this key id, or of cli:NAME.")] = None,
    before: Before = None,
    limit: Limit = 50,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List administrative changes with the old and new values, newest first."""

    async def on_server(client: Client) -> Sequence[AuditEntry]:
        return await client.admin.audit(
            tenant=tenant, action=action, subject=subject, actor=actor, before=before, limit=limit
        )

    async def on_database(database: Database) -> Sequence[AuditEntry]:
        from runlane.store.access.audit import list_audit

        actors = () if actor is None else (actor,)
        return await list_audit(
            database, tenant=tenant, action=action, subject=subject, actors=actors, before=before, limit=limit
        )

    print_rows(
        on_server_or_database(url, api_key, on_server, on_database),
        ["entry", "at", "actor", "tenant", "action", "subject", "old", "new"],
        lambda row: [row.id, format_time(row.at_us), row.actor, row.tenant, row.action, row.subject, row.old, row.new],
        empty="No changes yet.",
        json=json,
    )
