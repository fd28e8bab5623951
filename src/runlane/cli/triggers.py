"""`runlane triggers`: the outcomes of triggers for events, and replays of events."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from runlane.cli.backend import audit_actor, on_server_or_database
from runlane.cli.events import print_outcomes
from runlane.cli.options import ApiKey, DryRun, Json, Limit, Tenant, Url, moment_of
from runlane.cli.output import print_result
from runlane.domain.tenant import DEFAULT_TENANT
from runlane.domain.text import counted
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runlane.client import Client
    from runlane.domain.tenant_event import TriggerOutcome, TriggerReplay
    from runlane.store.sql.database import Database

app = typer.Typer()

TriggerName = Annotated[str, typer.Argument(help="Id of the trigger.", metavar="TRIGGER")]


@app.command(name="outcomes")
def outcomes(
    trigger: TriggerName,
    outcome: Annotated[str | None, typer.Option(help="Only pending, started, filtered or failed ones.")] = None,
    limit: Limit = 100,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the outcomes of a trigger, newest event first."""
    from runlane.domain.tenant_event import Outcome

    if outcome is not None and outcome not in set(Outcome):
        raise InvalidRequest(f"--outcome={outcome} must be one of {', '.join(Outcome)}.")

    async def on_server(client: Client) -> Sequence[TriggerOutcome]:
        from runlane.cli.run_backend import first

        return await first(client.trigger_outcomes(trigger, outcome=outcome, tenant=tenant), limit)

    async def on_database(database: Database) -> Sequence[TriggerOutcome]:
        from runlane.store.events.reading import outcomes_of_trigger

        wanted = None if outcome is None else Outcome(outcome)
        return await outcomes_of_trigger(database, tenant or DEFAULT_TENANT, trigger, outcome=wanted, limit=limit)

    print_outcomes(on_server_or_database(url, api_key, on_server, on_database), json=json)


@app.command(name="replay")
def replay(
    trigger: TriggerName,
    since: Annotated[
        str, typer.Option("--from", help="Events received from this time on, such as 2026-01-31T12:00:00Z.")
    ],
    until: Annotated[str | None, typer.Option(help="Events received before this time.")] = None,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Evaluate stored events for a trigger again, except those for which it started a run."""
    from_us, until_us = moment_of(since, "--from"), None if until is None else moment_of(until, "--until")
    after: str | None = None
    events: list[str] = []
    before = 0
    while True:
        page = _replayed(trigger, (since, from_us), (until, until_us), after, dry_run, tenant, url, api_key)
        events += page.events
        before += page.started_before
        after = page.next_cursor
        if after is None:
            break
    whole = {**asdict(page), "events": events, "started_before": before}
    verb = "would be" if dry_run else "is" if len(events) == 1 else "are"
    print_result(
        whole,
        f"{trigger}: {counted(len(events), 'event')} {verb} evaluated; {before} of them started a run before.",
        json=json,
    )


def _replayed(
    trigger: str,
    since: tuple[str, int],
    until: tuple[str | None, int | None],
    after: str | None,
    dry_run: bool,
    tenant: str | None,
    url: str | None,
    api_key: str | None,
) -> TriggerReplay:
    async def on_server(client: Client) -> TriggerReplay:
        return await client.replay_trigger(
            trigger, since[0], until=until[0], after=after, dry_run=dry_run, tenant=tenant
        )

    async def on_database(database: Database) -> TriggerReplay:
        from runlane.triggers.replay import MAX_REPLAYED, replay_trigger

        return await replay_trigger(
            database,
            tenant or DEFAULT_TENANT,
            trigger,
            from_us=since[1],
            until_us=until[1],
            after=after,
            limit=MAX_REPLAYED,
            dry_run=dry_run,
            actor=audit_actor(),
        )

    return on_server_or_database(url, api_key, on_server, on_database)
