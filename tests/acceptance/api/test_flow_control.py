"""Flow control over HTTP, in Client and in App: declared and given rules, responses, reasons and errors."""

from __future__ import annotations

from typing import Any

import pytest

from runlane import App, Client, Context, InvalidRequest, NotFound, Status
from runlane.api.services import WorkerOptions
from runlane.errors import BacklogFull, InvalidFlowControl, RateLimited, UniqueConflict
from runlane.settings import Settings
from tests.acceptance.api.serving import Api, serving
from tests.flow_control import described
from tests.harness import eventually


def make_app(settings: Settings) -> App:
    app = App(settings)

    @app.task("sync", flow_control={"unique": {"key": "{{customer}}", "on_conflict": "return"}})
    async def sync(ctx: Context, customer: str) -> str:
        return customer

    @app.task("plain")
    async def plain(ctx: Context, customer: str = "", text: str = "") -> str:
        return text

    @app.task("render", flow_control={"concurrency": [{"key": "{{customer}}", "max_running": 1}, {"limit": "gpu"}]})
    async def render(ctx: Context, customer: str) -> str:
        return customer

    @app.task("index", flow_control={"batch": {"max_size": 3, "max_wait_seconds": 600}})
    async def index(ctx: Context, items: list[dict[str, Any]]) -> dict[str, Any]:
        return {item["start_id"]: item["input"]["page"] for item in items}

    return app


@pytest.fixture
async def idle(settings: Settings) -> Any:
    async with serving(make_app(settings)) as served:
        yield served


@pytest.fixture
async def busy(settings: Settings) -> Any:
    async with serving(make_app(settings), worker=WorkerOptions()) as served:
        yield served


async def client_of(api: Api) -> Client:
    return Client(api.url, await api.key("developer"))


async def test_a_declared_rule_and_one_given_with_the_start(idle: Api) -> None:
    body = {"input": {"customer": "acme"}}
    first = await idle.post("/tasks/sync/run", body)
    assert (first.status_code, "outcome" in first.json()) == (202, False)
    again = await idle.post("/tasks/sync/run", body)
    assert (again.status_code, again.json()["outcome"]) == (200, "existing")
    assert again.json()["run_id"] == first.json()["run_id"]
    rejected = await idle.post("/tasks/sync/run", {**body, "flow_control": {"unique": {"key": "{{customer}}"}}})
    assert (rejected.status_code, rejected.json()["code"]) == (409, "unique_conflict")
    assert rejected.json()["run_id"] == first.json()["run_id"]
    skipping = {"unique": {"key": "{{customer}}", "on_conflict": "skip"}}
    skipped = await idle.post("/tasks/sync/run", {**body, "flow_control": skipping})
    assert (skipped.status_code, skipped.json()["outcome"], skipped.json()["run_id"]) == (200, "skipped", None)
    removed = await idle.post("/tasks/sync/run", {**body, "flow_control": {"unique": None}})
    assert removed.status_code == 202
    assert removed.json()["run_id"] != first.json()["run_id"]


async def test_a_limit_is_429_with_the_time_to_wait(idle: Api) -> None:
    rate = {"flow_control": {"rate_limit": {"max": 1, "per_seconds": 60}}}
    assert (await idle.post("/tasks/plain/run", rate)).status_code == 202
    limited = await idle.post("/tasks/plain/run", rate)
    assert (limited.status_code, limited.json()["code"]) == (429, "start_limited")
    assert 1 <= int(limited.headers["Retry-After"]) <= 60
    waiting = {"flow_control": {"max_backlog": {"max": 1}}}
    full = await idle.post("/tasks/plain/run", waiting)
    assert full.status_code == 202
    full = await idle.post("/tasks/plain/run", waiting)
    assert (full.status_code, full.json()["code"]) == (429, "backlog_full")


