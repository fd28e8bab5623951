"""Conversations over HTTP: post, follow, resume, read, cancel and delete."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.llm.models import Delta, ModelContext, ModelDelta, ModelReply, ModelRequest
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.retention import delete_old
from tests.acceptance.api.serving import API, Api, copy_of, frames, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import Store, eventually

CANARY = "canary-4711"
HELPER: dict[str, Any] = {
    "id": "helper",
    "model": "scripted",
    "system_prompt": f"Be kind. {CANARY}",
    "answers": [
        {"when": "fail", "fail": {"code": "broken", "message": "The model is away.", "retryable": False}},
        {"when": "slow", "say": "done at last", "piece_delay_seconds": 60},
        {"when": "think", "say": "I thought about it for a while.", "thinking": "Let me see what that means."},
        {"say": "Hello there, nice to meet you."},
    ],
}


async def bring(api: Api, tenant: str = "default", **more: Any) -> None:
    loaded = parse_bodies({"agents": [{**HELPER, **more}]})
    await sync_definitions(api.parts.database, tenant, loaded, actor="test")


async def say(api: Api, message: str, session_id: str | None = None, **options: Any) -> dict[str, Any]:
    body = {"agent": "helper", "message": message, **({} if session_id is None else {"session_id": session_id})}
    answer = await api.post("/chat", body, **options)
    assert answer.status_code == 202, answer.text
    return answer.json()


async def idle(api: Api, session_id: str) -> dict[str, Any]:
    status: dict[str, Any] = {}

    async def ended() -> bool:
        nonlocal status
        status = (await api.get(f"/chat/{session_id}/status")).json()
        return status["status"] in ("completed", "failed", "cancelled")

    await eventually(ended, "the conversation to be idle")
    return status


async def stream(api: Api, session_id: str, **options: Any) -> list[dict[str, Any]]:
    answer = await api.get(f"/chat/{session_id}/stream", **options)
    assert answer.status_code == 200, answer.text
    return frames(answer.text)


def numbered(found: list[dict[str, Any]]) -> list[str]:
    return [event["_id"] for event in found if "_id" in event]


async def test_an_agent_runs_over_http(api: Api) -> None:
    await bring(api)
    accepted = await api.post("/agents/helper/run", {"message": "hi", "input": {"city": "Graz"}})
    assert accepted.status_code == 202
    run_id = accepted.json()["run_id"]
    assert accepted.json()["stream_url"] == f"{API}/orchestrations/runs/{run_id}/stream"
    run = (await api.get(f"/runs/{run_id}/wait", params={"timeout_seconds": 60})).json()
    assert (run["target"], run["result"]) == ("agent:helper", "Hello there, nice to meet you.")
    status = (await api.get(f"/runs/{run_id}/status")).json()
    assert status["orchestration_id"] == "agent:helper"
    assert CANARY not in (await api.get(f"/runs/{run_id}/events")).text
    problem_of(await api.post("/agents/unknown/run", {"message": "hi"}), 404, "unknown_definition")
    problem_of(await api.post("/agents/helper/run", {}), 422, "invalid_request")
    again = await api.post("/agents/helper/run", {"message": "hi"}, headers={"Idempotency-Key": "a"})
    twice = await api.post("/agents/helper/run", {"message": "hi"}, headers={"Idempotency-Key": "a"})
    assert twice.json() == again.json() | {"replayed": True}


async def test_a_conversation_from_the_first_message_to_the_last(api: Api) -> None:
    await bring(api)
    first = await say(api, "hi")
    session_id = first["session_id"]
    assert first["turn"] == 1
    assert first["status"] == "queued"
    assert first["stream_url"] == f"{API}/chat/{session_id}/stream"
    assert first["status_url"] == f"{API}/chat/{session_id}/status"
    await idle(api, session_id)
    second = await say(api, "please think", session_id)
    assert second["turn"] == 2
    status = await idle(api, session_id)
    assert status["agent_id"] == "helper"
    assert [(message["turn"], message["role"], message["content"]) for message in status["messages"]] == [
        (1, "user", "hi"),
        (1, "assistant", "Hello there, nice to meet you."),
        (2, "user", "please think"),
        (2, "assistant", "I thought about it for a while."),
    ]
    whole = await stream(api, session_id)
    ids = numbered(whole)
    assert ids[0] == "1.1"
    assert ids == sorted(ids, key=lambda place: tuple(int(part) for part in place.split(".")))
    assert len(set(ids)) == len(ids)
    assert {event["chat_turn"] for event in whole} == {1, 2}
    assert [event["status"] for event in whole if event["type"] == "done"] == ["completed", "completed"]
    assert CANARY not in (await api.get(f"/chat/{session_id}/stream")).text
    events = (await api.get(f"/chat/{session_id}/events")).json()
    assert [f"{event['chat_turn']}.{event['seq']}" for event in events["events"]] == ids
    assert events["next_after"] == ids[-1]
    for number, place in enumerate(ids):
        rest = await stream(api, session_id, headers={"Last-Event-ID": place})
        assert numbered(rest) == ids[number + 1 :], place
    assert (await stream(api, session_id, params={"after": ids[-1]}))[0]["type"] == "stream_complete"
    listed = (await api.get("/chat", params={"agent": "helper"})).json()["sessions"]
    assert [(session["session_id"], session["turns"]) for session in listed] == [(session_id, 2)]


async def test_events_come_page_by_page_across_turns(api: Api) -> None:
    await bring(api)
    session_id = (await say(api, "one"))["session_id"]
    for text in ("two", "three"):
        await say(api, text, session_id)
    await idle(api, session_id)
    whole = (await api.get(f"/chat/{session_id}/events")).json()["events"]
    found: list[Any] = []
    after = ""
    while True:
        page = (await api.get(f"/chat/{session_id}/events", params={"after": after, "limit": 7})).json()
        assert page["count"] == len(page["events"]) <= 7
        found += page["events"]
        if not page["events"]:
            break
        after = page["next_after"]
    assert found == whole
    messages = (await api.get(f"/chat/{session_id}/messages", params={"after": 1, "limit": 1})).json()
    assert [message["content"] for message in messages["messages"]] == ["two", "Hello there, nice to meet you."]
    assert (messages["next_after"], messages["last_turn"]) == (2, 3)


class Gate:
    """Answers, in two pieces, once it is let."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    def __call__(self, name: str, scene: ModelContext, /) -> Gate:
        return self

    async def credential(self) -> str:
        return ""

    async def answer(self, request: ModelRequest, delta: Delta | None = None) -> ModelReply:
        self.asked.set()
        await self.open.wait()
        assert delta is not None
        for piece in (ModelDelta("thinking", "hm"), ModelDelta("text", "one "), ModelDelta("text", "two")):
            delta(piece)
        return ModelReply("one two", thinking="hm", model="gate")


