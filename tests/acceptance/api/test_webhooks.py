"""Webhooks over HTTP: the life of an endpoint, its log and replays, permissions, tenants, invalid requests."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from sqlalchemy import text
from standardwebhooks.webhooks import Webhook

from runlane import Client, NotFound
from runlane.api.routes import webhooks as webhook_routes
from runlane.api.services import WorkerOptions
from runlane.domain.webhook import WebhookEndpoint
from runlane.domain.webhook_events import WebhookType
from runlane.settings import Settings
from runlane.store.access.tenants import create_tenant
from runlane.store.sql.statement import Statement
from runlane.store.webhooks.deliveries import REPLAY_AT_ONCE
from runlane.templates.json_schema import check_schema, misfit
from tests.acceptance.api.serving import API, Api, copy_of, serving
from tests.acceptance.api.shop import app as shop
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually
from tests.webhook_receiver import FAILED_DELIVERIES, Answer, WebhookReceiver


@pytest.fixture
async def receiver() -> AsyncGenerator[WebhookReceiver]:
    async with WebhookReceiver() as listening:
        yield listening


@pytest.fixture
async def hooked(settings: Settings) -> AsyncGenerator[Api]:
    """Serve the shop's API with a worker, where webhooks may go to loopback."""
    allowed = settings.model_copy(update={"outbound_allow": "127.0.0.0/8"})
    async with serving(copy_of(shop, allowed), worker=WorkerOptions()) as served:
        yield served


async def client_of(api: Api, role: str, tenant: str) -> Client:
    return Client(api.url, await api.key(role, tenant))


async def test_an_endpoint_gets_signed_messages_and_its_log_can_be_replayed(
    hooked: Api, receiver: WebhookReceiver
) -> None:
    async with await client_of(hooked, "developer", "default") as client:
        endpoint, made = await client.webhooks.create(receiver.url(), types=["run.completed"])
        assert made is not None
        assert made.secret is not None
        run = await hooked.run("greet", input={"text": "Ada"})
        await eventually(lambda: receiver.received, "the webhook of the run")
        got = receiver.received[0]
        assert Webhook(made.secret).verify(got.body, got.headers)["data"]["run_id"] == run["run_id"]

        async def delivered() -> Any:
            found = await client.webhooks.deliveries(endpoint_id=endpoint.id, run_id=run["run_id"])
            return found if found and found[0].status == "delivered" else None

        (delivery,) = await eventually(delivered, "a delivery in the log")
        log = await client.webhooks.delivery(delivery.id)
        assert (log.attempts[0].status_code, log.body.encode()) == (204, got.body)
        replayed = await client.webhooks.replay(delivery.id)
        assert (replayed.replay_of, replayed.message_id) == (delivery.id, got.id)
        await eventually(lambda: len(receiver.received) == 2, "the replay")
        assert receiver.received[1].id == got.id
        assert (await client.webhooks.replay_many(status="delivered", endpoint_id=endpoint.id)).replayed == 1
        attempt = await client.webhooks.test(endpoint.id)
        assert attempt.status_code == 204
        rotated = await client.webhooks.rotate(endpoint.id, overlap_hours=1)
        assert rotated.previous_valid_until_us is not None
        assert (await client.webhooks.secret(endpoint.id)).secret == rotated.secret
        changed = await client.webhooks.set(endpoint.id, {"description": "orders", "types": []})
        assert (changed.description, changed.types, changed.version) == ("orders", (), 2)
        await client.webhooks.disable(endpoint.id, "pause")
        assert [item.health async for item in client.webhooks.list()] == ["disabled"]
        assert (await client.webhooks.enable(endpoint.id, held="send"))[1] == 0
        assert (await client.webhooks.delete(endpoint.id)).id == endpoint.id
        with pytest.raises(NotFound):
            await client.webhooks.get(endpoint.id)
    actions = [entry["action"] for entry in (await hooked.get("/audit")).json()["entries"]]
    assert actions[:7] == [
        "webhook.delete", "webhook.enable", "webhook.disable", "webhook.set", "webhook.secret.show",
        "webhook.secret.rotate", "webhook.replay",
    ]  # fmt: skip


