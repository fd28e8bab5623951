"""Whole orchestrations in one process: what a run does, stores and emits, on either database."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import update

from runlane import Context, NotFound, Status, Unavailable, WrongState
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.definitions.schema.definition import Agent, Definition, McpServer, Orchestration, Tool
from runlane.errors import InvalidInput, UnknownDefinition
from runlane.orchestration import attempt
from runlane.orchestration import waits as open_waits
from runlane.store.orchestration.inbox import InboxFilter, read_inbox
from runlane.store.orchestration.steps import read_steps
from runlane.store.orchestration.waits import read_waits
from runlane.store.sql.schema import run_inputs
from runlane.store.sql.statement import Statement
from tests.harness import eventually
from tests.integration.process import Process

FOLDERS: dict[type[Definition], str] = {
    Orchestration: "orchestrations",
    Agent: "agents",
    Tool: "tools",
    McpServer: "mcp_servers",
}


async def sync(process: Process, *definitions: Definition) -> None:
    bodies: dict[str, list[Any]] = {}
    for definition in definitions:
        body = definition.model_dump(mode="json", by_alias=True, exclude_unset=True)
        bodies.setdefault(FOLDERS[type(definition)], []).append(body)
    await sync_definitions(await process.app.database(), "default", parse_bodies(bodies), actor="test")


def flow(*steps: dict[str, Any], **fields: Any) -> Orchestration:
    """Return an orchestration whose steps follow each other unless they have a `next_step_id`."""
    whole: list[dict[str, Any]] = []
    for number, step in enumerate(steps):
        following = steps[number + 1]["id"] if number + 1 < len(steps) else None
        routed = step["type"] in ("if_else", "switch", "evaluator", "end")
        whole.append(
            step if "next_step_id" in step or routed or following is None else {**step, "next_step_id": following}
        )
    return Orchestration.model_validate({"id": "flow", "steps": whole, **fields})


def say(name: str, text: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "print", "print_content": text, "output_key": name, **more}


def compute(name: str, code: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "type": "transform", "transform_code": code, "output_key": name, **more}


async def run(process: Process, *definitions: Definition, message: str = "", **fields: Any) -> Any:
    await sync(process, *definitions)
    accepted = await process.app.orchestrate(definitions[0].id, message, **fields)
    return await process.app.wait(accepted.run_id, timeout=30)


async def event_types(process: Process, run_id: str) -> list[str]:
    return [event.type for event in await process.app.events(run_id)]


async def test_steps_follow_each_other_and_the_last_output_is_the_result(process: Process) -> None:
    await process.start()
    ended = await run(
        process,
        flow(
            say("hello", "Hello {state.user_input}"),
            {
                "id": "twice",
                "type": "transform",
                "transform_code": "result = state['hello'] * 2",
                "output_key": "twice",
            },
            {"id": "check", "type": "if_else", "if_condition": "len(state.twice) > 3", "if_true_step_id": "yes"},
            say("yes", "long: {{twice}}"),
        ),
        message="Ada",
    )
    assert ended.status is Status.COMPLETED
    assert ended.result == "long: Hello AdaHello Ada"
    assert ended.state["twice"] == "Hello AdaHello Ada"
    steps = await read_steps(await process.app.database(), ended.id)
    assert [(step["path"], step["outcome"]) for step in steps] == [
        ("hello", "done"), ("twice", "done"), ("check", "done"), ("yes", "done"),
    ]  # fmt: skip
    types = await event_types(process, ended.id)
    assert types[:4] == ["queued", "worker_picked_up", "orchestration_start", "step_start"]
    assert types[-3:] == ["orchestration_complete", "final", "done"]
    assert types.count("step_complete") == 4
    assert types.count("if_decision") == 1


async def test_an_unknown_orchestration_is_refused(process: Process) -> None:
    await process.start()
    with pytest.raises(UnknownDefinition):
        await process.app.orchestrate("nothing")


async def test_a_failed_step_fails_the_run_and_a_retry_continues_there(process: Process) -> None:
    calls: list[str] = []

    @process.app.task("first")
    async def first(ctx: Context) -> str:
        calls.append("first")
        return "one"

    @process.app.task("second")
    async def second(ctx: Context) -> str:
        calls.append("second")
        if calls.count("second") == 1:
            raise RuntimeError("not today")
        return "two"

    await process.start()
    ended = await run(
        process,
        flow(
            {"id": "a", "type": "task", "task": "first", "output_key": "a"},
            {"id": "b", "type": "task", "task": "second", "output_key": "b"},
        ),
    )
    assert ended.status is Status.FAILED
    assert ended.error["type"] == "task_error"
    assert "not today" in ended.error["message"]
    await process.app.retry(ended.id)
    ended = await process.app.wait(ended.id, timeout=30)
    assert ended.result == "two"
    assert calls == ["first", "second", "second"]
    steps = await read_steps(await process.app.database(), ended.id)
    assert [(step["path"], step["outcome"]) for step in steps] == [("a", "done"), ("b", "done")]


async def test_a_step_is_retried_according_to_its_policy(process: Process) -> None:
    tries = 0

    @process.app.task("shaky")
    def shaky(ctx: Context) -> int:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise RuntimeError("again")
        return tries

    await process.start()
    retry = {"attempts": 3, "backoff_seconds": 0.01}
    ended = await run(process, flow({"id": "a", "type": "task", "task": "shaky", "retry": retry}))
    assert ended.result == 3
    types = await event_types(process, ended.id)
    assert types.count("step_retry") == 2
    assert types.count("step_start") == 1


async def test_an_error_route_takes_a_failure(process: Process) -> None:
    await process.start()
    ended = await run(
        process,
        flow(
            {
                "id": "bad",
                "type": "transform",
                "transform_code": "result = 1 / 0",
                "on_error": "sorry",
                "next_step_id": None,
            },
            say("sorry", "failed: {state.error.code}", next_step_id=None),
        ),
    )
    assert ended.status is Status.COMPLETED
    assert ended.result == "failed: expression_error"


async def test_branches_run_at_the_same_time_and_meet(process: Process) -> None:
    all_of_them = asyncio.Barrier(3)

    @process.app.task("work")
    async def work(ctx: Context, name: str) -> str:
        # One after the other, they would wait here until the test gives up.
        await all_of_them.wait()
        return name.upper()

    await process.start()
    branches = [{"id": name, "type": "task", "task": "work", "arguments": {"name": name}, "output_key": name,
                 "next_step_id": "join"} for name in ("x", "y", "z")]  # fmt: skip
    ended = await run(
        process,
        Orchestration.model_validate(
            {
                "id": "fan",
                "entry_step_id": "split",
                "steps": [
                    {
                        "id": "split",
                        "type": "parallel",
                        "parallel_branches": [["x"], ["y"], ["z"]],
                        "next_step_id": "join",
                    },
                    *branches,
                    {
                        "id": "join",
                        "type": "merge",
                        "merge_strategy": "dict",
                        "input_keys": ["x", "y", "z"],
                        "output_key": "all",
                    },
                ],
            }
        ),
    )
    assert sorted(ended.result.values()) == ["X", "Y", "Z"]


ASK = {
    "id": "ask",
    "type": "human",
    "human_prompt": "Publish {state.draft}?",
    "human_fields": [{"name": "decision", "type": "select", "options": "approve,reject", "required": True}],
    "output_key": "answer",
}


async def paused(process: Process, *definitions: Definition) -> str:
    await sync(process, *definitions)
    accepted = await process.app.orchestrate(definitions[0].id, "m")
    await eventually(lambda: _has(process, accepted.run_id, Status.PAUSED))
    return accepted.run_id


async def _has(process: Process, run_id: str, status: Status) -> bool:
    return (await process.app.get(run_id)).status is status


async def test_a_person_is_asked_and_the_answer_is_checked(process: Process) -> None:
    await process.start()
    run_id = await paused(process, flow(say("draft", "this"), ASK, say("end", "it is {state.answer.decision}")))
    database = await process.app.database()
    (waiting,), _ = await read_inbox(database, InboxFilter("default"))
    assert waiting.request["prompt"] == "Publish this?"
    with pytest.raises(InvalidInput, match="decision"):
        await process.app.resume(run_id, {"decision": "maybe"})
    await process.app.resume(run_id, {"decision": "approve"}, answered_by="ada")
    ended = await process.app.wait(run_id, timeout=30)
    assert ended.result == "it is approve"
    assert ended.state is not None
    assert ended.state["human_response"] == {"decision": "approve"}
    with pytest.raises(WrongState):
        await process.app.resume(run_id, {"decision": "approve"})
    types = await event_types(process, run_id)
    assert [types.count(name) for name in ("human_input_required", "paused", "resumed", "done")] == [1, 1, 1, 1]
    assert (await read_inbox(database, InboxFilter("default")))[0] == []


async def test_an_unanswered_question_takes_its_fallback(process: Process) -> None:
    await process.start()
    ask = {**ASK, "human_prompt": "?", "expires_after_seconds": 0.2, "on_expiry": "late"}
    ended = await run(process, flow(ask, say("end", "answered", next_step_id=None), say("late", "too late")))
    assert ended.result == "too late"
    (expired,) = [event.data for event in await process.app.events(ended.id) if event.data.get("expired")]
    assert expired["path"] == ask["id"]


async def test_an_answer_in_time_counts_while_another_branch_is_busy(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker learns of the deadline before it has loaded the answer that was stored in time."""
    gate, asked = asyncio.Event(), asyncio.Event()
    passed_seconds = 0.0
    monkeypatch.setattr(attempt, "_ANSWER_SECONDS", 3600.0)
    monkeypatch.setattr(open_waits, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + passed_seconds))

    @process.app.task("busy")
    async def busy(ctx: Context) -> None:
        asked.set()
        await gate.wait()

    await process.start()
    fan = {"id": "fan", "type": "parallel", "parallel_branches": [["ask"], ["work"]], "next_step_id": "end"}
    ask = {**ASK, "human_prompt": "?", "expires_after_seconds": 3600}
    work = {"id": "work", "type": "task", "task": "busy", "next_step_id": None}
    steps = [fan, {**ask, "next_step_id": None}, work, say("end", "{state.answer.decision}")]
    await sync(process, flow(*steps, entry_step_id="fan"))
    accepted = await process.app.orchestrate("flow", "m")
    await asked.wait()
    await eventually(lambda: _asked(process))
    await process.app.resume(accepted.run_id, {"decision": "approve"})
    passed_seconds = 7200.0
    gate.set()
    assert (await process.app.wait(accepted.run_id, timeout=30)).result == "approve"