async def test_pieces_of_an_answer_arrive_live_and_the_stream_can_stay(api: Api) -> None:
    gate = Gate()
    api.parts.app.models.register("gate", gate)
    await bring(api, model="gate", answers=[])
    gate.open.set()
    session_id = (await say(api, "hi"))["session_id"]
    await idle(api, session_id)
    gate.open.clear()
    gate.asked.clear()
    seen: list[dict[str, Any]] = []

    async def follow() -> None:
        path = f"{API}/chat/{session_id}/stream"
        async with api.client.stream("GET", path, params={"follow": True}) as answer:
            text = ""
            async for piece in answer.aiter_text():
                text += piece
                *whole, text = text.split("\n\n")
                seen.extend(frames("\n\n".join(whole)))
                if [event["chat_turn"] for event in seen if event["type"] == "done"] == [1, 2, 3]:
                    return

    following = asyncio.create_task(follow())
    await eventually(lambda: any(event["type"] == "done" for event in seen), "the first turn")
    posts = [await say(api, text, session_id) for text in ("two", "three")]
    # The reader has everything up to the question, so it gets the pieces of the answer live.
    await eventually(
        lambda: any(event["type"] == "model_request" and event["chat_turn"] == 2 for event in seen), "the question"
    )
    await gate.asked.wait()
    gate.open.set()
    async with asyncio.timeout(60):
        await following
    pieces = [event for event in seen if "_id" not in event and event["run_id"] == posts[0]["run_id"]]
    # Where one piece ends depends on what the process hides: a letter may be the first one of a secret.
    whole = [("", "")]
    for event in pieces:
        kind, text = whole[-1] if whole[-1][0] == event["type"] else (event["type"], "")
        assert (event["chat_turn"], event["offset"]) == (2, len(text))
        whole[-1 if text else len(whole) :] = [(kind, text + event["text"])]
    assert whole[1:] == [("thinking", "hm"), ("text", "one two")]


