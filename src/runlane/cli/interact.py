"""Commands for runs of orchestrations: answer them, fork them, send them events, and see what they have done."""

from __future__ import annotations

from typing import Annotated

import typer

from runlane.cli.options import ApiKey, Last, RunCommand, RunId, ServerUrl, Url, run_or_last
from runlane.cli.show import Json

of_runs = typer.Typer()
of_people = typer.Typer()


@of_people.command()
def chat(
    agent: Annotated[str, typer.Argument(help="The agent.", metavar="AGENT")],
    session: Annotated[str | None, typer.Option(help="Go on with this conversation.")] = None,
    message: Annotated[
        str | None, typer.Option(help="Say this and leave when there is an answer; - reads stdin.")
    ] = None,
    url: ServerUrl = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Talk with an agent of a server. Ctrl-C cancels the turn that is at work, not the conversation; Ctrl-D leaves.

    In a pipe every line is a message. Exit codes, of the last turn: 0 completed, 1 failed, 3 cancelled.
    """
    from runlane.cli.chat import talk

    raise typer.Exit(talk(agent, session=session, message=message, url=url, api_key=api_key, json=json))


@of_people.command()
def inbox(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 50,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """List what waits for a person, oldest first. Answer with: runlane runs resume RUN."""
    from runlane.cli.answers import show_inbox

    show_inbox(limit=limit, url=url, api_key=api_key, json=json)


@of_runs.command(cls=RunCommand)
def resume(
    run: RunId,
    answer: Annotated[
        str | None, typer.Option(help="The fields as a JSON object, or a text; @FILE reads a file, - reads stdin.")
    ] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="One field as NAME=VALUE; give it several times for several.")
    ] = None,
    step: Annotated[str | None, typer.Option(help="The id or path of the step, where several ask.")] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Answer what a run asks. On a terminal it is asked here if neither --answer nor --field is given."""
    from runlane.cli.answers import resume_run

    resume_run(
        run_or_last(run, last), answer=answer, fields=field or [], step=step, url=url, api_key=api_key, json=json
    )


@of_runs.command(cls=RunCommand)
def fork(
    run: RunId,
    from_step: Annotated[str, typer.Option("--from", help="The path of a recorded step; see: runlane runs steps.")],
    state: Annotated[
        str | None, typer.Option(help="What to change of the state, as a JSON object; @FILE or - as well.")
    ] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Start a new run at a recorded step of this one. The steps before it are taken over and not run again."""
    from runlane.cli.answers import fork_run

    fork_run(run_or_last(run, last), from_step, state=state, url=url, api_key=api_key, json=json)


@of_runs.command(cls=RunCommand)
def send(
    run: RunId,
    event: Annotated[str, typer.Argument(help="The name that a step waits for.", metavar="EVENT")],
    data: Annotated[str | None, typer.Option(help="JSON: the step's output; @FILE or - as well.")] = None,
    last: Last = False,
    url: Url = None,
    api_key: ApiKey = None,
    json: Json = False,
) -> None:
    """Give a run an event that one of its steps waits for, or will."""
    from runlane.cli.answers import send_event

    send_event(run_or_last(run, last), event, data=data, url=url, api_key=api_key, json=json)


@of_runs.command(cls=RunCommand)
def steps(run: RunId, last: Last = False, url: Url = None, api_key: ApiKey = None, json: Json = False) -> None:
    """List what a run has finished, in order."""
    from runlane.cli.answers import show_steps

    show_steps(run_or_last(run, last), url=url, api_key=api_key, json=json)