async def _asked(process: Process) -> bool:
    return bool((await read_inbox(await process.app.database(), InboxFilter("default")))[0])


async def _about(process: Process, run_id: str, path: str) -> list[str]:
    """Return the events with which the executions of a step ended."""
    events = await process.app.events(run_id)
    ends = ("step_complete", "step_error", "step_retry")
    return [event.type for event in events if event.type in ends and event.data["path"] == path]


async def test_an_unanswered_question_is_only_reported_as_failed(process: Process) -> None:
    await process.start()
    ask = {**ASK, "human_prompt": "?", "expires_after_seconds": 0.2}
    ended = await run(process, flow(ask, say("end", "answered")))
    assert ended.status is Status.FAILED
    assert await _about(process, ended.id, "ask") == ["step_error"]
    (step,) = await read_steps(await process.app.database(), ended.id)
    assert (step["outcome"], step["error"]["code"]) == ("failed", "expired")


async def test_a_question_that_is_asked_again_fails_once_each_time(process: Process) -> None:
    await process.start()
    retry = {"attempts": 2, "backoff_seconds": 0, "on": ["expired"]}
    ask = {**ASK, "human_prompt": "?", "expires_after_seconds": 0.2, "retry": retry, "on_error": "late"}
    ended = await run(process, flow(ask, say("end", "answered", next_step_id=None), say("late", "too late")))
    assert ended.result == "too late"
    assert await _about(process, ended.id, "ask") == ["step_retry"]
    assert await _about(process, ended.id, "ask~2") == ["step_error"]


