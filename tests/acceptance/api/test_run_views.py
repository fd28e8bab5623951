"""What a page about a run reads: why it waits, its timeline, its graph, its events and their values."""

from __future__ import annotations

from typing import Any

import pytest

from runlane.api.services import WorkerOptions
from runlane.app import App
from runlane.catalog.sync import sync_definitions
from runlane.definitions.loader import parse_bodies
from runlane.store.access.tenants import create_tenant
from runlane.store.queue.lanes import LaneChange, set_lane
from tests.acceptance.api.flows import ARTICLE, PAYMENT, TWO, bring, say
from tests.acceptance.api.serving import API, Api, serving
from tests.acceptance.api.test_orchestrations import ended, paused, start
from tests.acceptance.api.test_runs import problem_of
from tests.harness import eventually

ROUNDS = 25
LOOPING: dict[str, Any] = {
    "id": "looping",
    "entry_step_id": "first",
    "steps": [
        say("first", "begin", next_step_id="check"),
        {
            "id": "check", "type": "if_else", "if_condition": "state.get('user_input') == 'long'",
            "if_true_step_id": "rounds", "if_false_step_id": "inner",
        },
        {"id": "rounds", "type": "loop", "loop_step_ids": ["body"], "loop_count": ROUNDS, "next_step_id": "inner"},
        say("body", "again"),
        {"id": "inner", "type": "orchestration", "orchestration_id": "small", "output_key": "inner"},
    ],
}  # fmt: skip
ASKING: dict[str, Any] = {
    "id": "asking",
    "steps": [
        {
            "id": "each", "type": "loop", "for_each": f"list(range({ROUNDS}))", "loop_step_ids": ["ask"],
            "max_concurrency": ROUNDS,
        },
        {"id": "ask", "type": "human", "human_prompt": "Go on?", "output_key": "answer"},
    ],
}  # fmt: skip
SMALL: dict[str, Any] = {"id": "small", "steps": [say("one", "1", next_step_id="two"), say("two", "2")]}