async def test_debounced_starts_name_one_run_and_the_reason_is_readable(idle: Api) -> None:
    async with await client_of(idle) as client:
        rules = {"debounce": {"key": "{{customer}}", "delay_seconds": 600.0}}
        first = await client.enqueue("plain", {"customer": "a", "text": "1"}, flow_control=rules)
        second = await client.enqueue("plain", {"customer": "a", "text": "2"}, flow_control=rules)
        assert (first.run_id, first.debounced, second.debounced) == (second.run_id, True, True)
        run = await client.get(first.run_id)
        assert run.input == {"customer": "a", "text": "2"}
        assert described(run).startswith("debounced until ")


async def test_each_start_of_a_batch_reads_its_part_of_the_result(busy: Api) -> None:
    async with await client_of(busy) as client:
        starts = [await client.enqueue("index", {"page": page}) for page in range(3)]
        assert len({start.run_id for start in starts}) == 1
        waiting = await client.get_start(starts[0].run_id, starts[0].start_id or "")
        assert waiting.run_id == starts[0].run_id
        await client.wait(starts[0].run_id, timeout=60)
        parts = [await client.get_start(start.run_id, start.start_id or "") for start in starts]
        assert [(part.status, part.result) for part in parts] == [("completed", page) for page in range(3)]
    missing = await busy.get(f"/runs/{starts[0].run_id}/starts/start_1")
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_a_run_that_expires_ends_as_cancelled(idle: Api) -> None:
    async with await client_of(idle) as client:
        rules = {"expires_after_seconds": 0.2}
        started = await client.enqueue("plain", hold=True, flow_control=rules)
        run = await eventually(lambda: ended(client, started.run_id), "the run expires")
        assert (run.status, run.error["type"]) == ("cancelled", "expired")


async def ended(client: Client, run_id: str) -> Any:
    run = await client.get(run_id)
    return run if run.status.terminal else None


@pytest.mark.parametrize(
    ("rules", "field"),
    [
        ({"debounce": {"delay_seconds": 0}}, "debounce.delay_seconds"),
        ({"debounce": {"delay_seconds": 5, "max_delay_seconds": 0}}, "debounce.max_delay_seconds"),
        ({"debounce": {"delay_seconds": 5, "max_delay_seconds": 4}}, "debounce"),
        ({"batch": {"max_size": 1001, "max_wait_seconds": 1}}, "batch.max_size"),
        ({"batch": {"max_size": 10}}, "batch.max_wait_seconds"),
        ({"rate_limit": {"max": 0, "per_seconds": 1}}, "rate_limit.max"),
        ({"rate_limit": {"max": 1, "per_seconds": 1, "on_limit": "wait"}}, "rate_limit.on_limit"),
        ({"unique": {"on_conflict": "wait"}}, "unique.on_conflict"),
        ({"uniqe": {}}, "uniqe"),
        ({"throttle": {"max": 1, "per_seconds": 1}, "debounce": {"delay_seconds": 1}}, ""),
        ({"concurrency": [{"key": "a"}]}, "concurrency.0"),
        ({"expires_after_seconds": -1}, "expires_after_seconds"),
        ({"max_backlog": {"max": True}}, "max_backlog.max"),
    ],
)
async def test_a_rule_that_is_not_valid_is_refused_with_its_field(idle: Api, rules: dict[str, Any], field: str) -> None:
    answer = await idle.post("/tasks/plain/run", {"flow_control": rules})
    assert answer.status_code == 422, answer.text
    named = [item["field"] for item in answer.json()["fields"]]
    assert any(name.startswith(f"body.flow_control{f'.{field}' if field else ''}") for name in named), named
    async with await client_of(idle) as client:
        with pytest.raises(InvalidRequest):
            await client.enqueue("plain", flow_control=rules)


