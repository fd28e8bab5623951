"""`runlane links`: action links, which answer one question for one person without a key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from runlane.cli.backend import open_client
from runlane.cli.options import ApiKey, Json, Url
from runlane.cli.output import format_time, print_json, print_result, print_rows, shorten
from runlane.cli.terminal import write_line
from runlane.domain.action_link import MAX_LINK_SECONDS
from runlane.domain.text import dump_json
from runlane.domain.wire import to_dict
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.client import Client
    from runlane.domain.action_link import ActionLink

T = TypeVar("T")

app = typer.Typer()

_MAX_TEXT = 60


@app.command()
def create(
    run: Annotated[str, typer.Argument(help="Id of the run.", metavar="RUN")],
    step: Annotated[str, typer.Argument(help="Path of the question; see: runlane inbox", metavar="STEP")],
    person: Annotated[
        str, typer.Option(help="The person who receives the link; recorded with the answer and in the audit log.")
    ],
    answer: Annotated[
        str | None, typer.Option(help="The fields as a JSON object, or a string; @FILE reads a file, - reads stdin.")
    ] = None,
    field: Annotated[list[str] | None, typer.Option(help="One field as NAME=VALUE. May be repeated.")] = None,
    expires_hours: Annotated[float, typer.Option(help="Hours until it expires, at most 72.")] = MAX_LINK_SECONDS / 3600,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Create a link that answers a question without a key. Its URL is printed once."""
    from runlane.cli.question_form import parse_answer, parse_fields

    if (answer is None) == (not field):
        raise InvalidRequest("Give the answer of the link: either --answer or --field.")
    response = parse_fields(field) if field else parse_answer(answer or "")

    async def work(client: Client) -> ActionLink:
        seconds = int(expires_hours * 3600)
        return await client.create_link(run, step, response, person=person, expires_in_seconds=seconds)

    made = _on_server(url, api_key, work)
    if json:
        print_json(to_dict(made))
        return
    write_line(made.url or "The link was made by an earlier request, whose response was lost. Revoke it.")
    write_line(f"Link {made.id} for {made.person}: ends {format_time(made.expires_at_us)}.")


@app.command(name="list")
def list_links(
    run: Annotated[str | None, typer.Option(help="Only links of this run.")] = None,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List the valid links, without their URLs."""
    print_rows(
        _on_server(url, api_key, lambda client: client.links(run_id=run)),
        ["link", "run", "step", "person", "answer", "made by", "ends"],
        lambda link: [
            link.id,
            link.run_id,
            link.path,
            link.person,
            shorten(link.response if isinstance(link.response, str) else dump_json(link.response), _MAX_TEXT),
            link.created_by,
            format_time(link.expires_at_us),
        ],
        empty="No links.",
        json=json,
    )


@app.command()
def revoke(
    link: Annotated[str, typer.Argument(help="Id of the link; see: runlane links list", metavar="LINK")],
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Revoke a link, on every server at once."""
    ended = _on_server(url, api_key, lambda client: client.revoke_link(link))
    print_result(to_dict(ended), f"{ended.id}: revoked.", json=json)


def _on_server(url: str | None, api_key: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Call the server. A database is not enough, because the URL of a link contains the address of its server."""
    from runlane.cli.target import server_for

    server = server_for(url, api_key)

    async def call() -> T:
        async with open_client(server.url, server.api_key) as client:
            return await work(client)

    return asyncio.run(call())
