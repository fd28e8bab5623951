"""Filter options of commands, for the properties of runs that have no index and are checked run by run."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import duration

Parent = Annotated[str | None, typer.Option(help="Only runs that this run started as tools.")]
ForkedFrom = Annotated[str | None, typer.Option(help="Only forks of this run.")]
Worker = Annotated[str | None, typer.Option(help="Only runs that this worker executed last.")]
ChatSession = Annotated[str | None, typer.Option(help="Only runs of this chat session.")]
ErrorCode = Annotated[str | None, typer.Option(help="Only runs with this error code or type.")]
PinnedTo = Annotated[
    str | None, typer.Option(help="Only runs of this version of their orchestration or agent.", metavar="VERSION")
]
Roots = Annotated[bool, typer.Option("--roots", help="Exclude runs that other runs started as tools.")]
Longer = Annotated[float | None, duration("Only runs that took at least this time.")]
Shorter = Annotated[float | None, duration("Only runs that took at most this time.")]
MinCost = Annotated[float | None, typer.Option(help="Only runs that cost at least this many dollars.")]
MaxCost = Annotated[float | None, typer.Option(help="Only runs that cost at most this many dollars.")]
