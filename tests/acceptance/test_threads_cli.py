"""Threads and assistants of hosted graphs: the same verbs on the command line, in Client and in App."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.app import App
from runlane.client import Client
from runlane.domain.assistant import HostedGraph
from runlane.errors import Conflict, NotFound, RunlaneError, UnknownThread
from runlane.settings import Settings
from runlane.store.threads.graphs import register_graphs
from runlane.store.threads.threads import create_thread
from tests.acceptance.api.serving import Api, serving
from tests.acceptance.conftest import Shell
from tests.harness import settings_for

THREAD = "00000000-0000-4000-8000-000000000001"


async def _prepare(app: App) -> None:
    database = await app.database()
    await register_graphs(database, [HostedGraph("three")])
    await create_thread(database, "default", THREAD, metadata={"graph_id": "three", "topic": "tea"})


async def _check(threads: Any, assistants: Any) -> None:
    """Use every verb of an App or a Client."""
    assert [thread.id for thread in await threads.list(metadata={"topic": "tea"})] == [THREAD]
    assert list(await threads.list(status="busy")) == []
    assert (await threads.get(THREAD)).metadata["topic"] == "tea"
    assert (await threads.state(THREAD))["next"] == []
    assert list(await threads.history(THREAD)) == []
    with pytest.raises(NotFound):
        await threads.state(THREAD, "missing")
    (assistant,) = await assistants.list(graph_id="three")
    assert (await assistants.get("three")).id == assistant.id
    assert [version.version for version in await assistants.versions("three")] == [1]
    with pytest.raises(Conflict):
        await assistants.delete("three")
    await threads.delete(THREAD)
    for call in (threads.get, threads.delete, threads.state, threads.history):
        with pytest.raises(UnknownThread):
            await call(THREAD)


async def test_app_and_client_have_the_same_verbs(settings: Settings) -> None:
    async with App(settings) as app:
        await _prepare(app)
        await _check(app.threads, app.assistants)
        async with serving(App(settings)) as api:
            await create_thread(await app.database(), "default", THREAD, metadata={"topic": "tea"})
            await _over_http(api)


async def _over_http(api: Api) -> None:
    async with Client(api.url, await api.key("developer")) as client:
        await _check(client.threads, client.assistants)
    async with Client(api.url, await api.key("viewer")) as viewer:
        with pytest.raises(RunlaneError, match="runs:write"):
            await viewer.threads.delete(THREAD)


async def test_commands_on_a_database(shell: Shell) -> None:
    url = shell.environment.get("RUNLANE_DATABASE_URL") or f"sqlite:///{shell.folder}/.runlane/runlane.db"
    async with App(settings_for(url)) as app:
        await _prepare(app)
    assert shell.run("threads", "list").lines[1][:3] == [THREAD, "idle", "three"]
    assert shell.run("threads", "list", "--metadata", '{"topic": "milk"}', "--json").json == []
    assert shell.run("threads", "show", THREAD, "--json").json["thread_id"] == THREAD
    assert ["status", "idle"] in shell.run("threads", "show", THREAD).lines
    assert shell.run("threads", "state", THREAD).json["values"] == {}
    assert shell.run("threads", "history", THREAD, "--json").json == []
    assert shell.run("assistants", "list").lines[1][1:4] == ["three", "three", "1"]
    assert shell.run("assistants", "show", "three", "--json").json["graph_id"] == "three"
    assert shell.run("assistants", "versions", "three").lines[1][0] == "1"
    shell.refused("assistants", "delete", "three", code="conflict")
    shell.run("threads", "delete", THREAD)
    shell.refused("threads", "show", THREAD, code="thread_not_found")
    assert "--tenant is for a database" in shell.refused(
        "threads", "list", "--tenant", "x", "--url", "http://127.0.0.1:9", code="invalid_request"
    )