@pytest.mark.parametrize(
    ("template", "given"),
    [("{{nothing}}", {}), ("{{customer.id}}", {"customer": "a"}), ("{{customer}}", {"customer": "x" * 257})],
    ids=["missing", "not an object", "too long"],
)
async def test_a_key_that_cannot_be_made_is_refused_with_field_and_cure(
    idle: Api, template: str, given: dict[str, Any]
) -> None:
    body = {"input": given, "flow_control": {"unique": {"key": template}}}
    answer = await idle.post("/tasks/plain/run", body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_flow_control")
    assert [item["field"] for item in answer.json()["fields"]] == ["body.flow_control.unique.key"]
    listed = await idle.get("/runs")
    assert listed.json()["runs"] == []


@pytest.mark.parametrize(
    ("rules", "options"),
    [
        ({"debounce": {"delay_seconds": 5}}, {"delay_seconds": 5}),
        ({"throttle": {"max": 1, "per_seconds": 5}}, {"delay_seconds": 5}),
        ({"batch": {"max_size": 5, "max_wait_seconds": 5}}, {"ordering_key": "k"}),
        ({"batch": {"max_size": 5, "max_wait_seconds": 5}}, {"hold": True}),
    ],
)
async def test_options_that_contradict_a_rule_are_refused(
    idle: Api, rules: dict[str, Any], options: dict[str, Any]
) -> None:
    answer = await idle.post("/tasks/plain/run", {**options, "flow_control": rules})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_flow_control")


async def test_errors_have_their_classes_in_the_client(idle: Api) -> None:
    async with await client_of(idle) as client:
        rules = {"unique": {"key": "k"}}
        first = await client.enqueue("plain", flow_control=rules)
        with pytest.raises(UniqueConflict) as raised:
            await client.enqueue("plain", flow_control=rules)
        assert raised.value.run_id == first.run_id
        with pytest.raises(InvalidFlowControl):
            await client.enqueue("plain", flow_control={"unique": {"key": "{{x}}"}})
        await client.enqueue("plain", flow_control={"max_backlog": {"key": "b", "max": 1}})
        with pytest.raises(BacklogFull) as full:
            await client.enqueue("plain", flow_control={"max_backlog": {"key": "b", "max": 1}})
        assert isinstance(full.value, RateLimited)


async def test_orchestrations_agents_and_triggers_declare_rules(busy: Api) -> None:
    async with await client_of(busy) as client:
        rules = {"unique": {"key": "{{order}}", "on_conflict": "return"}}
        steps = [{"id": "wait", "type": "wait", "event": "go"}]
        trigger = {
            "id": "on-edit",
            "event": "doc.edited",
            "task": "plain",
            "input": {"customer": "{{event.data.doc}}", "text": "{{event.data.text}}"},
            "flow_control": {"debounce": {"key": "{{customer}}", "delay_seconds": 600}},
        }
        await client.sync(
            {
                "orchestrations": [{"id": "order", "steps": steps, "flow_control": rules}],
                "agents": [{"id": "helper", "model": "scripted", "answers": ["hi"], "flow_control": rules}],
                "triggers": [trigger],
            }
        )
        first = await client.orchestrate("order", input={"order": 7})
        assert (await client.orchestrate("order", input={"order": 7})).run_id == first.run_id
        assert (await client.orchestrate("order", input={"order": 8})).run_id != first.run_id
        for text in ("a", "b"):
            await client.broadcast("doc.edited", {"doc": "d1", "text": text})

        async def debounced() -> Any:
            found = [run async for run in client.list(target="plain")]
            return found[0] if found and found[0].last_seq == 2 else None

        run = await eventually(debounced, "both events become one run")
        assert (run.status, len([run async for run in client.list(target="plain")])) == ("scheduled", 1)


async def test_an_invalid_key_of_a_definition_is_reported_with_its_location(idle: Api) -> None:
    broken = {
        "id": "order",
        "steps": [{"id": "done", "type": "end"}],
        "flow_control": {"unique": {"key": "{{order id}}"}},
    }
    async with await client_of(idle) as client:
        with pytest.raises(InvalidRequest, match=r"flow_control\.unique\.key"):
            await client.sync({"orchestrations": [broken]})


async def test_declared_concurrency_limits_bound_what_starts(idle: Api) -> None:
    async with await client_of(idle) as client:
        with pytest.raises(NotFound, match='"gpu" does not exist'):
            await client.enqueue("render", {"customer": "customer-7"})
        async with Client(idle.url, await idle.key("operator")) as operator:
            await operator.set_concurrency_limit("gpu", 2)
        first = await client.enqueue("render", {"customer": "customer-7"})
        second = await client.enqueue("render", {"customer": "customer-7"})
        other = await client.enqueue("render", {"customer": "customer-8"})
        assert [run.status for run in (first, second, other)] == [Status.QUEUED, Status.BLOCKED, Status.QUEUED]
        assert described(await client.get(second.run_id)) == "1 of 1 runs for customer-7 are queued or running"
        third = await client.enqueue("render", {"customer": "customer-9"})
        reason = (await client.get(third.run_id)).waiting_reason
        assert reason is not None
        assert (reason["code"], reason["message"]) == ("concurrency_limit", "2 of 2 runs for gpu are queued or running")
        assert set(reason["runs"]) == {first.run_id, other.run_id}
        await client.cancel(first.run_id)

        async def admitted() -> bool:
            return (await client.get(third.run_id)).status is Status.QUEUED or (
                (await client.get(second.run_id)).status is Status.QUEUED
            )

        await eventually(admitted)


async def test_a_limit_given_with_the_start_may_reject_it(idle: Api) -> None:
    async with await client_of(idle) as client:
        once = {"concurrency": [{"max_running": 1, "strategy": "reject_new"}]}
        await client.enqueue("plain", {}, flow_control=once)
        with pytest.raises(RateLimited) as refused:
            await client.enqueue("plain", {}, flow_control=once)
        assert refused.value.code == "concurrency_limited"
        with pytest.raises(InvalidRequest, match="leave out the key"):
            await client.enqueue("plain", {}, flow_control={"concurrency": [{"key": "a", "limit": "gpu"}]})


async def test_thirty_runs_of_one_customer_run_two_at_a_time(settings: Settings) -> None:
    app = App(settings)
    running, most = 0, 0

    @app.task("count", flow_control={"concurrency": [{"key": "{{customer}}", "max_running": 2}]})
    async def count(ctx: Context, customer: str) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await ctx.log("counted")
        running -= 1

    async with serving(app, worker=WorkerOptions()) as api, await client_of(api) as client:
        runs = await client.enqueue_many([("count", {"customer": "a"})] * 30)
        ended = [await client.wait(run.run_id, 60) for run in runs]
    assert {run.status for run in ended} == {Status.COMPLETED}
    assert most == 2


async def test_skipped_starts_are_shown_with_their_keys(idle: Api) -> None:
    rules = {"unique": {"key": "{{customer}}", "on_conflict": "skip"}}
    async with await client_of(idle) as client:
        for _ in range(3):
            await client.enqueue("plain", {"customer": "acme"}, flow_control=rules)
        await client.enqueue("index", {"page": 1})
        first, second = await client.flow_keys()
        assert {first.rule.value, second.rule.value} == {"unique", "batch"}
        (skipped,) = await client.flow_keys(only_skipped=True)
        assert (skipped.target, skipped.key, skipped.skipped, skipped.run_id) == ("plain", "acme", 2, None)
        (batch,) = await client.flow_keys(rule="batch", target="index")
        assert (batch.starts, batch.run_id is not None, batch.due_at_us is not None) == (1, True, True)
        (page,) = await client.flow_keys(limit=1)
        assert await client.flow_keys(limit=1, after=page.id) == [second]
        with pytest.raises(NotFound):
            await client.flow_keys(tenant="another")
    assert (await idle.get("/flow-control/keys", params={"cursor": "AA=="})).status_code == 422
