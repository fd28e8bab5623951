"""What `runs resume`, `fork`, `send` and `steps` and `inbox` do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar, cast

import orjson

from runlane.cli.follow import read_object, read_value
from runlane.cli.show import clock, print_json, print_table, span
from runlane.cli.source import RunSource, find_run_id, open_source
from runlane.cli.terminal import write_line
from runlane.domain.run import Accepted, Status
from runlane.domain.text import dump_json
from runlane.errors import InvalidRequest

if TYPE_CHECKING:
    from runlane.client import Question

T = TypeVar("T")

_SHOWN = 80


def _with_source(url: str | None, api_key: str | None, work: Callable[[RunSource], Awaitable[T]]) -> T:
    async def run() -> T:
        async with open_source(url, api_key) as source:
            return await work(source)

    return asyncio.run(run())


def show_inbox(*, limit: int, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane inbox`."""
    questions = _with_source(url, api_key, lambda source: source.inbox(limit))
    if json:
        print_json([asdict(question) for question in questions])
        return
    print_table(
        ["run", "step", "of", "asks", "fields", "since", "until", "about"],
        [
            [question.run_id, question.path, question.target, _short(question.prompt or question.name),
             ",".join(str(field["name"]) for field in question.fields) or "-", clock(question.opened_at_us),
             clock(question.due_at_us), _about(question.context)]
            for question in questions
        ],
        "Nothing waits for a person.",
    )  # fmt: skip


def resume_run(
    run: str,
    *,
    answer: str | None,
    fields: Sequence[str],
    step: str | None,
    url: str | None,
    api_key: str | None,
    json: bool,
) -> None:
    """`runlane runs resume`."""
    if answer is not None and fields:
        raise InvalidRequest("--answer and --field contradict each other. Give one of them.")
    given = read_fields(fields) if fields else {} if answer is None else read_answer(answer)
    by_hand = answer is None and not fields and sys.stdin.isatty() and sys.stdout.isatty()

    async def work(source: RunSource) -> tuple[str, Status]:
        run_id = await find_run_id(source, run)
        response, at = given, step
        if by_hand:
            question = choose(await source.waits(run_id), step)
            if question is not None:
                from runlane.cli.ask import ask, interruptible

                try:
                    with interruptible():
                        response, at = ask(question), question.path
                except EOFError:
                    raise InvalidRequest("No answer was given, so nothing was changed.") from None
        return run_id, await source.resume(run_id, response, at)

    _print_change(*_with_source(url, api_key, work), json=json)


def fork_run(run: str, path: str, *, state: str | None, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs fork`."""
    edits = read_object(state, "--state", "what to change of the state")

    async def work(source: RunSource) -> Accepted:
        return await source.fork(await find_run_id(source, run), path, edits)

    accepted = _with_source(url, api_key, work)
    if json:
        print_json(asdict(accepted))
    else:
        write_line(f"{accepted.run_id}: {accepted.status}")


def send_event(run: str, name: str, *, data: str | None, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs send`."""
    value = None if data is None else read_value(data, "--data")

    async def work(source: RunSource) -> tuple[str, Status]:
        run_id = await find_run_id(source, run)
        return run_id, await source.send_event(run_id, name, value)

    _print_change(*_with_source(url, api_key, work), json=json)


def show_steps(run: str, *, url: str | None, api_key: str | None, json: bool) -> None:
    """`runlane runs steps`."""

    async def work(source: RunSource) -> Sequence[Mapping[str, Any]]:
        run_id = await find_run_id(source, run)
        await source.get(run_id)
        return await source.steps(run_id)

    steps = _with_source(url, api_key, work)
    if json:
        print_json(steps)
    else:
        print_table(
            ["step", "kind", "outcome", "took", "tries", "cost", "tokens", "came to"],
            [step_cells(step) for step in steps],
            "No steps are recorded.",
        )


def step_cells(step: Mapping[str, Any]) -> list[Any]:
    """A recorded step as cells of a table."""
    error: Mapping[str, Any] | None = step["error"]
    outcome = f"{error.get('code')}: {error.get('message')}" if error else dump_json(step["output"])
    route = f"-> {step['route']}  " if step["route"] else ""
    cost = None if step["cost_usd"] is None else f"${step['cost_usd']:.4f}"
    took = None if step["duration_us"] is None else span(0, step["duration_us"])
    return [
        step["path"], step["kind"], step["outcome"], took, step["tries"], cost, step["tokens"], route + _short(outcome),
    ]  # fmt: skip


def choose(waits: Sequence[Question], step: str | None) -> Question | None:
    """The open question to ask; None leaves it to the server to say what is wrong."""
    fitting = [
        wait
        for wait in waits
        if wait.kind == "human" and wait.answered_at_us is None and step in (None, wait.path, wait.step_id)
    ]
    return fitting[0] if len(fitting) == 1 else None


def read_fields(fields: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE by name; a name that comes again makes a list."""
    found: dict[str, list[str]] = {}
    for text in fields:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise InvalidRequest(f"--field {text!r} has no name and value. Form: --field decision=approve")
        found.setdefault(name.strip(), []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def read_answer(given: str) -> dict[str, Any] | str:
    """An object with fields, or a text as it is."""
    if given == "-" or given.startswith(("@", "{")):
        return read_object(given, "--answer", "the fields by name")
    try:
        value = orjson.loads(given)
    except orjson.JSONDecodeError:
        return given
    return value if isinstance(value, str) else given


def _print_change(run_id: str, status: Status, *, json: bool) -> None:
    if json:
        print_json({"run_id": run_id, "status": status})
    else:
        write_line(f"{run_id}: {status}")


def _about(context: Any) -> str:
    """What a question is about; of a call of a tool, its arguments."""
    if context in (None, ""):
        return "-"
    shown: Any = context
    if isinstance(context, Mapping):
        shown = cast("Mapping[str, Any]", context).get("arguments", context)
    return _short(shown if isinstance(shown, str) else dump_json(shown))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 3] + "..."
