"""`runlane inbox`: the questions that wait for a person."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from runlane.cli.options import ApiKey, Json, Limit, Url
from runlane.cli.output import format_time, print_rows, shorten
from runlane.domain.text import dump_json

if TYPE_CHECKING:
    from runlane.domain.wait import Question

_MAX_TEXT: Final = 80


def inbox(limit: Limit = 50, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List the questions that wait for a person, oldest first. Answer with: runlane runs resume RUN."""
    from runlane.cli.run_backend import first, with_runs

    print_rows(
        with_runs(url, api_key, lambda runs: first(runs.inbox(page=limit), limit)),
        ["run", "step", "of", "asks", "fields", "since", "until", "context"],
        _cells,
        empty="No questions wait for a person.",
        json=json,
    )


def _cells(question: Question) -> list[Any]:
    return [
        question.run_id,
        question.path,
        question.target,
        shorten(question.prompt or question.name, _MAX_TEXT),
        ",".join(str(field["name"]) for field in question.fields) or "-",
        format_time(question.opened_at_us),
        format_time(question.due_at_us),
        _context(question.context),
    ]


def _context(context: Any) -> str:
    """Return the context of a question; for a tool call, its arguments."""
    if context in (None, ""):
        return "-"
    shown: Any = context
    if isinstance(context, Mapping):
        shown = cast("Mapping[str, Any]", context).get("arguments", context)
    return shorten(shown if isinstance(shown, str) else dump_json(shown), _MAX_TEXT)