async def test_a_value_that_the_state_refuses_fails_its_step(process: Process) -> None:
    await process.start()
    ended = await run(process, flow(say("a", "text"), state_schema={"a": {"type": "integer"}}))
    assert ended.status is Status.FAILED
    assert await _about(process, ended.id, "a") == ["step_error"]


async def test_a_retry_on_a_named_code_is_made_even_if_the_error_would_not_pass(process: Process) -> None:
    await process.start()
    retry = {"attempts": 3, "backoff_seconds": 0, "on": ["no_json"]}
    step = {"id": "find", "type": "extract_json", "required": True, "input_keys": ["user_input"], "retry": retry}
    ended = await run(process, flow(step), message="nothing")
    assert ended.status is Status.FAILED
    assert await _about(process, ended.id, "find") == ["step_retry", "step_retry", "step_error"]


@pytest.mark.parametrize("on_limit", ["fail", "continue"])
async def test_a_loop_that_reaches_its_limit_reports_it(process: Process, on_limit: str) -> None:
    await process.start()
    count = compute("number", "result = (state['number'] or 0) + 1", max_iterations=3, on_limit=on_limit)
    back = {"id": "back", "type": "if_else", "if_condition": "True", "if_true_step_id": "number", "on_limit": on_limit}
    schema = {"number": {"type": "integer"}}
    steps = flow(count, say("draft", "draft {state.number}", on_limit=on_limit), back, state_schema=schema)
    ended = await run(process, steps)
    events = list(await process.app.events(ended.id))
    done = [event.data["path"] for event in events if event.type == "step_complete"]
    assert [path for path in done if path.startswith("number")] == ["number", "number~2", "number~3"]
    assert "loop_limit_reached" in [event.type for event in events]
    (end,) = [event.data for event in events if event.type == "orchestration_complete"]
    if on_limit == "fail":
        assert ended.status is Status.FAILED
        assert (ended.error["type"], ended.error["step"]) == ("loop_limit", "number")
        assert end["error"]["code"] == "loop_limit"
    else:
        assert ended.status is Status.COMPLETED
        assert end["loop_limits"][0] == "number"