async def test_a_run_calls_the_url_that_it_was_started_with(hooked: Api, receiver: WebhookReceiver) -> None:
    options: dict[str, Any] = {"webhook_url": receiver.url("/own"), "webhook_secret": "secret-of-a-run-1"}
    run = await hooked.run("greet", input={"text": "Ada"}, **options)
    await eventually(lambda: receiver.of("/own"), "the run's own webhook")
    body = receiver.of("/own")[0].json
    assert (body["run_id"], body["status"], body["data"]["target"]) == (run["run_id"], "completed", "greet")
    shown = await hooked.get(f"/runs/{run['run_id']}")
    assert "secret-of-a-run-1" not in shown.text
    batch = {"runs": [{"task": "greet", "input": {"text": "Bo"}, "webhook_url": receiver.url("/batch")}]}
    assert (await hooked.post("/runs/batch", batch)).status_code == 202
    await eventually(lambda: receiver.of("/batch"), "the webhook of a run of a batch")


async def test_the_default_secret_is_created_shown_and_rotated(hooked: Api, receiver: WebhookReceiver) -> None:
    async with await client_of(hooked, "developer", "default") as client:
        with pytest.raises(NotFound, match="no default webhook secret"):
            await client.webhooks.default_secret()
        made = await client.webhooks.rotate_default_secret()
        assert (made.endpoint_id, made.version, made.previous_valid_until_us) == (None, 1, None)
        assert (await client.webhooks.default_secret()).secret == made.secret
        await hooked.run("greet", input={"text": "Ada"}, webhook_url=receiver.url("/own"))
        await eventually(lambda: receiver.of("/own"), "the run's own webhook")
        got = receiver.of("/own")[0]
        assert Webhook(made.secret or "").verify(got.body, got.headers)["status"] == "completed"
        rotated = await client.webhooks.rotate_default_secret(overlap_hours=1)
        assert (rotated.version, rotated.previous_valid_until_us is not None) == (2, True)
    await create_tenant(hooked.parts.database, "acme", actor="test")
    viewer = {"Authorization": f"Bearer {await hooked.key('viewer')}"}
    assert (await hooked.get("/webhooks/secret", headers=viewer)).status_code == 403
    assert (await hooked.post("/webhooks/secret/rotate", {}, headers=viewer)).status_code == 403
    async with await client_of(hooked, "developer", "acme") as other:
        with pytest.raises(NotFound, match="no default webhook secret"):
            await other.webhooks.default_secret()
        with pytest.raises(NotFound):
            await other.webhooks.rotate_default_secret(tenant="default")
    entries = (await hooked.get("/audit")).json()["entries"]
    assert [(entry["action"], entry["subject"]) for entry in entries if entry["action"].startswith("webhook.")] == [
        ("webhook.secret.rotate", "tenant:default"),
        ("webhook.secret.show", "tenant:default"),
        ("webhook.secret.rotate", "tenant:default"),
    ]


async def test_a_replay_continues_beyond_one_request(idle_api: Api) -> None:
    count = REPLAY_AT_ONCE + 2
    statement = Statement("add_failed_deliveries", text(FAILED_DELIVERIES))
    await idle_api.parts.database.transact(lambda session: session.fetch(statement, count=count))
    async with await client_of(idle_api, "developer", "default") as client:
        first = await client.webhooks.replay_many()
        assert (first.replayed, first.more) == (REPLAY_AT_ONCE, True)
        rest = await client.webhooks.replay_many(before=first.before)
        assert (rest.replayed, rest.more) == (2, False)
        assert await client.webhooks.replay_all(type="run.completed") == count


