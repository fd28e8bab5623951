"""The commands for limits of model providers and for what models took."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import ApiKey, Url
from runlane.cli.show import Json

limits = typer.Typer(help="Limits of model providers in the cluster.", no_args_is_help=True)

Credential = Annotated[
    str,
    typer.Argument(
        help="Whose key: openai, anthropic, ...; openai@acme is the key of the tenant acme, openai:llm.local another "
        "server.",
        metavar="CREDENTIAL",
    ),
]


@limits.command(name="list")
def list_limits(url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the credentials with their limits and what is used of them now."""
    from runlane.cli.meter import show_limits

    show_limits(url=url, api_key=api_key, json=json)


@limits.command(name="set")
def set_limits(
    credential: Credential,
    in_flight: Annotated[int | None, typer.Option(help="Calls at once; 0 pauses the provider.")] = None,
    requests_per_minute: Annotated[int | None, typer.Option(help="Calls that may begin within a minute.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(help="Tokens that these calls may take, in and out.")] = None,
    no_limit: Annotated[
        str | None,
        typer.Option(help="Limits to remove, comma-separated: in_flight, requests_per_minute, tokens_per_minute."),
    ] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Change limits while everything runs. What is left out stays; every worker follows within about a second."""
    from runlane.cli.meter import change_limits

    change_limits(
        credential,
        in_flight=in_flight,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        no_limit=no_limit,
        url=url,
        api_key=api_key,
        json=json,
    )


@limits.command()
def reset(credential: Credential, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """Set all limits of a credential back to the defaults."""
    from runlane.cli.meter import reset_limits

    reset_limits(credential, url=url, api_key=api_key, json=json)


def usage(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant; all of them without it.")] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="The first day (UTC), such as 2026-01-31; 30 days ago without it.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="The last day; today without it.")] = None,
    group: Annotated[str, typer.Option(help="One line for each day, agent or model.")] = "day",
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Calls, tokens and cost of models. A call whose price nobody knows counts as unpriced, not as free."""
    from runlane.cli.meter import show_usage

    show_usage(tenant=tenant, first=first, last=last, group=group, url=url, api_key=api_key, json=json)
