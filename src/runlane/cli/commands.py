"""The `runlane` command: every command by name, and the module that implements it.

A module is imported when one of its commands is used, so `runlane --help` and every command load only what they need.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from runlane.cli.terminal import write_line

# In the order of use: try it, start and answer runs, write definitions, operate, give access. Each value is a module of
# this package (with the function after a colon if the module is not a group) and the command's line in the help.
_COMMANDS: Final = {
    "dev": ("dev:dev", "Run API, worker and services in one process on SQLite, with live logs."),
    "run": ("run:run", "Start a run on a server."),
    "chat": ("chat:chat", "Chat with an agent on a server."),
    "inbox": ("inbox:inbox", "List the questions that wait for a person, oldest first."),
    "links": ("links", "Create, list and revoke links that answer a question without a key."),
    "runs": ("runs", "List, show, follow, cancel, retry and answer runs."),
    "threads": ("threads", "List, show and delete threads of hosted graphs, and read their states."),
    "assistants": ("assistants", "List, show and delete assistants of hosted graphs."),
    "events": ("events", "Send and list events, and show the outcomes of triggers."),
    "triggers": ("triggers", "Show the outcomes of triggers, and replay events."),
    "webhook-sources": ("webhook_sources", "Manage the senders of incoming webhooks."),
    "validate": ("definitions:validate", "Validate definitions; report each problem with its location and fix."),
    "sync": ("sync:sync", "Store the definitions of a folder."),
    "definitions": ("stored_definitions", "List and show stored definitions, their versions and their users."),
    "graph": ("definitions:graph", "Draw an orchestration as Mermaid or SVG."),
    "schema": ("definitions:schema", "Print the JSON Schema of definition files, for editors."),
    "bundle": ("bundle", "Export and import definitions as one file."),
    "tools": ("tools", "Generate tools from an OpenAPI description."),
    "mcp": ("mcp", "Serve Runlane to MCP clients on stdio; check other MCP servers."),
    "secrets": ("secrets", "Manage the secrets that definitions refer to as {secret.NAME}."),
    "memory": ("memory_archive", "Manage vaults, memories and entries; search, replication and export."),
    "worker": ("worker:worker", "Execute runs until SIGTERM, then drain."),
    "serve": ("serve:serve", "Serve the HTTP API and the dashboard until SIGTERM."),
    "health": ("health:health", "Check whether a server or worker on this machine is alive."),
    "db": ("db", "Upgrade the database schema, or show its revision."),
    "doctor": ("doctor:doctor", "Check the installation; report each problem with its fix."),
    "plan": ("plan:plan", "Estimate workers, connections and disk for a load."),
    "workers": ("workers:workers", "List the workers."),
    "schedules": ("schedules", "Manage schedules, which start runs at given times."),
    "admin": ("admin", "Show the state of the whole cluster, and drain workers."),
    "lanes": ("lanes", "List and configure lanes: slots in the cluster, pauses, holds."),
    "concurrency-limits": ("concurrency_limits", "Show and set limits for concurrent runs that targets share."),
    "flow-control": ("flow_control", "Show the keys of flow control and their skipped starts."),
    "limits": ("limits", "Show and set the rate limits of model providers."),
    "quotas": ("quotas", "Show and set the quotas of tenants."),
    "usage": ("usage:usage", "Show the calls, tokens and cost of models."),
    "webhooks": ("webhooks", "Manage webhook endpoints; list deliveries and send them again."),
    "dead-letters": ("dead_letters", "Find and handle runs that failed for good."),
    "bulk": ("bulk", "Change many runs at once: cancel, retry, priority, lane."),
    "keys": ("keys", "Create, list and revoke API keys."),
    "roles": ("roles", "Manage roles: the permissions of keys."),
    "tenants": ("tenants", "Manage tenants and their limits."),
    "audit": ("audit", "List administrative changes."),
}
# Loading rich takes half of the time of --help, and a pipe shows no colours.
_MARKUP: Final = "rich" if sys.stdout.isatty() else None


class LazyGroup(TyperGroup):
    """A group that lists its commands from a table and imports a command's module when the command is used."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = {name: TyperCommand(name, short_help=line) for name, (_, line) in _COMMANDS.items()}

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else load_command(name), rest


def load_command(name: str) -> Any:
    """Import the command or group of this name."""
    (path, line) = _COMMANDS[name]
    module_name, _, function = path.partition(":")
    module = import_module(f"runlane.cli.{module_name}")
    loaded = typer.Typer(rich_markup_mode=_MARKUP)
    if function:
        loaded.command(name, short_help=line)(getattr(module, function))
    else:
        # A group may be a command itself.
        alone = module.app.info.invoke_without_command is True
        loaded.add_typer(module.app, name=name, help=line, no_args_is_help=not alone)
    return typer.main.get_group(loaded).commands[name]


cli = typer.Typer(
    name="runlane",
    cls=LazyGroup,
    help="Durable execution of tasks, orchestrations and agents. An accepted run is completed even if workers die. "
    "Start with: runlane dev. RUNLANE_DATABASE_URL selects Postgres; the default is a SQLite file in .runlane/.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=_MARKUP,
)


def _print_version(given: bool) -> None:
    if given:
        from runlane.version import VERSION

        write_line(VERSION)
        raise typer.Exit


@cli.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
