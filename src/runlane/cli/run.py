"""`runlane run`: start a run on a server, and follow it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runlane.cli.backend import open_client
from runlane.cli.follow import follow_run
from runlane.cli.interrupts import run_interruptibly
from runlane.cli.json_input import read_bytes, read_object
from runlane.cli.options import After, ApiKey, Json, OnEnd, ServerUrl, Timeout, duration
from runlane.cli.output import print_result
from runlane.cli.terminal import write_line
from runlane.domain.run import AGENT, ORCHESTRATION, Accepted
from runlane.errors import InvalidInput, NotFound, UnknownDefinition, UnknownTask

if TYPE_CHECKING:
    from runlane.cli.target import ServerTarget
    from runlane.client import Client

Message = Annotated[
    str | None,
    typer.Option("--message", help="The message for an orchestration or an agent; NAME must not be a task."),
]
Follow = Annotated[bool, typer.Option("--follow", help="Follow the run until it ends; the exit code is its outcome.")]
OrderingKey = Annotated[
    str | None, typer.Option("--key", help="Ordering key: runs with the same key are executed one at a time.")
]
FairnessKey = Annotated[
    str | None, typer.Option(help="Fairness key: runs with different keys get equal shares of the starts in a lane.")
]


Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        help="Arguments of a task, or additional state of an orchestration, as a JSON object; @FILE reads a file, "
        "- reads stdin.",
    ),
]
FlowControlRules = Annotated[
    str | None,
    typer.Option(
        "--flow-control",
        help="Rules that replace the declared ones, as a JSON object by name; null removes one. @FILE reads a file.",
    ),
]
ExpiresAfter = Annotated[float | None, duration("Cancel the run if it has not started after this time, such as 15m.")]
_MAX_SECRET = 1024
SecretFile = Annotated[Path | None, typer.Option(help="Sign the webhook with the secret in this file; - reads stdin.")]


def run(
    name: Annotated[str, typer.Argument(help="A task, an orchestration, or agent:AGENT.", metavar="NAME")],
    message: Message = None,
    given: Input = None,
    follow: Follow = False,
    priority: Annotated[int, typer.Option(help="-100 to 100; higher values run earlier.")] = 0,
    key: OrderingKey = None,
    delay: Annotated[float, duration("The time before the run may start, such as 90s or 2h.")] = 0,
    hold: Annotated[bool, typer.Option("--hold", help="Hold the run until it is approved.")] = False,
    fairness_key: FairnessKey = None,
    after: After = None,
    after_on: OnEnd = "success",
    tag: Annotated[list[str] | None, typer.Option(help="Tag of the run, for lists. May be repeated.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Requests with the same key start one run.")] = None,
    flow_control: FlowControlRules = None,
    unique_key: Annotated[str | None, typer.Option(help="At most one open run of NAME has this key.")] = None,
    expires_after: ExpiresAfter = None,
    webhook_url: Annotated[str | None, typer.Option(help="URL to call when the run ends.")] = None,
    webhook_secret_file: SecretFile = None,
    timeout: Timeout = None,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a run on a server. Exit codes with --follow: 0 completed, 1 failed, 3 cancelled, 4 timeout.

    On a terminal, the command asks the questions of an orchestration.
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
        "after": after or (),
        "after_on": after_on,
        "tags": tag or (),
        "idempotency_key": idempotency_key,
        "fairness_key": fairness_key,
        "webhook_url": webhook_url,
        "webhook_secret": _secret(webhook_secret_file),
        "flow_control": _flow_control(flow_control, unique_key, expires_after),
    }

    accepted = run_interruptibly(_start_on(server, name, message, arguments, options))
    if not follow or not accepted.run_id:
        _print_start(accepted, json=json)
        return
    # With the id, the run can be found even if this process dies.
    write_line(accepted.run_id, err=True)
    end = follow_run(accepted.run_id, timeout=timeout, url=server.url, api_key=server.api_key, json=json, may_ask=True)
    raise typer.Exit(end)


def _print_start(accepted: Accepted, *, json: bool) -> None:
    shown = f"{accepted.run_id}: {accepted.status}" if accepted.run_id else f"{accepted.outcome}: no run was started"
    fields = asdict(accepted)
    # Only the process that accepted the run uses this field.
    del fields["due_in_us"]
    print_result(fields, shown, json=json)


def _flow_control(given: str | None, unique_key: str | None, expires_after: float | None) -> dict[str, Any] | None:
    """Return the rules of the options. `--unique-key` and `--expires-after` take precedence over `--flow-control`."""
    rules = read_object(given, "--flow-control", "rules by name")
    if unique_key is not None:
        declared: Any = rules.get("unique")
        rules["unique"] = {**(declared or {}), "key": unique_key}
    if expires_after is not None:
        rules["expires_after_seconds"] = expires_after
    return rules or None


def _secret(file: Path | None) -> str | None:
    """Return the secret in a file: arguments are visible to every process of the machine."""
    if file is None:
        return None
    return read_bytes(None if str(file) == "-" else file, _MAX_SECRET).decode("utf-8", "replace").strip()


async def _start_on(
    server: ServerTarget, name: str, message: str | None, arguments: dict[str, Any], options: dict[str, Any]
) -> Accepted:
    async with open_client(server.url, server.api_key) as client:
        return await _start(client, name, message, arguments, options)


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
