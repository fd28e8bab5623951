"""Webhooks on both databases: the outbox, the claims of deliveries, their results, the health of endpoints."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from runlane.api.schemas.actions import ResumeRun
from runlane.definitions.forms import validate
from runlane.definitions.schema.step import HumanField
from runlane.domain.run import RunHook
from runlane.domain.webhook import (
    CIRCUIT_FAILURES,
    DISABLE_AFTER_US,
    DeliveryStatus,
    ErrorKind,
    RecentDeliveries,
    origin_id,
)
from runlane.domain.webhook_events import WebhookType, schema_of
from runlane.domain.webhook_places import Places
from runlane.errors import Conflict, NotFound, QuotaReached, WrongState
from runlane.store.orchestration.resume import answer_wait
from runlane.store.orchestration.waits import NewWait
from runlane.store.queue.reaping import take_over
from runlane.store.queue.revival import retry_run
from runlane.store.queue.run_changes import cancel_run
from runlane.store.sql.database import Session
from runlane.store.webhooks.claims import ClaimedDeliveries, ClaimedDelivery, claim_deliveries
from runlane.store.webhooks.deliveries import (
    REPLAY_AT_ONCE,
    list_deliveries,
    read_delivery,
    replay_all,
    replay_delivery,
    replay_many,
)
from runlane.store.webhooks.endpoints import (
    EndpointFields,
    create_endpoint,
    delete_endpoint,
    disable_endpoint,
    enable_endpoint,
    find_endpoint,
    list_endpoints,
    set_endpoint,
)
from runlane.store.webhooks.outbox import NewMessage, add_messages
from runlane.store.webhooks.recent import RECENT
from runlane.store.webhooks.results import TryResult, record_tries, release
from runlane.store.webhooks.retention import delete_old_messages, webhook_overview
from runlane.store.webhooks.run_webhooks import RunWebhook
from runlane.store.webhooks.secrets import NewSecret
from runlane.templates.json_schema import misfit
from tests.harness import Store, completed, dead, entry_of, new_run
from tests.webhook_receiver import FAILED_DELIVERIES

LEASE_US = 60_000_000
OK = TryResult(DeliveryStatus.DELIVERED, 1, 1, status_code=200)
NO = TryResult(
    DeliveryStatus.PENDING, 1, 1, status_code=500, error_kind=ErrorKind.STATUS, error="no", delay_us=5_000_000
)
GONE = TryResult(DeliveryStatus.FAILED, 1, 1, status_code=410, error_kind=ErrorKind.GONE, error="gone")


async def endpoint(store: Store, name: str = "we_a", tenant: str = "default", **fields: Any) -> str:
    """Create an endpoint; its secret is not read by the store."""
    whole: dict[str, Any] = {
        "url": "https://example.com/hook", "description": "", "types": [], "filter": {}, "include": [], "headers": {},
        "rate_per_second": 1000.0, "max_in_flight": 100, "ordered": False,
    }  # fmt: skip
    secret = NewSecret(name, 1, tenant, "key", "sealed")
    await create_endpoint(
        store.database, name, tenant, EndpointFields(**whole | fields), "hmac", secret, most=50, actor="test"
    )
    return name


async def claimed_for(store: Store, *, total: int, sending: Sequence[ClaimedDelivery] = ()) -> ClaimedDeliveries:
    """Claim for a process with this number of places that is sending these deliveries."""
    held = [(item.tenant, item.endpoint_id) for item in sending]
    return await store.database.transact(
        lambda session: claim_deliveries(session, Places.of_process(total, held), LEASE_US)
    )


async def claim(store: Store, slots: int = 100) -> list[ClaimedDelivery]:
    """Claim as if this number of places were free in several processes."""
    found = await store.database.transact(
        lambda session: claim_deliveries(session, Places(slots, slots, slots), LEASE_US)
    )
    return list(found.deliveries)


async def record(store: Store, *results: tuple[ClaimedDelivery, TryResult]) -> int:
    return await store.database.transact(lambda session: record_tries(session, results))


async def send(store: Store, count: int = 1, **fields: Any) -> None:
    """Add messages to the outbox."""
    given: dict[str, Any] = {"tenant": "default", "type": "run.completed", "data": {"target": "job"}, **fields}
    message = NewMessage(**given)
    await store.database.transact(lambda session: add_messages(session, [message] * count))


async def make_due(store: Store) -> None:
    await store.sql("update webhook_deliveries set next_at = 1 where next_at is not null")


async def types(store: Store) -> list[str]:
    return [item.type for item in reversed(await list_deliveries(store.database, limit=1000))]


async def test_the_end_of_a_run_is_reported_in_its_transaction(store: Store) -> None:
    await endpoint(store)
    await store.add()
    claimed = await store.claim_one()
    await store.finish(claimed)
    assert await types(store) == ["run.started", "run.completed"]
    body = json.loads((await claim(store))[-1].body)
    assert body["type"] == "run.completed"
    assert body["data"]["run_id"] == claimed.run_id
    assert body["data"]["status"] == "completed"
    assert body["data"]["error"] is None
    assert body["data"]["url"] == f"/api/v2/runs/{claimed.run_id}"


async def test_a_change_that_is_rolled_back_sends_nothing(store: Store) -> None:
    await endpoint(store)

    async def work(session: Session) -> None:
        await add_messages(session, [NewMessage("default", "run.completed", {})])
        raise Conflict("no")

    with pytest.raises(Conflict):
        await store.database.transact(work)
    assert await types(store) == []


async def test_a_record_that_the_fence_rejects_sends_nothing(store: Store) -> None:
    await endpoint(store, types=["run.completed"])
    await store.add()
    claimed = await store.claim_one()
    await store.sql("update runs set attempt = attempt + 1")
    assert await store.finish(claimed) is None
    assert await types(store) == []


async def test_without_endpoints_nothing_is_stored(store: Store) -> None:
    await store.add()
    await store.finish(await store.claim_one())
    assert await store.sql("select * from webhook_messages") == []


async def test_every_way_to_end_and_to_retry_is_reported(store: Store) -> None:
    await endpoint(store, types=["run.failed", "run.cancelled", "run.retried", "dead_letter.created"])
    failed = await store.add()
    await store.finish(await store.claim_one(), dead("it broke"))
    assert await types(store) == ["run.failed", "dead_letter.created"]
    waiting = await store.add()
    await cancel_run(store.database, waiting)
    await retry_run(store.database, failed)
    assert await types(store) == ["run.failed", "dead_letter.created", "run.cancelled", "run.retried"]
    claimed = await store.claim_one()
    assert claimed.run_id == failed
    await store.sql("update runs set cancel_requested_at = 1")
    worker = (await store.sql("select worker_id from runs where status = 'running'"))[0]["worker_id"]
    await store.database.transact(lambda session: take_over(session, [worker]))
    assert (await types(store))[-1] == "run.cancelled"
    error = json.loads((await claim(store))[0].body)["data"]["error"]
    assert error == {"type": "Error", "code": None, "message": "it broke"}


async def test_a_question_is_reported_once(store: Store) -> None:
    await endpoint(store, types=["run.waiting"])
    await store.add()
    claimed = await store.claim_one()
    wait = NewWait("ask", "human", "ask", "ask", '{"prompt":"Publish?","fields":[]}')
    event = NewWait("pay", "event", "pay", "pay", "{}")
    await store.record(entry_of(claimed, waits=[wait, event]))
    await store.record(entry_of(claimed, waits=[wait]))
    assert await types(store) == ["run.waiting"]
    data = json.loads((await claim(store))[0].body)["data"]
    assert (data["path"], data["prompt"], data["lane"]) == ("ask", "Publish?", "default")


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ([], ["answer"]),
        ([{"name": "note", "type": "text"}], ["answer"]),
        ([{"name": "ok", "type": "boolean"}], ["answer", "yes", "no"]),
        (
            [
                {"name": "decision", "type": "select", "options": ["approve", "edit", "deny"], "required": True},
                {"name": "arguments", "type": "textarea"},
            ],
            ["answer", "approve", "deny"],
        ),
        (
            [
                {"name": "a", "type": "select", "options": ["x", "y"], "required": True},
                {"name": "b", "type": "text", "required": True},
            ],
            ["answer"],
        ),
    ],
    ids=["free text", "one string", "yes or no", "tool approval", "two required"],
)
async def test_a_question_has_the_requests_that_answer_it(
    store: Store, fields: list[dict[str, Any]], names: list[str]
) -> None:
    await endpoint(store, types=["run.waiting"])
    run_id = await store.add()
    request = json.dumps({"prompt": "Publish?", "fields": fields})
    wait = NewWait("a/ask", "human", "ask", "ask", request)
    await store.record(entry_of(await store.claim_one(), waits=[wait]))
    data = json.loads((await claim(store))[0].body)["data"]
    assert [action["name"] for action in data["actions"]] == names
    for action in data["actions"]:
        assert (action["method"], action["url"]) == ("POST", f"/api/v2/runs/{run_id}/resume")
        assert action["body"]["step"] == "a/ask"
        # Each body is a request of the API, and each choice is a complete answer.
        answer = ResumeRun.model_validate(action["body"])
        if action["name"] != "answer":
            validate([HumanField.model_validate(field) for field in fields], answer.response)


async def test_an_answer_is_reported(store: Store) -> None:
    await endpoint(store, types=["run.answered"])
    run_id = await store.add()
    claimed = await store.claim_one()
    await store.record(entry_of(claimed, waits=[NewWait("ask", "human", "ask", "ask", "{}")]))
    await answer_wait(store.database, run_id, "ask", {"ok": True}, "mara")
    data = json.loads((await claim(store))[0].body)["data"]
    assert (data["run_id"], data["path"], data["answered_by"]) == (run_id, "ask", "mara")
    with pytest.raises(WrongState):
        await answer_wait(store.database, run_id, "ask", {"ok": False}, "other")
    assert await types(store) == ["run.answered"]


async def test_the_end_of_a_chat_turn_is_reported(store: Store) -> None:
    await endpoint(store, types=["chat.turn.completed", "chat.turn.failed"])
    for finish in (completed('"hello"'), dead()):
        run_id = await store.add()
        await store.sql(
            "insert into chat_turns (session_id, turn, run_id, message, at) values (:run, 3, :run, 'hi', 1)", run=run_id
        )
        await store.finish(await store.claim_one(), finish)
    assert await types(store) == ["chat.turn.completed", "chat.turn.failed"]
    assert json.loads((await claim(store))[0].body)["data"]["turn"] == 3


async def test_an_endpoint_takes_its_types_and_targets_alone(store: Store) -> None:
    await endpoint(store, "we_a", types=["run.failed"])
    await endpoint(store, "we_b", filter={"target": ["other"]})
    await endpoint(store, "we_c", filter={"target": ["job"], "tag": ["x"]})
    await send(store, data={"target": "job", "tags": ["x", "y"]})
    assert [item.endpoint_id for item in await claim(store)] == ["we_c"]


async def test_messages_of_runs_have_tags_and_lane_and_are_filtered_by_them(store: Store) -> None:
    await endpoint(store, "we_tag", filter={"tag": ["eu", "us"]})
    await endpoint(store, "we_lane", filter={"lane": ["other"]})
    tagged = await store.add(tags=("eu", "nightly"))
    await store.add(tags=("nightly",))
    for _ in range(2):
        await store.finish(await store.claim_one(), dead())
    await retry_run(store.database, tagged)
    found = [(item.endpoint_id, item.run_id, json.loads(item.body)) for item in await claim(store)]
    assert {(name, run_id) for name, run_id, _ in found} == {("we_tag", tagged)}
    assert [body["type"] for _, _, body in found] == ["run.started", "run.failed", "dead_letter.created", "run.retried"]
    for _, _, body in found:
        assert (body["data"]["tags"], body["data"]["lane"]) == (["eu", "nightly"], "default")
        assert misfit(body, schema_of(WebhookType(body["type"]))) is None


async def test_endpoints_of_other_tenants_get_nothing(store: Store) -> None:
    await store.sql("insert into tenants (id, name, created_at, updated_at) values ('acme', 'acme', 0, 0)")
    await endpoint(store, "we_acme", "acme")
    await send(store)
    assert await claim(store) == []
    await send(store, tenant="acme")
    assert [item.tenant for item in await claim(store)] == ["acme"]
    assert [item.id for item in await list_endpoints(store.database, "default")] == []


async def test_a_batch_of_two_tenants_is_kept_apart(store: Store) -> None:
    await store.sql("insert into tenants (id, name, created_at, updated_at) values ('acme', 'acme', 0, 0)")
    await endpoint(store, "we_a")
    await endpoint(store, "we_acme", "acme")
    messages = [NewMessage(tenant, "run.completed", {}) for tenant in ("default", "acme")]
    assert await store.database.transact(lambda session: add_messages(session, messages)) == 2
    assert {(item.tenant, item.endpoint_id) for item in await claim(store)} == {
        ("default", "we_a"),
        ("acme", "we_acme"),
    }


async def test_the_webhook_of_a_run_gets_its_end_with_result_and_state(store: Store) -> None:
    sealed = NewSecret("x", 1, "default", "key", "sealed")
    run = new_run(target="orchestration:flow", hooks=RunHook.WEBHOOK.value)
    webhook = RunWebhook("https://example.com/own?x=1", sealed=NewSecret(run.id, 1, "default", "key", sealed.value))
    await store.add_all(run._replace(webhook=webhook))
    (claimed,) = await store.claim(await store.worker(), targets=("orchestration:",))
    await store.finish(claimed, completed('{"answer":42}'))
    (delivery,) = await claim(store)
    assert delivery.url == webhook.url
    assert delivery.own
    assert delivery.endpoint_id == origin_id("default", webhook.url)
    assert [secret.owner for secret in delivery.secrets] == [run.id]
    body = json.loads(delivery.body)
    assert body["orchestration_id"] == "flow"
    assert (body["result"], body["shared_state"], body["error"]) == ({"answer": 42}, {}, None)
    assert body["data"]["status"] == body["status"] == "completed"
    assert await list_endpoints(store.database) == []


async def test_included_results_are_bounded(store: Store) -> None:
    await endpoint(store, "we_a", types=["run.completed"], include=["input", "result"])
    await endpoint(store, "we_b", types=["run.completed"])
    await store.add(input='{"n":1}')
    await store.finish(await store.claim_one(), completed('{"n":2}'))
    with_more, plain = [
        json.loads(item.body)["data"] for item in sorted(await claim(store), key=lambda d: d.endpoint_id)
    ]
    assert (with_more["input"], with_more["result"]) == ({"n": 1}, {"n": 2})
    assert "result" not in plain
    await store.add()
    await store.finish(await store.claim_one(), completed(json.dumps("x" * 70_000)))
    large = next(json.loads(item.body)["data"] for item in await claim(store) if item.endpoint_id == "we_a")
    assert (large["result"], large["result_url"]) == (None, large["url"])


async def test_the_content_of_memory_runs_is_not_included(store: Store) -> None:
    """It needs memory:read, which a reader of deliveries and the owner of an endpoint may lack."""
    await endpoint(store, types=["run.completed"], include=["input", "result"])
    await store.add(target="runlane.memory.import", input='{"entries":["private"]}')
    (claimed,) = await store.claim(await store.worker(), targets=["runlane.memory.import"])
    await store.finish(claimed, completed('{"entries":1}'))
    (delivery,) = await claim(store)
    assert json.loads(delivery.body)["data"]["input"] is None
    assert "private" not in delivery.body


async def test_a_claimed_delivery_is_leased_and_fenced(store: Store) -> None:
    await endpoint(store)
    await send(store)
    (first,) = await claim(store)
    assert await claim(store) == []
    await store.sql("update webhook_deliveries set next_at = 1")
    (second,) = await claim(store)
    assert (second.id, second.fence) == (first.id, first.fence + 1)
    assert await record(store, (first, OK)) == 0
    assert await record(store, (second, OK)) == 1
    log = await read_delivery(store.database, first.id)
    assert (log.status, log.tries, [item.number for item in log.attempts]) == (DeliveryStatus.DELIVERED, 1, [1])
    assert await claim(store) == []


async def test_a_failed_try_is_retried_later_and_every_try_is_kept(store: Store) -> None:
    await endpoint(store)
    await send(store)
    (first,) = await claim(store)
    await record(store, (first, NO))
    assert await claim(store) == []
    await make_due(store)
    (again,) = await claim(store)
    assert (again.tries, again.message_id) == (1, first.message_id)
    await record(store, (again, OK))
    log = await read_delivery(store.database, first.id)
    assert [item.status_code for item in log.attempts] == [500, 200]
    assert [item.error_kind for item in log.attempts] == ["status", None]


async def test_a_stopping_process_gives_its_deliveries_back(store: Store) -> None:
    await endpoint(store)
    await send(store)
    claimed = await claim(store)
    await store.database.transact(lambda session: release(session, claimed))
    (again,) = await claim(store)
    assert again.id == claimed[0].id
    assert await record(store, (claimed[0], OK)) == 0


async def test_concurrency_and_rate_of_an_endpoint_bound_its_claims(store: Store) -> None:
    await endpoint(store, "we_a", max_in_flight=2)
    await endpoint(store, "we_b", rate_per_second=3.0)
    await send(store, 10)
    counts = [item.endpoint_id for item in await claim(store)]
    assert (counts.count("we_a"), counts.count("we_b")) == (2, 3)
    assert await claim(store) == []


async def test_one_endpoint_does_not_take_the_slots_of_another(store: Store) -> None:
    await endpoint(store, "we_a")
    await endpoint(store, "we_b")
    await send(store, 50)
    counts = [item.endpoint_id for item in await claim(store, 10)]
    assert (counts.count("we_a"), counts.count("we_b")) == (5, 5)


async def test_an_ordered_endpoint_gets_the_messages_of_a_run_one_at_a_time(store: Store) -> None:
    await endpoint(store, ordered=True)
    for kind in ("run.started", "run.completed"):
        await send(store, type=kind, run_id="run_1")
    await send(store, run_id="run_2")
    claimed = await claim(store)
    assert sorted((item.run_id, item.type) for item in claimed) == [
        ("run_1", "run.started"),
        ("run_2", "run.completed"),
    ]
    await record(store, *((item, NO) for item in claimed if item.run_id == "run_1"))
    assert await claim(store) == []
    await make_due(store)
    (again,) = [item for item in await claim(store) if item.run_id == "run_1"]
    assert again.type == "run.started"
    await record(store, (again, TryResult(DeliveryStatus.FAILED, 1, 1, status_code=500)))
    assert [item.type for item in await claim(store)] == ["run.completed"]


async def test_a_failing_endpoint_is_probed_one_delivery_at_a_time(store: Store) -> None:
    await endpoint(store)
    await send(store, CIRCUIT_FAILURES + 5)
    claimed = await claim(store, CIRCUIT_FAILURES)
    await record(store, *((item, NO) for item in claimed))
    state = await find_endpoint(store.database, "we_a")
    assert (state.health, state.failures) == ("failing", CIRCUIT_FAILURES)
    assert await claim(store) == []
    assert not (await store.sql("select * from webhook_deliveries where next_at <= 2"))
    await store.sql("update webhook_endpoints set probe_at = 1")
    await make_due(store)
    (probe,) = await claim(store)
    assert await claim(store) == []
    await record(store, (probe, OK))
    assert (await find_endpoint(store.database, "we_a")).health == "healthy"
    assert len(await claim(store)) == CIRCUIT_FAILURES + 4


async def test_an_endpoint_has_the_outcomes_of_its_latest_messages(store: Store) -> None:
    await endpoint(store)
    await endpoint(store, "we_b", types=["run.failed"])
    await send(store, 4)
    one, two, three, _ = await claim(store)
    await record(store, (one, OK), (two, OK), (three, TryResult(DeliveryStatus.FAILED, 1, 1, status_code=400)))
    await replay_delivery(store.database, one.id, max_tries=1, actor="test")
    found = await list_endpoints(store.database)
    assert [(item.id, item.recent) for item in found] == [
        ("we_a", RecentDeliveries(delivered=2, failed=1)),
        ("we_b", RecentDeliveries(delivered=0, failed=0)),
    ]
    assert (await find_endpoint(store.database, "we_a")).recent == RecentDeliveries(delivered=2, failed=1)
    # Only the latest are counted.
    await store.sql("update webhook_deliveries set status = 'failed' where status = 'delivered'")
    await send(store, RECENT)
    await store.sql("update webhook_deliveries set status = 'delivered' where status = 'pending'")
    assert (await find_endpoint(store.database, "we_a")).recent == RecentDeliveries(delivered=RECENT, failed=0)


async def test_gone_disables_the_endpoint_and_the_others_learn_of_it(store: Store) -> None:
    await endpoint(store, "we_a")
    await endpoint(store, "we_b", types=["endpoint.disabled"])
    await send(store, 3)
    first, *rest = await claim(store)
    await record(store, (first, GONE))
    state = await find_endpoint(store.database, "we_a")
    assert (state.enabled, state.disabled_reason) == (False, "The endpoint answered 410 Gone.")
    assert [(item.endpoint_id, item.type) for item in await claim(store)] == [("we_b", "endpoint.disabled")]
    assert [row["action"] for row in await store.sql("select action from audit order by id")][-1] == "webhook.disable"
    await record(store, *((item, NO) for item in rest))


async def test_messages_of_a_disabled_endpoint_are_held_until_it_is_enabled(store: Store) -> None:
    await endpoint(store)
    await disable_endpoint(store.database, "we_a", "pause", actor="test")
    await send(store, 2)
    assert await claim(store) == []
    held = await list_deliveries(store.database, status="held")
    assert len(held) == 2
    _, count = await enable_endpoint(store.database, "we_a", send_held=True, actor="test")
    assert (count, len(await claim(store))) == (2, 2)
    await disable_endpoint(store.database, "we_a", "pause", actor="test")
    await send(store)
    assert await claim(store) == []
    _, count = await enable_endpoint(store.database, "we_a", send_held=False, actor="test")
    assert (count, len(await claim(store))) == (1, 0)


async def test_five_days_of_failures_disable_an_endpoint(store: Store) -> None:
    await endpoint(store)
    await store.sql(
        "update webhook_endpoints set failures = 30, failed_messages = 19, first_failure_at = "
        f"created_at - {DISABLE_AFTER_US}"
    )
    await send(store, 2)
    (item,) = await claim(store, 1)
    await record(store, (item, NO))
    state = await find_endpoint(store.database, "we_a")
    assert not state.enabled
    assert state.disabled_reason is not None
    assert "5 days" in state.disabled_reason


async def test_a_replay_has_the_same_id_and_leaves_the_health(store: Store) -> None:
    await endpoint(store)
    await send(store)
    (item,) = await claim(store)
    await record(store, (item, TryResult(DeliveryStatus.FAILED, 1, 1, status_code=500)))
    before = await find_endpoint(store.database, "we_a")
    await disable_endpoint(store.database, "we_a", "broken", actor="test")
    new = await replay_delivery(store.database, item.id, max_tries=1, actor="test")
    assert (new.replay_of, new.message_id) == (item.id, item.message_id)
    (replayed,) = await claim(store)
    assert (replayed.body, replayed.message_id) == (item.body, item.message_id)
    await record(store, (replayed, TryResult(DeliveryStatus.FAILED, 1, 1, status_code=410, error_kind=ErrorKind.GONE)))
    after = await find_endpoint(store.database, "we_a")
    assert (after.failures, after.first_failure_at_us) == (before.failures, before.first_failure_at_us)


async def test_failed_deliveries_are_replayed_together(store: Store) -> None:
    await endpoint(store)
    await send(store, 3)
    await send(store, type="run.failed")
    claimed = await claim(store)
    await record(store, *((item, TryResult(DeliveryStatus.FAILED, 1, 1, status_code=500)) for item in claimed))
    wanted: dict[str, Any] = {"endpoint": "we_a", "run_id": None, "since_us": None, "before": None, "max_tries": 1}
    replay = await replay_many(store.database, "default", status="failed", type="run.completed", actor="t", **wanted)
    assert (replay.replayed, replay.more) == (3, False)
    other = await replay_many(store.database, "acme", status="failed", type=None, actor="t", **wanted)
    assert other.replayed == 0
    assert sorted(item.message_id for item in await claim(store)) == sorted(item.message_id for item in claimed[:3])


async def test_a_replay_of_more_than_one_request_repeats_nothing(store: Store) -> None:
    await endpoint(store)
    count = REPLAY_AT_ONCE + 2
    await store.sql(FAILED_DELIVERIES, count=count)
    wanted: dict[str, Any] = {"endpoint": "we_a", "status": "failed", "type": None, "run_id": None, "since_us": None}
    assert await replay_all(store.database, "default", max_tries=1, actor="t", **wanted) == count
    rows = await store.sql("select replay_of from webhook_deliveries where replay_of is not null")
    assert len({row["replay_of"] for row in rows}) == len(rows) == count


async def test_a_deleted_endpoint_gets_nothing_more(store: Store) -> None:
    await endpoint(store)
    await send(store)
    await delete_endpoint(store.database, "we_a", actor="test")
    assert await claim(store) == []
    assert [item.status for item in await list_deliveries(store.database)] == [DeliveryStatus.DISCARDED]
    with pytest.raises(NotFound):
        await find_endpoint(store.database, "we_a")
    await send(store)
    assert len(await list_deliveries(store.database)) == 1


async def test_a_change_with_an_old_version_is_refused(store: Store) -> None:
    await endpoint(store)
    changed = await set_endpoint(store.database, "we_a", EndpointFields(description="x"), version=1, actor="t")
    assert (changed.version, changed.description, changed.url) == (2, "x", "https://example.com/hook")
    with pytest.raises(Conflict, match="version 2 and not 1"):
        await set_endpoint(store.database, "we_a", EndpointFields(description="y"), version=1, actor="t")


async def test_a_tenant_has_a_limited_number_of_endpoints(store: Store) -> None:
    await endpoint(store, "we_a")
    with pytest.raises(QuotaReached, match="1 of at most 1 webhook endpoints"):
        await create_endpoint(
            store.database,
            "we_b",
            "default",
            EndpointFields(url="https://example.com"),
            "hmac",
            NewSecret("we_b", 1, "default", "k", "v"),
            most=1,
            actor="t",
        )


async def test_retention_deletes_messages_with_their_log(store: Store) -> None:
    await endpoint(store)
    await send(store, 2)
    first, _ = await claim(store)
    await record(store, (first, OK))
    await store.sql("update webhook_messages set created_at = 1 where id = :id", id=first.message_id)
    assert (await webhook_overview(store.database)).pending == 1
    assert await store.database.transact(lambda session: delete_old_messages(session, 3600.0)) == 1
    assert len(await list_deliveries(store.database)) == 1
    assert await store.sql("select * from webhook_attempts") == []