async def test_a_failed_step_ends_the_run_whatever_its_max_attempts_are(process: Process) -> None:
    await process.start()
    bad = flow(compute("bad", "result = 1 / 0"), max_attempts=3)
    ended = await run(process, bad)
    assert (ended.status, ended.attempt, ended.failures) == (Status.FAILED, 1, 1)


async def test_max_attempts_counts_the_tries_after_errors_that_are_not_a_steps(process: Process) -> None:
    await sync(process, flow(say("a", "text"), max_attempts=2))
    accepted = await process.app.orchestrate("flow")
    database = await process.app.database()
    # The version that the run is pinned to does not exist, which no step can be blamed for.
    lost = Statement("lose_version", update(run_inputs).values(plan='{"pins": {"orchestration:flow": "gone"}}'))
    await database.transact(lambda session: session.fetch(lost))
    await process.start()
    ended = await process.app.wait(accepted.run_id, timeout=60)
    assert (ended.status, ended.attempt, ended.failures) == (Status.FAILED, 2, 2)


async def test_a_wait_and_an_event_hold_no_slot(process: Process) -> None:
    await process.start()
    definition = flow(
        {"id": "nap", "type": "wait", "seconds": 0.3},
        {"id": "paid", "type": "wait", "event": "payment", "output_key": "payment"},
        say("end", "got {state.payment.amount}"),
    )
    run_id = await paused(process, definition)
    # The pause is stored a moment before the worker gets the verdict.
    await eventually(lambda: process.workers[0].active == 0, "the slot to be free")
    await process.app.send_event(run_id, "payment", {"amount": 7})
    ended = await process.app.wait(run_id, timeout=30)
    assert ended.result == "got 7"


