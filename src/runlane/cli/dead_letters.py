"""`runlane dead-letters`: the runs that failed for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import on_own_database
from runlane.cli.options import Json, Limit
from runlane.cli.output import format_time, print_json, print_rows
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping


def dead_letters(
    run: Annotated[str | None, typer.Argument(help="Show only this run, with all details.", metavar="RUN")] = None,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """List runs that failed for good, or show one with its input, attempts and tracebacks."""
    from runlane.cli.target import check_exists, refuse_url
    from runlane.settings import load_settings
    from runlane.store.queue.dead_letters import list_dead_letters, read_dead_letter

    refuse_url("dead-letters", "List failed runs of a server: runlane runs list --status failed. Or unset RUNLANE_URL.")
    check_exists(load_settings())
    if run is not None:
        letter = on_own_database(lambda database: read_dead_letter(database, run))
        if letter is None:
            raise InvalidRequest(f"Run {run} has no dead letter. List them: runlane dead-letters")
        print_json(letter)
        return
    print_rows(
        on_own_database(lambda database: list_dead_letters(database, limit)),
        ["run", "task", "lane", "died", "attempts", "error"],
        _cells,
        empty="No dead letters.",
        json=json,
        to_dict=lambda letter: letter,
    )


def _cells(letter: Mapping[str, Any]) -> list[Any]:
    error = f"{letter['error'].get('type')}: {letter['error'].get('message')}"
    died = format_time(letter["died_at_us"])
    return [letter["run_id"], letter["target"], letter["lane"], died, len(letter["attempts"]), error[:120]]
