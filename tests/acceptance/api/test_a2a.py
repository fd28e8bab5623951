"""A2A with the unmodified client of the protocol: tasks are runs, and approvals are tasks that need input."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import httpx2
import pytest
from a2a.client import A2ACardResolver, A2AClientError, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import (
    ContentTypeNotSupportedError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from google.protobuf.json_format import MessageToDict, ParseDict

from runlane.api.a2a import methods
from runlane.api.services import WorkerOptions
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from tests.acceptance.api.openai_clients import CAREFUL, HELPER, Typist, bring
from tests.acceptance.api.serving import Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.harness import eventually
from tests.webhook_receiver import WebhookReceiver

HELLO = "Hello there, nice to meet you."


@asynccontextmanager
async def a2a_client(url: str, key: str, agent: str = "helper", **config: Any) -> AsyncGenerator[Any]:
    """Return the client of an agent, made from the card that the server serves."""
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(headers=headers, timeout=90, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{url}/a2a/agents/{agent}").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, **config)).create(card)


@asynccontextmanager
async def client_of(api: Api, agent: str = "helper", tenant: str = "default", **config: Any) -> AsyncGenerator[Any]:
    async with a2a_client(api.url, await api.key("operator", tenant), agent, **config) as client:
        yield client


def message(text: str, **fields: Any) -> a2a.SendMessageRequest:
    given = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **fields}
    return ParseDict({"message": given}, a2a.SendMessageRequest())


async def sent(client: Any, request: a2a.SendMessageRequest) -> list[dict[str, Any]]:
    """Return the responses to a message, as JSON."""
    return [MessageToDict(response) async for response in client.send_message(request)]


def state_of(responses: list[dict[str, Any]]) -> str:
    """Return the last state that the responses name."""
    found = [item.get("task") or item["statusUpdate"] for item in responses if "task" in item or "statusUpdate" in item]
    return found[-1]["status"]["state"].removeprefix("TASK_STATE_")


def answer_of(responses: list[dict[str, Any]]) -> list[str]:
    """Return the artifacts as a client assembles them, in order."""
    artifacts: dict[str, str] = {}
    for item in responses:
        for whole in item.get("task", {}).get("artifacts", []):
            artifacts[whole["artifactId"]] = whole["parts"][0]["text"]
        if "artifactUpdate" in item:
            update = item["artifactUpdate"]
            name, text = update["artifact"]["artifactId"], update["artifact"]["parts"][0].get("text", "")
            artifacts[name] = artifacts.get(name, "") + text if update.get("append") else text
    return list(artifacts.values())


async def test_the_card_and_a_streamed_answer(api: Api) -> None:
    await bring(api, {**HELPER, "description": "Greets people."})
    async with client_of(api) as client:
        responses = await sent(client, message("hi"))
        task = responses[0]["task"]
        assert (state_of(responses), answer_of(responses)) == ("COMPLETED", [HELLO])
        assert task["history"][0]["parts"][0]["text"] == "hi"
        # The task is the run.
        run = (await api.get(f"/runs/{task['id']}")).json()
        assert (run["status"], run["result"], run["tags"]) == ("completed", HELLO, ["a2a"])
        whole = MessageToDict(await client.get_task(a2a.GetTaskRequest(id=task["id"])))
        assert (whole["status"]["state"], whole["artifacts"][0]["parts"][0]["text"]) == ("TASK_STATE_COMPLETED", HELLO)
        # The next message of the context is the next turn of the conversation.
        more = await sent(client, message("again", contextId=task["contextId"]))
        assert more[0]["task"]["contextId"] == task["contextId"]
        assert more[0]["task"]["id"] != task["id"]
        with pytest.raises(UnsupportedOperationError):
            [item async for item in client.subscribe(a2a.SubscribeToTaskRequest(id=task["id"]))]
        listed = MessageToDict(await client.list_tasks(a2a.ListTasksRequest(context_id=task["contextId"])))
        assert [item["id"] for item in listed["tasks"]] == [more[0]["task"]["id"], task["id"]]
    card = (await api.client.get("/a2a/agents/helper/.well-known/agent-card.json")).json()
    assert (card["name"], card["description"]) == ("helper", "Greets people.")
    assert card["supportedInterfaces"][0]["url"] == f"{api.url}/a2a/agents/helper"
    assert "Be kind" not in str(card)


async def test_answers_as_a_whole_and_repeated_messages(api: Api) -> None:
    await bring(api)
    async with client_of(api, streaming=False) as client:
        request = message("hi")
        (first,) = await sent(client, request)
        (again,) = await sent(client, request)
        assert first == again
        assert (state_of([first]), answer_of([first])) == ("COMPLETED", [HELLO])
        (failed,) = await sent(client, message("fail"))
        assert state_of([failed]) == "FAILED"
        assert "The model is away." in failed["task"]["status"]["message"]["parts"][0]["text"]
    assert len((await api.get("/runs")).json()["runs"]) == 2


async def test_polling_cancelling_and_subscribing(api: Api) -> None:
    typist = Typist("one ", "two ", "three")
    api.parts.app.models.register("typist", typist)
    await bring(api, {"id": "writer", "model": "typist"})
    async with client_of(api, "writer") as client, _poller(api) as poller:
        started = client.send_message(message("write"))
        task = MessageToDict(await anext(started))["task"]
        await started.aclose()  # the client leaves, and the run continues
        typist.release()
        subscribed = client.subscribe(a2a.SubscribeToTaskRequest(id=task["id"]))
        responses = [MessageToDict(await anext(subscribed))]
        typist.release(2)
        responses += [MessageToDict(item) async for item in subscribed]
        assert (state_of(responses), answer_of(responses)) == ("COMPLETED", ["one two three"])
        (polled,) = await sent(poller, message("write more"))
        open_task = polled["task"]
        cancelled = MessageToDict(await client.cancel_task(a2a.CancelTaskRequest(id=open_task["id"])))
        assert cancelled["id"] == open_task["id"]

        async def ended() -> bool:
            found = MessageToDict(await client.get_task(a2a.GetTaskRequest(id=open_task["id"])))
            return found["status"]["state"] == "TASK_STATE_CANCELED"

        await eventually(ended, "the end of the cancelled task")
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(a2a.CancelTaskRequest(id=task["id"]))


def _poller(api: Api) -> Any:
    """Return a client that does not wait for answers."""
    return client_of(api, "writer", streaming=False, polling=True)


async def test_an_approval_is_a_task_that_needs_input(api: Api) -> None:
    await bring(api, CAREFUL)
    async with client_of(api, "careful") as client:
        asked = await sent(client, message("pay"))
        assert state_of(asked) == "INPUT_REQUIRED"
        task = asked[0]["task"]
        question = asked[-1]["statusUpdate"]["status"]["message"]["parts"][0]["text"]
        assert "pay" in question
        whole = MessageToDict(await client.get_task(a2a.GetTaskRequest(id=task["id"])))
        assert whole["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        listed = await client.list_tasks(a2a.ListTasksRequest(status=a2a.TaskState.TASK_STATE_INPUT_REQUIRED))
        assert [item.id for item in listed.tasks] == [task["id"]]
        with pytest.raises(InvalidParamsError):
            await sent(client, message("approve", taskId=task["id"], contextId="sess_other"))
        answer = message("approve", taskId=task["id"], contextId=task["contextId"])
        responses = await sent(client, answer)
        assert (state_of(responses), answer_of(responses)) == ("COMPLETED", ["Let me pay.", "All done."])
        # The answer of a client that has lost the response is sent again, and has no further effect.
        again = await sent(client, answer)
        assert (state_of(again), again[0]["task"]["id"]) == ("COMPLETED", task["id"])
        with pytest.raises(UnsupportedOperationError, match="does not wait for input"):
            await sent(client, message("approve", taskId=task["id"]))
    assert len((await api.get("/runs")).json()["runs"]) == 1


async def test_tasks_of_other_tenants_and_agents_do_not_exist(api: Api) -> None:
    await create_tenant(api.parts.database, "other", actor="test")
    await bring(api, HELPER, {**HELPER, "id": "second"})
    await bring(api, HELPER, tenant="other")
    async with client_of(api) as mine, client_of(api, tenant="other") as stranger, client_of(api, "second") as second:
        task = (await sent(mine, message("hi")))[0]["task"]
        for client in (stranger, second):
            with pytest.raises(TaskNotFoundError):
                await client.get_task(a2a.GetTaskRequest(id=task["id"]))
            with pytest.raises(TaskNotFoundError):
                await client.cancel_task(a2a.CancelTaskRequest(id=task["id"]))
            with pytest.raises(TaskNotFoundError):
                await sent(client, message("x", taskId=task["id"]))
        with pytest.raises(TaskNotFoundError):
            await sent(stranger, message("x", contextId=task["contextId"]))
        assert not (await stranger.list_tasks(a2a.ListTasksRequest())).tasks
        # A conversation of another tenant is refused like one that does not exist.
        for context_id in (task["contextId"], "sess_unknown"):
            with pytest.raises(TaskNotFoundError):
                await stranger.list_tasks(a2a.ListTasksRequest(context_id=context_id))


async def test_a_page_of_tasks_has_a_bound_in_bytes(idle_api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "MAX_PAGE_BYTES", 2500)
    await bring(idle_api, HELPER)
    async with client_of(idle_api) as client:
        for number in range(5):
            request = message(f"{number}{'x' * 1000}")
            request.configuration.return_immediately = True
            await sent_now(client, request)
        found: list[str] = []
        token, pages = "", 0
        while token or not pages:
            page = await client.list_tasks(a2a.ListTasksRequest(page_token=token))
            assert 0 < len(page.tasks) <= 2
            found += [task.id for task in page.tasks]
            token, pages = page.next_page_token, pages + 1
    assert (len(set(found)), len(found), pages) == (5, 5, 3)


async def test_what_is_refused(api: Api) -> None:
    await bring(api)
    async with client_of(api) as client:
        with pytest.raises(ContentTypeNotSupportedError):
            await sent(client, message("", parts=[{"url": "https://example.com/x.png"}]))
        with pytest.raises(InvalidParamsError, match="empty"):
            await sent(client, message(" "))
        request = message("hi")
        request.configuration.task_push_notification_config.url = "https://example.com/hook"
        request.configuration.task_push_notification_config.token = "t"
        with pytest.raises(PushNotificationNotSupportedError, match="signature"):
            await sent(client, request)
    viewer = {"Authorization": f"Bearer {await api.key('viewer')}"}
    call: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": "run_x"}}
    sends = {**call, "method": "SendMessage", "params": MessageToDict(message("hi"))}
    async with httpx2.AsyncClient(base_url=api.url, headers=viewer, trust_env=False) as plain:
        path = "/a2a/agents/helper"
        assert (await plain.post(path, json=sends)).status_code == 403
        assert (await plain.post("/a2a/agents/unknown", json=call)).status_code == 404
        assert (await plain.post(path, json=call, headers={"Authorization": "Bearer x"})).status_code == 401
        wrong: list[tuple[Any, int]] = [
            ({**call, "method": "Nothing"}, -32601),
            ({**call, "params": {"id": "run_x", "colour": 1}}, -32602),
            ({**call, "jsonrpc": "1.0"}, -32600),
            ([], -32600),
            ({**call, "method": "GetExtendedAgentCard", "params": None}, -32007),
        ]
        for body, code in wrong:
            assert (await plain.post(path, json=body)).json()["error"]["code"] == code, body
        assert (await plain.post(path, content=b"{")).json()["error"]["code"] == -32700
        old = await plain.post(path, json=call, headers={"A2A-Version": "0.3"})
        assert old.json()["error"]["code"] == -32009
    assert (await api.get("/runs")).json()["runs"] == []


async def test_a_card_of_an_unknown_agent_does_not_exist(api: Api) -> None:
    with pytest.raises(A2AClientError):
        async with client_of(api, "unknown"):
            pass


async def test_the_end_of_a_task_is_pushed_by_a_webhook(settings: Settings) -> None:
    allowed = settings.model_copy(update={"outbound_allow": "127.0.0.0/8"})
    async with serving(copy_of(shop, allowed), worker=WorkerOptions()) as api, WebhookReceiver() as receiver:
        await bring(api)
        async with client_of(api) as client:
            await _check_pushes(client, receiver)


async def _check_pushes(client: Any, receiver: WebhookReceiver) -> None:
    request = message("hi")
    request.configuration.task_push_notification_config.url = receiver.url()
    task = (await sent(client, request))[0]["task"]
    await eventually(lambda: len(receiver.of()) == 1, "the notification")
    pushed = receiver.of()[0]
    assert pushed.id.startswith("msg_")
    found = ParseDict(pushed.json, a2a.StreamResponse(), ignore_unknown_fields=True).task
    assert (found.id, found.context_id) == (task["id"], task["contextId"])
    assert found.status.state == a2a.TaskState.TASK_STATE_COMPLETED
    assert found.artifacts[0].parts[0].text == HELLO
    # The address of a task can be changed until it has ended.
    slow = (await sent_now(client, message("slow")))["task"]["id"]
    config = a2a.TaskPushNotificationConfig(task_id=slow, url=receiver.url("/other"))
    assert (await client.create_task_push_notification_config(config)).url == receiver.url("/other")
    of_task = a2a.ListTaskPushNotificationConfigsRequest(task_id=slow)
    assert len((await client.list_task_push_notification_configs(of_task)).configs) == 1
    await client.delete_task_push_notification_config(
        a2a.DeleteTaskPushNotificationConfigRequest(task_id=slow, id=slow)
    )
    assert not (await client.list_task_push_notification_configs(of_task)).configs
    with pytest.raises(TaskNotFoundError):
        await client.get_task_push_notification_config(a2a.GetTaskPushNotificationConfigRequest(task_id=slow, id=slow))
    await client.create_task_push_notification_config(config)
    await client.cancel_task(a2a.CancelTaskRequest(id=slow))
    await eventually(lambda: len(receiver.of("/other")) == 1, "the notification of the cancelled task")
    assert receiver.of("/other")[0].json["task"]["status"]["state"] == "TASK_STATE_CANCELED"
    with pytest.raises(UnsupportedOperationError, match="has ended"):
        await client.create_task_push_notification_config(config)


async def sent_now(client: Any, request: a2a.SendMessageRequest) -> dict[str, Any]:
    """Return the first response to a message, and leave."""
    stream = client.send_message(request)
    try:
        return MessageToDict(await anext(stream))
    finally:
        await stream.aclose()
