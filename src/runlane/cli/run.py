"""`runlane run`: start a run on a server, and follow it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import open_client
from runlane.cli.follow import follow_run
from runlane.cli.interrupts import run_interruptibly
from runlane.cli.json_input import read_object
from runlane.cli.options import ApiKey, Json, ServerUrl, Timeout
from runlane.cli.output import print_result
from runlane.cli.terminal import write_line
from runlane.domain.run import AGENT, ORCHESTRATION, Accepted
from runlane.errors import InvalidInput, NotFound, UnknownDefinition, UnknownTask

if TYPE_CHECKING:
    from runlane.client import Client


def run(
    name: Annotated[str, typer.Argument(help="A task, an orchestration, or agent:AGENT.", metavar="NAME")],
    message: Annotated[
        str | None,
        typer.Option("--message", help="The message for an orchestration or an agent; NAME is not a task then."),
    ] = None,
    given: Annotated[
        str | None,
        typer.Option(
            "--input",
            help="Arguments of a task, or additional state of an orchestration, as a JSON object; @FILE reads a file, "
            "- reads stdin.",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Follow the run until it ends; the exit code is its outcome.")
    ] = False,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher values run earlier.")] = 0,
    key: Annotated[
        str | None, typer.Option(help="Ordering key: runs with the same key are executed one at a time.")
    ] = None,
    delay: Annotated[float, typer.Option(min=0, help="Seconds before the run may start.")] = 0,
    hold: Annotated[bool, typer.Option("--hold", help="Wait for an approval.")] = False,
    idempotency_key: Annotated[str | None, typer.Option(help="Requests with the same key start one run.")] = None,
    timeout: Timeout = None,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a run on a server. Exit codes with --follow: 0 completed, 1 failed, 3 cancelled, 4 timeout.

    On a terminal, the questions of an orchestration are asked here.
    """
    from runlane.cli.target import announce, server_for

    arguments = read_object(given, "--input", "the arguments by name")
    server = server_for(url, api_key)
    announce(server)
    options = {
        "priority": priority,
        "ordering_key": key,
        "delay_seconds": delay,
        "hold": hold,
        "idempotency_key": idempotency_key,
    }

    async def start() -> Accepted:
        async with open_client(server.url, server.api_key) as client:
            return await _start(client, name, message, arguments, options)

    accepted = run_interruptibly(start())
    if follow:
        # The run can be found again even if this process dies.
        write_line(accepted.run_id, err=True)
        raise typer.Exit(
            follow_run(
                accepted.run_id, timeout=timeout, url=server.url, api_key=server.api_key, json=json, may_ask=True
            )
        )
    print_result(asdict(accepted), f"{accepted.run_id}: {accepted.status}", json=json)


async def _start(
    client: Client, name: str, message: str | None, arguments: dict[str, Any], options: dict[str, Any]
) -> Accepted:
    """Start the task of this name, or the orchestration if there is a message or no such task.

    The prefixes `agent:` and `orchestration:` decide what the name means.
    """
    if name.startswith(AGENT):
        if not message:
            raise InvalidInput(f"{name} needs a message. Give it: runlane run {name} --message TEXT")
        return await client.ask(name.removeprefix(AGENT), message, arguments, **options)
    if name.startswith(ORCHESTRATION):
        return await client.orchestrate(name.removeprefix(ORCHESTRATION), message or "", arguments, **options)
    if message is not None:
        return await client.orchestrate(name, message, arguments, **options)
    try:
        return await client.enqueue(name, arguments, **options)
    except UnknownTask as no_task:
        try:
            return await client.orchestrate(name, "", arguments, **options)
        except UnknownDefinition as no_orchestration:
            raise NotFound(
                f'"{name}" is neither a task nor an orchestration of this server. {no_task} {no_orchestration}'
            ) from None
