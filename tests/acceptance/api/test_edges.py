"""The edges of the API: sizes, repeated requests, a database that is away, readiness, metrics, the reference."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from runlane.app import App
from runlane.settings import Settings
from runlane.store.queue.run_changes import cancel_run
from runlane.testing import PostgresServer
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually, settings_for


@pytest.fixture
async def small_api(settings: Settings) -> AsyncGenerator[Api]:
    small = settings.model_copy(update={"api_max_body_bytes": 10_000, "max_input_bytes": 2_000})
    async with serving(copy_of(shop, small)) as served:
        yield served


async def test_bodies_are_refused_while_they_arrive(small_api: Api) -> None:
    announced = await small_api.post("/tasks/greet/run", {"input": {"text": "x" * 20_000}})
    problem_of(announced, 413, "too_large")
    # A body of unknown length that goes over the limit and never ends: the answer comes nevertheless.
    reader, writer = await asyncio.open_connection("127.0.0.1", int(small_api.url.rsplit(":", 1)[1]))
    head = (
        f"POST {API}/tasks/greet/run HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        f"authorization: {small_api.client.headers['authorization']}\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode() + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 20)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 413")
    fits = await small_api.post("/tasks/greet/run", {"input": {"text": "x" * 5_000}})
    problem_of(fits, 413, "input_too_large")
    assert (await small_api.get("/runs")).json()["runs"] == []


async def test_a_repeated_request_for_a_run_gets_the_same_answer(api: Api) -> None:
    headers = {"Idempotency-Key": "order-7"}
    body: dict[str, Any] = {"input": {"text": "a"}, "delay_seconds": 0.0}
    first = await api.post("/tasks/greet/run", body, headers=headers)
    await api.get(f"/runs/{first.json()['run_id']}/wait")
    again = await api.post("/tasks/greet/run", body, headers=headers)
    assert again.status_code == 202
    assert again.json() == {**first.json(), "replayed": True}
    problem_of(
        await api.post("/tasks/greet/run", {"input": {"text": "b"}}, headers=headers), 409, "idempotency_conflict"
    )
    too_long = {"Idempotency-Key": "x" * 300}
    problem_of(await api.post("/tasks/greet/run", body, headers=too_long), 422, "invalid_request")
    assert len((await api.get("/runs")).json()["runs"]) == 1


async def test_other_changes_are_carried_out_once_per_key(idle_api: Api) -> None:
    api = idle_api
    held = await api.run("greet", wait=False, hold=True)
    path = f"/runs/{held['run_id']}/approve"
    headers = {"Idempotency-Key": "k1"}
    first = await api.post(path, headers=headers)
    again = await api.post(path, headers=headers)
    assert (first.status_code, again.status_code) == (202, 202)
    assert (again.text, again.headers["idempotency-replayed"]) == (first.text, "true")
    problem_of(await api.post(path, headers={"Idempotency-Key": "k2"}), 409, "wrong_state")
    other_run = await api.run("greet", wait=False, hold=True)
    approved = await api.post(f"/runs/{other_run['run_id']}/approve", headers=headers)
    assert (approved.status_code, approved.json()["run_id"]) == (202, other_run["run_id"])
    # A refused call is forgotten: its key can be used for one that succeeds.
    problem_of(await api.post(path, headers={"Idempotency-Key": "k2"}), 409, "wrong_state")
    lane = f"{API}/lanes/slow"
    changed = await api.client.patch(lane, json={"max_slots": 1}, headers=headers)
    assert changed.json()["changed"]
    assert (await api.client.patch(lane, json={"max_slots": 1}, headers=headers)).json() == changed.json()
    problem_of(await api.client.patch(lane, json={"max_slots": 2}, headers=headers), 409, "idempotency_conflict")
    # The key belongs to its caller, method and path.
    other = {"Authorization": f"Bearer {await api.key('operator')}", **headers}
    assert (await api.client.patch(lane, json={"max_slots": 2}, headers=other)).status_code == 200
    problem_of(await api.post(path, headers={"Authorization": "Bearer x", **headers}), 401, "unauthorized")


async def test_a_repeated_batch_finds_its_runs(idle_api: Api) -> None:
    headers = {"Idempotency-Key": "night"}
    batch = {"runs": [{"task": "greet"}, {"task": "save"}]}
    first = await idle_api.post("/runs/batch", batch, headers=headers)
    again = await idle_api.post("/runs/batch", batch, headers=headers)
    assert first.text == again.text
    longer = {"runs": [*batch["runs"], {"task": "save"}]}
    problem_of(await idle_api.post("/runs/batch", longer, headers=headers), 409, "idempotency_conflict")
    assert len((await idle_api.get("/runs")).json()["runs"]) == 2


async def test_a_repeated_key_creation_does_not_show_the_key_again(idle_api: Api) -> None:
    headers = {"Idempotency-Key": "first-key"}
    made = await idle_api.post("/keys", {"name": "ci", "role": "viewer"}, headers=headers)
    again = await idle_api.post("/keys", {"name": "ci", "role": "viewer"}, headers=headers)
    assert again.json() == {**made.json(), "key": None}


async def test_health_readiness_and_metrics(api: Api) -> None:
    assert (await api.client.get("/health")).json()["status"] == "ok"
    assert (await api.client.get("/live")).json() == (await api.client.get("/health")).json()
    with_redis = api.parts.app.settings.redis_url is not None
    wanted = "connected" if with_redis else "not configured"
    ready = await eventually(lambda: _ready(api, wanted), "readiness")
    assert ready["problems"] == []
    text = (await api.client.get("/metrics")).text
    assert "process_resident_memory_bytes" in text


async def _ready(api: Api, redis: str) -> Any:
    answer = await api.client.get("/ready")
    return answer.json() if answer.status_code == 200 and answer.json()["redis"] == redis else None


async def test_the_reference_needs_no_network(idle_api: Api) -> None:
    page = (await idle_api.client.get("/docs")).text
    assert "openapi.json" in page
    assert "http://" not in page
    assert "https://" not in page
    reference = (await idle_api.client.get("/openapi.json")).json()
    for path, methods in reference["paths"].items():
        for method, call in methods.items():
            assert call["description"], path
            # A webhook is verified by the signature of its sender, and a browser signs in with a key in the body.
            if path in ("/health", "/ready", "/ok", "/info", "/hooks/{token}", "/api/v2/info", "/api/v2/ui/session"):
                continue
            # An invalid request of OpenAI's API is 400.
            announced = {"401", "403", "503"} if path.startswith("/v1/") else {"401", "403", "422", "503"}
            assert announced <= set(call["responses"]), path
            assert call["security"] == [{"ApiKey": []}, {"ApiKeyHeader": []}], path
            body = "OpenAiErrorBody" if path.startswith("/v1/") else "ErrorBody"
            for status in announced:
                schema = call["responses"][status]["content"]["application/json"]["schema"]
                assert schema == {"$ref": f"#/components/schemas/{body}"}, (method, path)
    for name, schema in reference["components"]["schemas"].items():
        if name.startswith(("New", "Patch", "Put")) or name.endswith("Request"):
            assert schema["examples"], name


async def test_everything_is_503_while_the_database_is_away_and_heals() -> None:
    with PostgresServer() as server:
        # A request to start a run waits for this time; a shorter one would fail on a slow machine without an outage.
        settings = settings_for(server.create_database("away"), database_timeout_seconds=4.0)
        from runlane.store.sql.migrate import upgrade

        await upgrade(settings)
        async with serving(copy_of(shop, settings)) as api:
            run = await api.run("greet", wait=False)
            server.kill()
            calls = [
                lambda: api.post("/tasks/greet/run", {}),
                lambda: api.get("/runs"),
                lambda: api.get(f"/runs/{run['run_id']}"),
                lambda: api.post(f"/runs/{run['run_id']}/cancel", headers={"Idempotency-Key": "x"}),
                lambda: api.client.get("/metrics"),
            ]
            for call in calls:
                answer = await call()
                problem_of(answer, 503, "unavailable")
                assert int(answer.headers["retry-after"]) >= 1
                # The address of the database is not for callers.
                assert not re.search(r"postgresql|127\.0\.0\.1|away", answer.text)
            assert (await api.client.get("/health")).status_code == 200
            ready = await api.client.get("/ready")
            assert (ready.status_code, ready.json()["database"]) == (503, "away")
            server.start()
            await eventually(lambda: _answers(api), "the API to heal")
            assert (await api.post("/tasks/greet/run", {})).status_code == 202


async def _answers(api: Api) -> bool:
    return (await api.get("/runs")).status_code == 200


async def test_a_stream_survives_an_outage_of_the_database() -> None:
    with PostgresServer() as server:
        settings = settings_for(server.create_database("away"))
        from runlane.store.sql.migrate import upgrade

        await upgrade(settings)
        async with serving(copy_of(shop, settings)) as api:
            run = await api.run("greet", wait=False)
            text = ""
            async with api.client.stream("GET", f"{API}/runs/{run['run_id']}/stream") as answer:
                pieces = answer.aiter_text()
                text += await anext(pieces)
                server.kill()
                server.start()
                async with App(settings) as other:
                    await eventually(lambda: _cancelled(other, run["run_id"]), "the cancel")
                async for piece in pieces:
                    text += piece
            assert text.count("\nid: ") + text.startswith("id: ") == 2
            assert '"type":"done"' in text


async def _cancelled(app: App, run_id: str) -> bool:
    from runlane.errors import Unavailable

    try:
        return (await cancel_run(await app.database(), run_id)).status.terminal
    except Unavailable:
        return False


async def test_a_path_with_nul_is_that_of_nothing(idle_api: Api) -> None:
    """Postgres rejects the character, which was an internal error of many requests."""
    described = (await idle_api.client.get("/openapi.json")).json()["paths"]
    paths = {re.sub(r"{[^}]*}", "%00", path): next(iter(methods)) for path, methods in described.items() if "{" in path}
    assert len(paths) > 50
    for path, method in paths.items():
        answer = await idle_api.client.request(method, path)
        assert answer.status_code == 404, (method, path, answer.text)
