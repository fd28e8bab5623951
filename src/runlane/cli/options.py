"""Options and arguments that several commands have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

_UNITS: Final = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)")


def duration(help: str, **settings: Any) -> Any:  # noqa: A002 - the name that Typer has for it
    """Return an option for a time span, which a command gets in seconds."""
    return typer.Option(help=help, metavar="DURATION", parser=_seconds, **settings)


def _seconds(text: str | float) -> float:
    """Return the seconds of a duration such as 90, 90s, 1.5m, 2h or 7d."""
    found = _DURATION.fullmatch(str(text).strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a valid duration. Write 90, 90s, 15m, 2h or 7d.")
    return float(found[1]) * _UNITS[found[2]]


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Url = Annotated[
    str | None, typer.Option(envvar="RUNLANE_URL", help="URL of the server. Without it: use the database directly.")
]
ServerUrl = Annotated[
    str | None, typer.Option("--url", envvar="RUNLANE_URL", help="URL of the server. Default: http://127.0.0.1:8765")
]
ApiKey = Annotated[str | None, typer.Option(envvar="RUNLANE_API_KEY", help="API key of the server.", show_envvar=True)]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of entries.")]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target", "--task", help="Only runs of this task, or of orchestration:ID or agent:ID.", metavar="NAME"
    ),
]
Before = Annotated[str | None, typer.Option(help="Continue after this id, the last one of the previous page.")]

# Processes.
AppPath = Annotated[
    str | None,
    typer.Argument(
        help="module:name of your App, such as shop.tasks:app. Not needed for orchestrations and agents.",
        metavar="APP",
    ),
]
Lanes = Annotated[str | None, typer.Option(help="Serve only these lanes, comma-separated. Default: all.")]
Concurrency = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of concurrent runs in this process (RUNLANE_CONCURRENCY).")
]
Port = Annotated[
    int | None, typer.Option(min=0, max=65535, help="Port of the API. Default: 8765; 0 selects a free one.")
]

NoUi = Annotated[bool, typer.Option("--no-ui", help="Serve the API without the dashboard (RUNLANE_UI=false).")]

Graphs = Annotated[
    Path | None,
    typer.Option(
        "--graphs",
        metavar="FILE",
        help="Host the LangGraph graphs of this file (RUNLANE_GRAPHS_FILE). Default: aegra.json or langgraph.json "
        "in the current folder.",
    ),
]

# Definitions.
Dir = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder with definitions (RUNLANE_DEFINITIONS_DIR). Default: definitions."),
]
AppOption = Annotated[
    str | None, typer.Option("--app", help="module:name of your App, to check the tasks that steps name.")
]
Tenant = Annotated[str | None, typer.Option(help="The tenant. Default: default; on a server, the tenant of the key.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Also change definitions of another source, and take over their ownership.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Report what would happen and change nothing.")]

# Runs.
Timeout = Annotated[
    float | None, duration("Stop watching after this time, such as 90s or 15m, with exit code 4; the run continues.")
]
RunId = Annotated[str, typer.Argument(help="Id of the run, or a unique prefix of it.", metavar="RUN")]
After = Annotated[
    list[str] | None, typer.Option(help="Start after this run; may be given several times.", metavar="RUN")
]
OnEnd = Annotated[
    str,
    typer.Option(help="When to start: success (all completed), end (all ended) or any_failed (at least one failed)."),
]
Last = Annotated[bool, typer.Option("--last", help="Use the newest run instead of RUN.")]

# Stands for the newest run where the id of a run is expected. No id contains an "@".
NEWEST_RUN: Final = "@newest"


class RunCommand(TyperCommand):
    """A command whose first argument is RUN, which `--last` replaces."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert NEWEST_RUN as the first argument if `--last` is given, so that RUN may be left out."""
        return super().parse_args(ctx, [NEWEST_RUN, *args] if "--last" in args else args)


def moment_of(text: str, option: str) -> int:
    """Return the time that an option names, in microseconds since the epoch."""
    from runlane.domain.timestamps import parse_timestamp
    from runlane.errors import InvalidRequest

    try:
        return int(parse_timestamp(text))
    except (ValueError, OverflowError):
        raise InvalidRequest(f'{option}="{text}" is not a valid time. Write it as 2026-01-31T12:00:00Z.') from None