async def test_a_fork_goes_another_way_without_repeating_what_was_done(process: Process) -> None:
    calls: list[str] = []

    @process.app.task("note")
    async def note(ctx: Context, text: str) -> str:
        calls.append(text)
        return text

    await process.start()
    first = await run(
        process,
        flow(
            {"id": "a", "type": "task", "task": "note", "arguments": {"text": "a"}, "output_key": "a"},
            {"id": "b", "type": "task", "task": "note", "arguments": {"text": "{state.a} b"}, "output_key": "b"},
        ),
    )
    assert first.result == "a b"
    accepted = await process.app.fork(first.id, "b", {"a": "changed"})
    forked = await process.app.wait(accepted.run_id, timeout=30)
    assert forked.result == "changed b"
    assert calls == ["a", "a b", "changed b"]
    assert forked.plan is not None
    assert forked.plan["fork"]["run_id"] == first.id
    again = await process.app.fork(forked.id, "b", {"a": "again"})
    forks = {origin: [run.id async for run in process.app.list(forked_from=origin)] for origin in (first.id, forked.id)}
    assert forks == {first.id: [forked.id], forked.id: [again.run_id]}
    assert forked.tags == ()
    with pytest.raises(NotFound):
        await process.app.fork(first.id, "nowhere")


async def test_a_fork_of_a_fork_keeps_the_changes_of_both(process: Process) -> None:
    await process.start()
    steps = [say(name, f"{name} {{state.x}} {{state.y}}") for name in "abc"]
    first = await run(process, flow(*steps, state_schema={"x": {"default": 1}, "y": {"default": 1}}))
    second = await process.app.fork(first.id, "b", {"x": 2})
    assert (await process.app.wait(second.run_id, timeout=30)).result == "c 2 1"
    third = await process.app.fork(second.run_id, "c", {"y": 3})
    ended = await process.app.wait(third.run_id, timeout=30)
    assert ended.state is not None
    assert (ended.state["a"], ended.state["b"], ended.result) == ("a 1 1", "b 2 1", "c 2 3")
    # From before the first change, which is then not part of the replay.
    fourth = await process.app.fork(second.run_id, "a", {"y": 4})
    assert (await process.app.wait(fourth.run_id, timeout=30)).result == "c 1 4"


async def test_a_run_ends_on_the_version_it_began_with(process: Process) -> None:
    await process.start()
    run_id = await paused(process, flow(say("draft", "d"), ASK, say("end", "old")))
    await sync(process, flow(say("draft", "d"), ASK, say("end", "new")))
    await process.app.resume(run_id, {"decision": "approve"})
    assert (await process.app.wait(run_id, timeout=30)).result == "old"
    again = await process.app.orchestrate("flow", "m")
    await eventually(lambda: _has(process, again.run_id, Status.PAUSED))
    await process.app.resume(again.run_id, {"decision": "approve"})
    assert (await process.app.wait(again.run_id, timeout=30)).result == "new"


async def test_agents_tools_and_evaluators_work_on_the_scripted_model(process: Process) -> None:
    await process.start()
    writer = Agent.model_validate(
        {
            "id": "writer",
            "model": "scripted",
            "tools": ["shout"],
            "answers": [{"tool": "shout", "arguments": {"text": "hi"}}, {"say": "It says HI."}],
        }
    )
    shout = Tool.model_validate({"name": "shout", "tool_type": "python", "code": "result = args['text'].upper()"})
    ended = await run(
        process,
        flow(
            {"id": "write", "type": "agent", "agent_id": "writer", "output_key": "text"},
            {"id": "judge", "type": "evaluator", "model": "scripted:judge", "evaluator_prompt": "Good? {state.text}",
             "route_map": {"good": "end", "bad": None}},
            say("end", "published"),
            answers={"judge": ["nonsense", "good"]},
        ),
        writer,
        shout,
    )  # fmt: skip
    assert ended.result == "published"
    types = await event_types(process, ended.id)
    assert types.count("tool_execution") == 1
    assert types.count("routing_decision") == 1


async def test_a_nested_orchestration_has_a_state_of_its_own_and_may_ask(process: Process) -> None:
    await process.start()
    inner = Orchestration.model_validate(
        {"id": "inner", "steps": [{**ASK, "human_prompt": "{state.user_input}", "next_step_id": "out"},
                                  say("out", "inner {state.answer.decision}")]}
    )  # fmt: skip
    outer = flow(
        {"id": "sub", "type": "orchestration", "orchestration_id": "inner", "message": "for {state.user_input}",
         "output_key": "sub"},
        say("end", "outer: {state.sub}"),
    )  # fmt: skip
    run_id = await paused(process, outer, inner)
    (waiting,) = await read_waits(await process.app.database(), run_id)
    assert waiting.request["prompt"] == "for m"
    await process.app.resume(run_id, {"decision": "reject"})
    ended = await process.app.wait(run_id, timeout=30)
    assert ended.result == "outer: inner reject"
    assert ended.state is not None
    assert "answer" not in ended.state