async def test_a_stream_that_stays_ends_with_its_server_or_its_key(api: Api) -> None:
    await bring(api)
    session_id = (await say(api, "hi"))["session_id"]
    await idle(api, session_id)
    made = (await api.post("/keys", {"name": "reader", "role": "viewer"})).json()
    texts = ["", ""]

    async def follow(number: int, headers: dict[str, str]) -> None:
        path = f"{API}/chat/{session_id}/stream"
        async with api.client.stream("GET", path, params={"follow": True}, headers=headers) as answer:
            async for piece in answer.aiter_text():
                texts[number] += piece

    async with asyncio.TaskGroup() as group:
        guest = group.create_task(follow(0, {"Authorization": f"Bearer {made['key']}"}))
        ours = group.create_task(follow(1, {}))
        await eventually(lambda: all('"type":"done"' in text for text in texts), "both to have everything")
        assert (await api.client.delete(f"{API}/keys/{made['id']}")).status_code == 200
        await eventually(guest.done, "the guest to be shown out")
        assert ": closed: " in texts[0]
        assert not ours.done()
        api.parts.end_streams()
    assert "stream_complete" not in texts[1]


async def test_a_failed_turn_keeps_the_conversation(api: Api) -> None:
    await bring(api)
    session_id = (await say(api, "hi"))["session_id"]
    await say(api, "fail", session_id)
    await say(api, "go on", session_id)
    status = await idle(api, session_id)
    assert status["status"] == "completed"
    assert [(message["role"], message["status"]) for message in status["messages"]] == [
        ("user", "completed"),
        ("assistant", "completed"),
        ("user", "failed"),
        ("user", "completed"),
        ("assistant", "completed"),
    ]
    assert status["messages"][2]["error"]["type"] == "broken"


async def test_a_conversation_is_cancelled_and_deleted(api: Api) -> None:
    await bring(api)
    session_id = (await say(api, "slow"))["session_id"]
    queued = await say(api, "hi", session_id)
    assert queued["status"] == "blocked"

    async def runs() -> bool:
        status = (await api.get(f"/chat/{session_id}/status")).json()
        return status["status"] == "running" and status["worker_id"] is not None

    await eventually(runs, "the turn to run")
    problem_of(await api.client.delete(f"{API}/chat/{session_id}"), 409, "wrong_state")
    only = (await api.post(f"/chat/{session_id}/cancel", params={"only_current": True})).json()
    assert only["status"] == "cancellation_requested"
    assert len(only["run_ids"]) == 1
    assert (await idle(api, session_id))["status"] == "completed"
    for text in ("slow", "hi", "hi"):
        await say(api, text, session_id)
    cancelled = (await api.post(f"/chat/{session_id}/cancel")).json()
    assert len(cancelled["run_ids"]) == 3
    status = await idle(api, session_id)
    assert [message["status"] for message in status["messages"]][-3:] == ["cancelled"] * 3
    assert (await api.post(f"/chat/{session_id}/cancel")).json()["status"] == "idle"
    assert (await api.client.delete(f"{API}/chat/{session_id}")).json() == {"session_id": session_id, "deleted": True}
    problem_of(await api.get(f"/chat/{session_id}/status"), 404, "session_not_found")
    problem_of(await api.get(f"/runs/{queued['run_id']}"), 404, "run_not_found")