async def test_other_tenants_find_nothing(hooked: Api, receiver: WebhookReceiver) -> None:
    await create_tenant(hooked.parts.database, "acme", actor="test")
    async with await client_of(hooked, "developer", "default") as ours:
        endpoint, _ = await ours.webhooks.create(receiver.url(), signature="ed25519")
        await ours.webhooks.test(endpoint.id)
        (delivery,) = await ours.webhooks.deliveries()
        assert [key.endpoint_id for key in await ours.webhooks.keys()] == [endpoint.id]
    key = await hooked.key("developer", "acme")
    headers = {"Authorization": f"Bearer {key}"}
    path = f"/webhooks/endpoints/{endpoint.id}"
    for method, suffix, body in (
        ("GET", "", None), ("PATCH", "", {"ordered": True}), ("DELETE", "", None), ("GET", "/secret", None),
        ("POST", "/enable", {"held": "send"}), ("POST", "/disable", {}), ("POST", "/rotate", {}),
        ("POST", "/test", None),
    ):  # fmt: skip
        answer = await hooked.client.request(method, f"{API}{path}{suffix}", json=body, headers=headers)
        problem_of(answer, 404, "not_found")
    problem_of(await hooked.get(f"/webhooks/deliveries/{delivery.id}", headers=headers), 404, "not_found")
    replay = await hooked.post(f"/webhooks/deliveries/{delivery.id}/replay", {}, headers=headers)
    problem_of(replay, 404, "not_found")
    assert (await hooked.get("/webhooks/endpoints", headers=headers)).json()["endpoints"] == []
    assert (await hooked.get("/webhooks/deliveries", headers=headers)).json()["deliveries"] == []
    assert (await hooked.get("/webhooks/keys", headers=headers)).json()["webhook_keys"] == []
    assert (await hooked.post("/webhooks/replay", {"status": "delivered"}, headers=headers)).json()["replayed"] == 0


async def test_a_viewer_sees_origins_and_changes_nothing(hooked: Api, receiver: WebhookReceiver) -> None:
    wanted = {"url": receiver.url("/hook?token=abc"), "headers": {"X-Room": "room-abc"}}
    endpoint = (await hooked.post("/webhooks/endpoints", wanted)).json()["endpoint"]
    headers = {"Authorization": f"Bearer {await hooked.key('viewer')}"}
    shown = await hooked.get(f"/webhooks/endpoints/{endpoint['id']}", headers=headers)
    assert (shown.status_code, "token=abc" in shown.text, "room-abc" in shown.text) == (200, False, False)
    await hooked.post(f"/webhooks/endpoints/{endpoint['id']}/test")
    (delivery,) = (await hooked.get("/webhooks/deliveries", headers=headers)).json()["deliveries"]
    log = f"/webhooks/deliveries/{delivery['id']}"
    assert (await hooked.get(log)).json()["attempts"][0]["request_headers"] == {"X-Room": "room-abc"}
    assert (await hooked.get(log, headers=headers)).json()["attempts"][0]["request_headers"] == {"X-Room": "…"}
    problem_of(
        await hooked.post("/webhooks/endpoints", {"url": "https://a.example"}, headers=headers), 403, "forbidden"
    )
    operator = {"Authorization": f"Bearer {await hooked.key('operator')}"}
    secret = await hooked.get(f"/webhooks/endpoints/{endpoint['id']}/secret", headers=operator)
    problem_of(secret, 403, "forbidden")


@pytest.mark.parametrize(
    "body",
    [
        {"url": "http://example.com/"},
        {"url": "https://10.0.0.1/"},
        {"url": "https://example.com:22/"},
        {"url": "https://user:pass@example.com/"},
        {"url": "ftp://example.com/"},
        {"url": "https://example.com/", "types": ["run.finished"]},
        {"url": "https://example.com/", "filter": {"user": ["x"]}},
        {"url": "https://example.com/", "filter": {"target": []}},
        {"url": "https://example.com/", "include": ["secrets"]},
        {"url": "https://example.com/", "rate_per_second": 0},
        {"url": "https://example.com/", "max_in_flight": 1000},
        {"url": "https://example.com/", "signature": "rsa"},
        {},
    ],
)
async def test_an_invalid_endpoint_is_refused_and_nothing_is_stored(idle_api: Api, body: dict[str, Any]) -> None:
    problem_of(await idle_api.post("/webhooks/endpoints", body), 422, "invalid_request")
    assert (await idle_api.get("/webhooks/endpoints")).json()["endpoints"] == []