async def test_a_run_may_be_cancelled_in_a_step_and_while_it_waits(process: Process) -> None:
    begun = asyncio.Event()

    @process.app.task("long")
    async def long(ctx: Context) -> None:
        begun.set()
        await asyncio.sleep(60)

    await process.start()
    await sync(process, flow({"id": "a", "type": "task", "task": "long"}))
    accepted = await process.app.orchestrate("flow")
    await asyncio.wait_for(begun.wait(), 10)
    await process.app.cancel(accepted.run_id)
    assert (await process.app.wait(accepted.run_id, timeout=10)).status is Status.CANCELLED
    run_id = await paused(process, flow(say("draft", "d"), ASK))
    await process.app.cancel(run_id)
    assert (await process.app.get(run_id)).status is Status.CANCELLED


async def test_time_limits_of_steps_and_runs(process: Process) -> None:
    @process.app.task("long")
    async def long(ctx: Context) -> None:
        await asyncio.sleep(60)

    await process.start()
    step = {"id": "a", "type": "task", "task": "long", "timeout_seconds": 0.1}
    assert (await run(process, flow(step))).error["type"] == "timeout"
    ended = await run(process, flow({**step, "timeout_seconds": 60}, timeout_minutes=0.002))
    assert ended.error["type"] == "run_timeout"


async def test_branches_that_are_not_needed_any_more_are_stopped(process: Process) -> None:
    stopped = asyncio.Event()
    begun = asyncio.Event()

    @process.app.task("long")
    async def long(ctx: Context) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    @process.app.task("bad")
    async def bad(ctx: Context) -> None:
        await begun.wait()
        raise RuntimeError("no")

    await process.start()
    ended = await run(
        process,
        Orchestration.model_validate(
            {
                "id": "fan",
                "steps": [
                    {"id": "split", "type": "parallel", "parallel_branches": [["x"], ["y"], ["ask"]],
                     "next_step_id": "join", "on_error": "sorry"},
                    {"id": "x", "type": "task", "task": "long", "next_step_id": "join"},
                    {"id": "y", "type": "task", "task": "bad", "next_step_id": "join"},
                    {**ASK, "human_prompt": "?", "next_step_id": "join"},
                    say("join", "joined", next_step_id=None),
                    say("sorry", "gave up"),
                ],
            }
        ),
    )  # fmt: skip
    assert ended.result == "gave up"
    await asyncio.wait_for(stopped.wait(), 10)
    assert await read_waits(await process.app.database(), ended.id) == []


async def test_a_database_that_is_away_for_a_moment_does_not_fail_an_orchestration(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    await process.start()
    database = await process.app.database()
    look, failures = database.query, 3

    async def shaky(statement: Any, /, **params: Any) -> Any:
        nonlocal failures
        if statement.name in ("read_replay", "running_time", "has_event") and failures:
            failures -= 1
            raise Unavailable("away")
        return await look(statement, **params)

    run_id = await paused(process, flow(say("draft", "d"), ASK, say("end", "fine")))
    monkeypatch.setattr(database, "query", shaky)
    await process.app.resume(run_id, {"decision": "approve"})
    ended = await process.app.wait(run_id, timeout=30)
    assert (ended.result, ended.failures) == ("fine", 0)


async def test_a_person_is_shown_what_an_inner_orchestration_gave(process: Process) -> None:
    await process.start()
    inner = Orchestration.model_validate({"id": "inner", "steps": [say("draft", "inner draft")]})
    outer = flow(
        say("first", "older"),
        {"id": "sub", "type": "orchestration", "orchestration_id": "inner"},
        {"id": "ask", "type": "human", "human_prompt": "Good?"},
    )
    await sync(process, outer, inner)
    run_id = (await process.app.orchestrate("flow", "go")).run_id

    async def question() -> Any:
        return next(iter(await read_waits(await process.app.database(), run_id)), None)

    wait = await eventually(question, "the question")
    assert wait.request["context"] == "inner draft"