async def test_chat_refuses_sessions_of_others_and_invalid_requests(idle_api: Api) -> None:
    api = idle_api
    await create_tenant(api.parts.database, "acme", actor="test")
    await bring(api)
    await bring(api, tenant="acme")
    await bring(api, id="other")
    session_id = (await say(api, "hi"))["session_id"]
    theirs = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    body = {"agent": "helper", "message": "hi", "session_id": session_id}
    problem_of(await api.post("/chat", body, headers=theirs), 404, "session_not_found")
    problem_of(await api.post("/chat", body | {"agent": "other"}), 409, "conflict")
    problem_of(await api.post("/chat", body | {"agent": "unknown"}), 404, "unknown_definition")
    problem_of(await api.post("/chat", body | {"session_id": "sess_none"}), 404, "session_not_found")
    problem_of(await api.post("/chat", body | {"message": ""}), 422, "invalid_request")
    for view in ("status", "messages", "events", "stream"):
        problem_of(await api.get(f"/chat/{session_id}/{view}", headers=theirs), 404, "session_not_found")
        problem_of(await api.get(f"/chat/sess_none/{view}"), 404, "session_not_found")
    problem_of(await api.post(f"/chat/{session_id}/cancel", headers=theirs), 404, "session_not_found")
    problem_of(await api.client.delete(f"{API}/chat/{session_id}", headers=theirs), 404, "session_not_found")
    assert (await api.get("/chat", headers=theirs)).json()["sessions"] == []
    for place in ("2.1", "1.99", "x", "1", "1.1.1", "-1.2"):
        answer = await api.get(f"/chat/{session_id}/stream", headers={"Last-Event-ID": place})
        problem_of(answer, 400, "impossible_event_id")
    first = await say(api, "once", headers={"Idempotency-Key": "k"})
    again = await say(api, "once", headers={"Idempotency-Key": "k"})
    assert again == first | {"replayed": True}
    other = await api.post("/chat", {"agent": "helper", "message": "x"}, headers={"Idempotency-Key": "k"})
    problem_of(other, 409, "idempotency_conflict")


async def test_a_conversation_continues_without_the_runs_that_retention_deleted(api: Api) -> None:
    await bring(api)
    session_id = (await say(api, "hi"))["session_id"]
    last = await say(api, "there", session_id)
    await idle(api, session_id)
    before = (await api.get(f"/chat/{session_id}/messages")).json()
    store = Store(api.parts.app.settings, api.parts.database)
    assert await store.database.transact(lambda session: delete_old(session, 0.0)) == 2
    assert (await api.get(f"/chat/{session_id}/messages")).json() == before
    problem_of(await api.get(f"/runs/{last['run_id']}"), 404, "run_not_found")
    assert (await stream(api, session_id))[0]["type"] == "stream_complete"
    third = await say(api, "still here", session_id)
    assert third["turn"] == 3
    assert (await idle(api, session_id))["status"] == "completed"
    found = await stream(api, session_id)
    assert found[0] == {"type": "truncated", "session_id": session_id, "first_turn": 3}
    assert numbered(found)[0] == "3.1"
    # A reader whose cursor is in a deleted run continues with the next one.
    assert numbered(await stream(api, session_id, headers={"Last-Event-ID": "1.4"}))[0] == "3.1"


@pytest.mark.parametrize("many", [2, 8])
async def test_posts_to_two_servers_at_the_same_moment_are_turns_in_order(settings: Settings, many: int) -> None:
    apps: list[App] = [copy_of(shop, settings) for _ in range(2)]
    async with serving(apps[0]) as one, serving(apps[1]) as two:
        await bring(one)
        session_id = (await say(one, "first"))["session_id"]
        posts = await asyncio.gather(
            *(say(one if number % 2 else two, f"m{number}", session_id) for number in range(many))
        )
        assert sorted(post["turn"] for post in posts) == list(range(2, many + 2))
        messages = (await two.get(f"/chat/{session_id}/messages")).json()["messages"]
        by_turn = {post["turn"]: post["run_id"] for post in posts}
        assert [message["run_id"] for message in messages[1:]] == [by_turn[turn] for turn in sorted(by_turn)]
