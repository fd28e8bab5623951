"""The app, the API and the command line on the database return the same about a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from runlane import Client, Run, RunNotFound, Status
from runlane.cli.database_runs import DatabaseRuns
from tests.acceptance.api.flows import ARTICLE
from tests.acceptance.api.serving import Api
from tests.harness import eventually

HELPER = {"id": "helper", "name": "Helper", "model": "test:any", "system_prompt": "Help."}


@asynccontextmanager
async def client_of(api: Api) -> AsyncGenerator[Client]:
    async with Client(api.url, await api.key()) as client:
        yield client


async def read_everywhere(api: Api, run_id: str) -> Run:
    """Return the run, if every reader gives the same one. Only the server's side has the plan."""
    local = replace(await api.parts.app.get(run_id), plan=None)
    async with client_of(api) as client:
        assert await client.get(run_id) == local
    assert replace(await DatabaseRuns(api.parts.database).get(run_id), plan=None) == local
    return local


async def test_a_waiting_run_of_any_kind_reads_the_same_everywhere(idle_api: Api) -> None:
    app = idle_api.parts.app
    await app.sync({"agents": [HELPER], "orchestrations": [ARTICLE]})
    task = await read_everywhere(idle_api, (await app.enqueue("greet")).run_id)
    assert (task.state, task.children, task.waiting_for) == (None, (), ())
    agent = await read_everywhere(idle_api, (await app.ask("helper", "Which orders are late?")).run_id)
    assert agent.state is not None
    assert agent.definition is not None
    orchestration = await read_everywhere(idle_api, (await app.orchestrate("article", "cats")).run_id)
    assert (orchestration.state or {})["user_input"] == "cats"


async def test_a_run_with_a_question_reads_the_same_everywhere_and_after_its_end(api: Api) -> None:
    app = api.parts.app
    await app.sync({"orchestrations": [ARTICLE]})
    run_id = (await app.orchestrate("article", "cats")).run_id

    async def is_paused() -> bool:
        return (await app.get(run_id)).status is Status.PAUSED

    await eventually(is_paused, "the question")
    asking = await read_everywhere(api, run_id)
    assert [question.step_id for question in asking.waiting_for] == ["ask"]
    async with client_of(api) as client:
        assert list(await app.waits(run_id)) == list(await client.waits(run_id)) == list(asking.waiting_for)
        await app.resume(run_id, {"decision": "approve"})
        ended = await client.wait(run_id, 60)
        assert replace(await app.wait(run_id, 60), plan=None) == ended == await read_everywhere(api, run_id)
        assert list(await app.steps(run_id)) == list(await client.steps(run_id))
        assert list(await DatabaseRuns(api.parts.database).steps(run_id)) == list(await app.steps(run_id))


async def test_the_running_attempt_is_listed_everywhere(api: Api) -> None:
    app = api.parts.app
    run_id = (await app.enqueue("wait")).run_id

    async def is_running() -> bool:
        return (await app.get(run_id)).status is Status.RUNNING

    await eventually(is_running, "the attempt")
    (attempt,) = await app.attempts(run_id)
    assert (attempt.attempt, attempt.outcome, attempt.ended_at_us) == (1, None, None)
    async with client_of(api) as client:
        assert list(await client.attempts(run_id)) == [attempt]
    assert list(await DatabaseRuns(api.parts.database).attempts(run_id)) == [attempt]
    await app.cancel(run_id)


async def test_a_run_that_is_not_kept_is_not_found_everywhere(idle_api: Api) -> None:
    app = idle_api.parts.app
    async with client_of(idle_api) as client:
        for source in (app, client):
            for read in (source.get, source.events, source.attempts, source.steps, source.waits):
                with pytest.raises(RunNotFound):
                    await read("run_missing")