async def test_a_repeated_request_does_not_show_the_secret_again(idle_api: Api) -> None:
    headers = {"Idempotency-Key": "once"}
    body = {"url": "https://example.com/hook"}
    first = (await idle_api.post("/webhooks/endpoints", body, headers=headers)).json()
    again = (await idle_api.post("/webhooks/endpoints", body, headers=headers)).json()
    assert first["secret"]["secret"].startswith("whsec_")
    assert (again["endpoint"]["id"], again["secret"]) == (first["endpoint"]["id"], None)


async def test_a_key_that_may_not_use_secrets_sends_none_to_its_own_address(idle_api: Api) -> None:
    operator = {"Authorization": f"Bearer {await idle_api.key('operator')}"}
    author = {"Authorization": f"Bearer {await idle_api.key('developer')}"}
    secret, plain = {"X-Team": "Bearer {secret.TEAM}"}, {"X-Team": "blue"}
    url = "https://hooks.example.com/a"
    problem_of(
        await idle_api.post("/webhooks/endpoints", {"url": url, "headers": secret}, headers=operator), 403, "forbidden"
    )
    made = await idle_api.post("/webhooks/endpoints", {"url": url, "headers": secret}, headers=author)
    path = f"{API}/webhooks/endpoints/{made.json()['endpoint']['id']}"

    async def patch(body: dict[str, Any], headers: dict[str, str]) -> int:
        return (await idle_api.client.patch(path, json=body, headers=headers)).status_code

    elsewhere = {"url": "https://thief.example.com/a"}
    assert await patch(elsewhere, operator) == 403
    assert await patch({**elsewhere, "headers": secret}, operator) == 403
    assert await patch({"headers": {"X-Other": "{secret.TEAM}"}}, operator) == 403
    assert (await idle_api.client.get(path)).json()["url"] == url
    assert await patch({"description": "team"}, operator) == 200
    assert await patch(elsewhere, author) == 200
    # Without a secret in its headers, it may be sent anywhere.
    assert await patch({**elsewhere, "headers": plain}, operator) == 200
    assert await patch({"url": url}, operator) == 200


async def test_a_new_address_is_refused_if_the_headers_have_changed_since_the_check(
    idle_api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = {"Authorization": f"Bearer {await idle_api.key('operator')}"}
    made = await idle_api.post("/webhooks/endpoints", {"url": "https://hooks.example.com/a"})
    path = f"{API}/webhooks/endpoints/{made.json()['endpoint']['id']}"
    find = webhook_routes.find_endpoint

    async def find_then_change(*given: Any) -> WebhookEndpoint:
        found = await find(*given)
        monkeypatch.setattr(webhook_routes, "find_endpoint", find)
        changed = await idle_api.client.patch(path, json={"headers": {"X-Team": "{secret.TEAM}"}})
        assert changed.status_code == 200
        return found

    monkeypatch.setattr(webhook_routes, "find_endpoint", find_then_change)
    answer = await idle_api.client.patch(path, json={"url": "https://thief.example.com/a"}, headers=operator)
    assert answer.status_code == 409, answer.text
    assert (await idle_api.client.get(path)).json()["url"] == "https://hooks.example.com/a"


async def test_every_type_has_a_valid_schema_and_example(idle_api: Api) -> None:
    found = (await idle_api.get("/webhooks/event-types")).json()["event_types"]
    assert [item["type"] for item in found] == [kind.value for kind in WebhookType]
    for item in found:
        assert check_schema(item["schema"]) is None
        assert misfit(item["example"], item["schema"]) is None


async def test_metrics_count_what_waits(hooked: Api, receiver: WebhookReceiver) -> None:
    receiver.answer(Answer(500))
    await hooked.post("/webhooks/endpoints", {"url": receiver.url(), "types": ["run.completed"]})
    await hooked.run("greet", input={"text": "Ada"})
    await eventually(lambda: receiver.received, "a try")
    text = (await hooked.client.get("/metrics")).text
    assert "runlane_webhook_pending 1.0" in text
    assert "runlane_webhook_oldest_seconds" in text
