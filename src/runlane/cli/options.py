"""Options and arguments that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

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
RunId = Annotated[str, typer.Argument(help="The run's id.", metavar="RUN")]
