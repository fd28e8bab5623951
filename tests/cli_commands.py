"""Every command of the command line, for tests that check all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer

from runlane.cli.commands import cli, load_command


def leaf_commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of each command, and the command itself."""
    root: Any = typer.main.get_command(cli)
    for name in root.commands:
        yield from _leaves((name,), load_command(name))


def _leaves(path: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    if command.invoke_without_command:
        yield path, command
    for name, child in command.commands.items():
        yield from _leaves((*path, name), child)
