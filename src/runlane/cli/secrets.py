"""The commands for secrets. A value comes from a prompt, stdin or a file: arguments are seen by every process here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from runlane.cli.definitions import ApiKey, Tenant, Url
from runlane.cli.show import Json

secrets = typer.Typer(help="Secrets that definitions refer to as {secret.NAME}.", no_args_is_help=True)

SecretName = Annotated[str, typer.Argument(help="The name: letters, digits and _.", metavar="NAME")]


@secrets.command(name="set")
def set_secret(
    name: SecretName,
    from_file: Annotated[
        Path | None, typer.Option(help="Read the value from this file. Without it: a prompt, or stdin in a pipe.")
    ] = None,
    tenant: Tenant = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Set a secret. The value is asked for without echo, or read from stdin or a file; one line end after it is cut."""
    from runlane.cli.keep import keep

    keep(name, from_file=from_file, tenant=tenant, url=url, api_key=api_key, json=json)


@secrets.command(name="list")
def list_secrets(tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the secrets with their versions. Values are shown to nobody."""
    from runlane.cli.keep import show

    show(tenant=tenant, url=url, api_key=api_key, json=json)


@secrets.command(name="delete")
def delete_secret(
    name: SecretName, tenant: Tenant = None, url: Url = None, api_key: ApiKey = None, json: Json = False
) -> None:
    """Delete a secret. What refers to it fails from now on."""
    from runlane.cli.keep import drop

    drop(name, tenant=tenant, url=url, api_key=api_key, json=json)


@secrets.command()
def rotate(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's. Default: all that you may see.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Encrypt with the first key what an older one still keeps; safe to interrupt, repeat, and while runs go on.

    Exit code 1 if there are secrets that no key here decrypts.
    """
    from runlane.cli.keep import rotate_keys

    raise typer.Exit(rotate_keys(tenant=tenant, url=url, api_key=api_key, json=json))


@secrets.command(name="new-key")
def new_key(json: Json = False) -> None:
    """Print a new key for RUNLANE_SECRET_KEY. It is stored nowhere: keep it."""
    from runlane.cli.keep import print_key

    print_key(json=json)