def by_path(answer: Any) -> dict[str, dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return {span["path"]: span for span in answer.json()["spans"]}


async def reason_of(api: Api, run_id: str) -> dict[str, Any]:
    return (await api.get(f"/runs/{run_id}")).json()["waiting_reason"]


async def test_a_run_says_why_it_has_not_started(own_app: App) -> None:
    async with serving(own_app) as api:
        run_id = (await api.run("greet", wait=False))["run_id"]
        assert (await reason_of(api, run_id))["code"] == "no_worker"
        database = api.parts.database
        for change, code in (
            (LaneChange(enabled=False), "lane_disabled"),
            (LaneChange(enabled=True, max_slots=0), "lane_paused"),
        ):
            await set_lane(database, "default", change)
            reason = await reason_of(api, run_id)
            assert (reason["code"], reason["refs"]) == (code, {"lane": "default"})
        await set_lane(database, "default", LaneChange(max_slots=5))
        held = (await api.run("greet", wait=False, hold=True))["run_id"]
        assert (await reason_of(api, held))["code"] == "approval"
        later = (await api.run("greet", wait=False, delay_seconds=3600))["run_id"]
        reason = await reason_of(api, later)
        assert reason["code"] == "due"
        assert reason["message"].startswith("it starts at 2")


async def test_a_full_lane_names_the_tenants_own_runs_alone(own_app: App) -> None:
    async with serving(own_app, worker=WorkerOptions(concurrency=4)) as api:
        await create_tenant(api.parts.database, "acme", actor="test")
        acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
        await set_lane(api.parts.database, "slow", LaneChange(max_slots=1))
        first = (await api.run("wait", wait=False, input={"seconds": 60}))["run_id"]

        async def runs() -> bool:
            return (await api.get(f"/runs/{first}")).json()["status"] == "running"

        await eventually(runs, "the first run")
        second = (await api.run("wait", wait=False, input={"seconds": 60}))["run_id"]
        theirs = (await api.post("/tasks/wait/run", {"input": {"seconds": 60}}, headers=acme)).json()["run_id"]
        reason = await reason_of(api, second)
        assert (reason["code"], reason["runs"]) == ("lane_full", [first])
        reason = (await api.get(f"/runs/{theirs}", headers=acme)).json()["waiting_reason"]
        assert (reason["code"], reason["runs"]) == ("lane_full", [])
        for run_id in (first, second, theirs):
            await api.post(f"/runs/{run_id}/cancel")


async def test_a_paused_run_says_what_it_waits_for(api: Api) -> None:
    await bring(api.parts.database, ARTICLE, PAYMENT)
    question = await reason_of(api, await paused(api, "article", message="lanes"))
    assert (question["code"], question["refs"]) == ("question", {"path": "ask"})
    assert "Publish an article on lanes?" in question["message"]
    event = await reason_of(api, await paused(api, "payment", input={"item": "book"}))
    assert (event["code"], event["refs"]["event"]) == ("event", "payment")


async def test_the_timeline_of_a_run_that_waits_and_continues(api: Api) -> None:
    await bring(api.parts.database, TWO)
    run_id = await paused(api, "two")
    spans = by_path(await api.get(f"/runs/{run_id}/timeline"))
    assert spans["split"]["kind"] == "parallel"
    assert (spans["split"]["children"], spans["split"]["ended_at"]) == (2, None)
    assert (spans["split/0"]["kind"], spans["split/0"]["parent"], spans["split/0"]["depth"]) == ("branch", "split", 1)
    assert spans["split/0/left"]["outcome"] == "waiting"
    question = next(span for span in spans.values() if span["kind"] == "question" and span["parent"] == "split/0/left")
    assert (question["name"], question["ended_at"]) == ("Left?", None)
    for step in ("left", "right"):
        await api.post(f"/runs/{run_id}/resume", {"step": step, "response": "yes"})
    await ended(api, run_id)
    spans = by_path(await api.get(f"/runs/{run_id}/timeline"))
    assert {span["outcome"] for span in spans.values()} == {"done"}
    for span in spans.values():
        assert span["started_at"] <= span["ended_at"], span
    # The waiting time belongs to the span, though the duration of the step leaves it out.
    left = spans["split/0/left"]
    assert left["started_at"] <= question["started_at"]
    steps = {step["path"]: step for step in (await api.get(f"/runs/{run_id}/steps")).json()["steps"]}
    assert steps["split/0/left"]["started_at"] == left["started_at"]


async def test_many_rounds_are_one_span_that_opens_page_by_page(api: Api) -> None:
    await bring(api.parts.database, SMALL)
    await bring(api.parts.database, LOOPING, SMALL)
    run_id = await start(api, "looping", message="long")
    await ended(api, run_id)
    whole = (await api.get(f"/runs/{run_id}/timeline")).json()
    spans = {span["path"]: span for span in whole["spans"]}
    assert whole["complete"] is True
    assert (spans["rounds"]["children"], spans["rounds"]["collapsed"]) == (ROUNDS, True)
    assert spans["rounds"]["child_outcomes"] == {"done": ROUNDS}
    assert "rounds/1" not in spans
    assert [path for path in spans if path.startswith("inner")] == ["inner", "inner/>one", "inner/>two"]
    cursor: str | None = None
    rounds: list[str] = []
    while True:
        params = {"parent": "rounds", "limit": 15, **({"cursor": cursor} if cursor else {})}
        page = (await api.get(f"/runs/{run_id}/timeline", params=params)).json()
        assert len(page["spans"]) <= 15
        rounds += [span["path"] for span in page["spans"] if span["depth"] == 0]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert rounds == [f"rounds/{number}" for number in range(1, ROUNDS + 1)]
    problem_of(await api.get(f"/runs/{run_id}/timeline?cursor=x"), 422, "invalid_request")


async def test_the_open_parts_of_a_long_step_are_counted_without_showing_them(api: Api) -> None:
    await bring(api.parts.database, ASKING)
    run_id = await paused(api, "asking")
    each = by_path(await api.get(f"/runs/{run_id}/timeline"))["each"]
    assert (each["children"], each["collapsed"], each["outcome"]) == (ROUNDS, True, "waiting")
    assert each["child_outcomes"] == {"waiting": ROUNDS}
    waits = (await api.get(f"/runs/{run_id}")).json()["waiting_for"]
    answered = waits[3]["path"]
    await api.post(f"/runs/{run_id}/resume", {"step": answered, "response": "yes"})

    async def counted() -> bool:
        each = by_path(await api.get(f"/runs/{run_id}/timeline"))["each"]
        return each["child_outcomes"] == {"done": 1, "waiting": ROUNDS - 1}

    await eventually(counted, "the answered part to be done")
    shown: dict[str, dict[str, Any]] = {}
    cursor: str | None = ""
    while cursor is not None:
        query = f"parent=each&limit=31{cursor and '&cursor=' + cursor}"
        page = (await api.get(f"/runs/{run_id}/timeline?{query}")).json()
        assert not set(shown) & {span["path"] for span in page["spans"]}
        shown |= {span["path"]: span for span in page["spans"]}
        cursor = page["next_cursor"]
    parts = {path: span for path, span in shown.items() if span["depth"] == 0}
    assert len(parts) == ROUNDS
    assert {span["kind"] for span in parts.values()} == {"round"}
    assert [path for path, span in parts.items() if span["outcome"] == "done"] == [answered.rpartition("/")[0]]
    await api.post(f"/runs/{run_id}/cancel")
    await ended(api, run_id)
    each = by_path(await api.get(f"/runs/{run_id}/timeline"))["each"]
    assert (each["outcome"], each["children"]) == ("abandoned", ROUNDS)


async def test_the_graph_of_an_orchestration_and_of_a_run(api: Api) -> None:
    await bring(api.parts.database, SMALL)
    await bring(api.parts.database, LOOPING, SMALL)
    graph = (await api.get("/orchestrations/looping/graph")).json()
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert graph["nodes"][0]["id"] == "first"
    assert nodes["body"]["container"] == "rounds"
    assert nodes["inner"]["uses"] == {"orchestration": "small"}
    edges = {(edge["source"], edge["target"]): edge for edge in graph["edges"]}
    assert (edges["check", "rounds"]["kind"], edges["check", "rounds"]["label"]) == ("case", "true")
    assert edges["rounds", "body"]["kind"] == "body"
    assert edges["body", "rounds"]["back"] is True
    assert not edges["first", "check"]["back"]
    versions = (await api.get("/orchestrations/looping/versions")).json()["versions"]
    assert graph["version"] == versions[0]["version"]
    assert (await api.get(f"/orchestrations/looping/graph?version={graph['version']}")).json() == graph
    problem_of(await api.get("/orchestrations/none/graph"), 404, "unknown_definition")
    run_id = await start(api, "looping", message="short")
    await ended(api, run_id)
    run = (await api.get(f"/runs/{run_id}/graph")).json()
    assert run["graph"] == graph
    assert set(run["steps"]) == {"first", "check", "inner"}
    assert (run["steps"]["first"]["executions"], run["steps"]["first"]["outcome"]) == (1, "done")
    taken = {(graph["edges"][n]["source"], graph["edges"][n]["target"]) for n in run["taken"]}
    assert ("check", "inner") in taken
    assert ("check", "rounds") not in taken
    inner = (await api.get(f"/runs/{run_id}/graph?path=inner")).json()
    assert (inner["graph"]["orchestration_id"], set(inner["steps"])) == ("small", {"one", "two"})
    problem_of(await api.get(f"/runs/{run_id}/graph?path=first"), 404, "not_found")
    task = await api.run("greet")
    problem_of(await api.get(f"/runs/{task['run_id']}/graph"), 404, "not_found")


async def test_events_are_read_backwards_and_filtered(api: Api) -> None:
    await bring(api.parts.database, SMALL)
    run_id = await start(api, "small")
    await ended(api, run_id)
    everything = (await api.get(f"/runs/{run_id}/events")).json()["events"]
    numbers = [event["seq"] for event in everything]
    backwards: list[int] = []
    before: int | None = None
    while True:
        params = {"order": "desc", "limit": 3, **({"before": before} if before else {})}
        page = (await api.get(f"/runs/{run_id}/events", params=params)).json()
        backwards += [event["seq"] for event in page["events"]]
        before = page["next_before"]
        if before is None or not page["events"]:
            break
    assert backwards == numbers[::-1]
    typed = (await api.get(f"/runs/{run_id}/events?type=step_start&type=step_complete")).json()
    assert {event["type"] for event in typed["events"]} == {"step_start", "step_complete"}
    assert typed["next_after"] == numbers[-1]
    inside = (await api.get(f"/runs/{run_id}/events?path_prefix=two")).json()["events"]
    assert {event["path"] for event in inside} == {"two"}
    between = (await api.get(f"/runs/{run_id}/events?after=2&before=5")).json()["events"]
    assert [event["seq"] for event in between] == [3, 4]


async def test_large_values_are_cut_and_read_as_a_whole(api: Api) -> None:
    await bring(api.parts.database, SMALL)
    run_id = await start(api, "small", message="m" * 500)
    await ended(api, run_id)
    events = (await api.get(f"/runs/{run_id}/events?max_value_bytes=200")).json()["events"]
    cut = next(event for event in events if event["type"] == "orchestration_complete")["final_state"]
    whole = await api.client.get(cut["href"])
    assert whole.json()["user_input"] == "m" * 500
    assert len(whole.content) == cut["$cut"]
    assert whole.headers["content-disposition"] == f'attachment; filename="{run_id}.json"'
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert (await api.get(f"/runs/{run_id}/values/steps/output/two")).json() == "2"
    assert (await api.get(f"/runs/{run_id}/values/result")).status_code == 200
    for ref in ("events/99/x", "events/1/none", "steps/output/none", "steps/secret/two", "plan", "events/x/y"):
        problem_of(await api.get(f"/runs/{run_id}/values/{ref}"), 404, "not_found")


@pytest.mark.parametrize("view", ["timeline", "graph", "events", "values/input", "values/steps/output/one"])
async def test_another_tenant_sees_nothing_of_a_run(api: Api, view: str) -> None:
    await bring(api.parts.database, SMALL)
    await create_tenant(api.parts.database, "acme", actor="test")
    acme = {"Authorization": f"Bearer {await api.key('operator', tenant='acme')}"}
    run_id = await start(api, "small")
    await ended(api, run_id)
    problem_of(await api.get(f"/runs/{run_id}/{view}", headers=acme), 404, "run_not_found")
    problem_of(await api.get("/orchestrations/small/graph", headers=acme), 404, "unknown_definition")
    problem_of(await api.client.get(f"{API}/orchestrations/small/graph?tenant=default", headers=acme), 404, "not_found")


async def test_lists_show_what_the_models_of_each_run_have_used(api: Api) -> None:
    loaded = parse_bodies(
        {"agents": [{"id": "helper", "model": "scripted", "answers": [{"say": "Hello.", "tokens": 12}]}]}
    )
    await sync_definitions(api.parts.database, "default", loaded, actor="test")
    answered = (await api.post("/agents/helper/run", {"message": "hello"})).json()["run_id"]
    await ended(api, answered)
    task = (await api.run("greet"))["run_id"]
    listed = {run["run_id"]: run for run in (await api.get("/runs")).json()["runs"]}
    status = (await api.get(f"/runs/{answered}/status")).json()
    assert listed[answered]["total_tokens"] == status["total_tokens_used"] > 0
    assert listed[answered]["total_cost_usd"] == status["total_cost_usd"]
    assert (listed[task]["total_tokens"], listed[task]["total_cost_usd"]) == (None, None)
    one = (await api.get(f"/runs/{answered}")).json()
    assert one["total_tokens"] == listed[answered]["total_tokens"]
    # The calls of a step are spans inside it.
    spans = (await api.get(f"/runs/{answered}/timeline?parent=answer")).json()["spans"]
    assert [(span["kind"], span["outcome"]) for span in spans] == [("model", "done")]
    assert spans[0]["tokens"] == status["total_tokens_used"]
