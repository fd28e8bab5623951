"""The commands for definitions: check them, bring them, draw them, carry them. Thin, like every command here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runlane.cli.show import Json

tools = typer.Typer(help="Make tools from an OpenAPI description.", no_args_is_help=True)
bundle = typer.Typer(help="Bundles: definitions carried in one file.", no_args_is_help=True)

Dir = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder with definitions (RUNLANE_DEFINITIONS_DIR). Default: definitions."),
]
AppOption = Annotated[
    str | None, typer.Option("--app", help="module:name of your App, to check the tasks that steps name.")
]
Url = Annotated[
    str | None, typer.Option(envvar="RUNLANE_URL", help="Use the server there. Without it: the database directly.")
]
ApiKey = Annotated[str | None, typer.Option(envvar="RUNLANE_API_KEY", help="The server's key.", show_envvar=True)]
Tenant = Annotated[
    str | None, typer.Option(help="The tenant. Default: default, or on a server the one that the key belongs to.")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Change definitions of another source, too, and own them from now on.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only tell what would happen.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Orchestrations. Default: everything.", metavar="[ORCH]...")]


def validate(
    directory: Dir = None,
    app: AppOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 also if there are only warnings.")] = False,
    json: Json = False,
) -> None:
    """Validate definitions; report each problem with its location and fix. Exit code 1 if there are errors."""
    from runlane.cli.author import validate_directory

    raise typer.Exit(validate_directory(directory, app=app, strict=strict, json=json))


def sync(
    directory: Dir = None,
    dry_run: DryRun = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what the same source synced earlier and is gone from the folder.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(help="The project (RUNLANE_DEFINITIONS_SOURCE). Default: the name of the project folder."),
    ] = None,
    take_over: TakeOver = False,
    app: AppOption = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Bring the definitions of a folder, all of them or none. Exit code 1 if there are errors.

    Definitions record their source. A sync changes and removes only those of its own source.
    """
    from runlane.cli.author import Ownership, sync_directory

    code = sync_directory(
        directory,
        dry_run=dry_run,
        ownership=Ownership(source, prune, take_over),
        app=app,
        tenant=tenant,
        url=url,
        api_key=api_key,
        json=json,
    )
    raise typer.Exit(code)


def graph(
    orchestration: Annotated[str, typer.Argument(help="The orchestration's id.", metavar="ORCH")],
    svg: Annotated[bool, typer.Option("--svg", help="An SVG picture instead of Mermaid text.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of printing.")] = None,
    directory: Dir = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Draw an orchestration: from the folder with definitions if it is there, else from the database or a server."""
    from runlane.cli.author import draw

    draw(orchestration, svg=svg, out=out, directory=directory, tenant=tenant, url=url, api_key=api_key)


def schema(
    kind: Annotated[
        str | None, typer.Argument(help="orchestration, agent, tool or mcp_server. Default: all.", metavar="[KIND]")
    ] = None,
) -> None:
    """Print the JSON Schema of definition files, for editors."""
    from runlane.cli.author import print_schema

    print_schema(kind)


@bundle.command(name="export")
def export_bundle(
    ids: Ids = None,
    out: Annotated[Path | None, typer.Option(help="Write to this file instead of printing.")] = None,
    alone: Annotated[bool, typer.Option("--alone", help="Without what the orchestrations use.")] = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
) -> None:
    """Write a bundle: everything, or some orchestrations with all that they use. It contains no secrets."""
    from runlane.cli.carry import write_bundle

    write_bundle(ids, out=out, alone=alone, tenant=tenant, url=url, api_key=api_key)


@bundle.command(name="import")
def import_bundle(
    file: Annotated[str, typer.Argument(help="The bundle's file; - reads stdin.", metavar="FILE")],
    only: Annotated[
        str | None,
        typer.Option(help="Only these, comma-separated, such as orchestration:review,agent:writer."),
    ] = None,
    keep_existing: Annotated[
        bool, typer.Option("--keep-existing", help="Skip what is there already instead of changing it.")
    ] = False,
    source: Annotated[
        str | None, typer.Option(help="The project that they belong to. Default: none, so the first sync owns them.")
    ] = None,
    take_over: TakeOver = False,
    dry_run: DryRun = False,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Bring what is in a bundle and tell what became of each part. Exit code 1 if something was skipped."""
    from runlane.cli.carry import read_bundle

    code = read_bundle(
        file,
        only=only,
        keep_existing=keep_existing,
        source=source,
        take_over=take_over,
        dry_run=dry_run,
        tenant=tenant,
        url=url,
        api_key=api_key,
        json=json,
    )
    raise typer.Exit(code)


@tools.command(name="import-openapi")
def import_openapi(
    file: Annotated[
        str, typer.Argument(help="The description, OpenAPI 3.0 or 3.1 as JSON; - reads stdin.", metavar="FILE")
    ],
    prefix: Annotated[str, typer.Option(help="Put before the name of every tool, such as shop_.")] = "",
    base_url: Annotated[
        str | None, typer.Option(help="Where the service is. Default: the description's first server.")
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            help="Sent with every call, such as 'Authorization: Bearer {secret.SHOP_TOKEN}'. May be repeated."
        ),
    ] = None,
    directory: Dir = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Write a tool for every operation of a web service, and tell what was left out and why.

    Exit code 1 if something was not written because a file of that name is there.
    """
    from runlane.cli.openapi import write_tools

    code = write_tools(
        file,
        prefix=prefix,
        base_url=base_url,
        headers=header or [],
        directory=directory,
        overwrite=overwrite,
        dry_run=dry_run,
        json=json,
    )
    raise typer.Exit(code)
