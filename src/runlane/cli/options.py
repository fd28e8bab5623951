"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

Url = Annotated[
    str | None, typer.Option(envvar="RUNLANE_URL", help="Ask the server there. Without it: the database directly.")
]
ServerUrl = Annotated[
    str | None, typer.Option("--url", envvar="RUNLANE_URL", help="The server. Default: http://127.0.0.1:8765")
]
ApiKey = Annotated[str | None, typer.Option(envvar="RUNLANE_API_KEY", help="The server's key.", show_envvar=True)]
Timeout = Annotated[
    float | None, typer.Option(min=0, help="Stop watching after so many seconds, with exit code 4; the run goes on.")
]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="The API's port; 8765 by default, 0 for a free one.")]
RunId = Annotated[
    str, typer.Argument(help="The run's id, or as many of its first characters as are unique.", metavar="RUN")
]

Last = Annotated[bool, typer.Option("--last", help="Use the newest run in place of RUN.")]

# Stands for the newest run where a run's id is expected. No id contains an "@".
NEWEST_RUN: Final = "@newest"


def run_or_last(run: str, last: bool) -> str:
    """Return what a command was given as its run."""
    return NEWEST_RUN if last else run


class RunCommand(TyperCommand):
    """A command whose first argument is RUN, which `--last` replaces."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Fill the place of RUN if `--last` is given, so that the arguments behind RUN keep their places."""
        return super().parse_args(ctx, [NEWEST_RUN, *args] if "--last" in args else args)
