"""A loop of thousands of steps: neither its memory nor its time per step grows, and a takeover reads little of it."""

from __future__ import annotations

from runlane import Status
from runlane.orchestration.snapshots import SNAPSHOT_EVERY
from tests.chaos.cluster import Cluster, eventually
from tests.chaos.flows import Flows, Steps
from tests.scale import SOAK, scaled

STEPS = scaled(3_000, 10_000)
# The four printed steps of a round cost little, so that the test is about the number of steps.
A_ROUND = 5
ROUNDS = STEPS // A_ROUND


def loop() -> tuple[list[Steps], Steps]:
    body: list[Steps] = [
        {"id": "count", "type": "transform", "transform_code": "result = state.count + 1", "output_key": "count"}
    ]
    body += [
        {"id": f"p{n}", "type": "print", "print_content": "round {state.count}", "output_key": f"p{n}"}
        for n in range(1, A_ROUND)
    ]
    whole = {
        "id": "loop", "type": "loop", "while_condition": f"state.count < {ROUNDS}", "max_rounds": ROUNDS + 1,
        "collect": False, "loop_step_ids": [step["id"] for step in body],
    }  # fmt: skip
    return [whole, *body], {"count": {"type": "integer", "default": 0}}


async def start(flows: Flows) -> str:
    steps, schema = loop()
    return await flows.start(steps, state_schema=schema, max_total_turns=2 * STEPS)


async def reached(cluster: Cluster, records: int) -> None:
    async def there() -> bool:
        return (await cluster.rows("select coalesce(max(no), 0) as n from run_steps"))[0]["n"] >= records

    await eventually(there, f"{records} records", 120)


async def test_a_loop_of_thousands_of_steps_stays_small_and_a_takeover_in_it_is_quick(cluster: Cluster) -> None:
    flows = Flows(cluster)
    workers = {await cluster.online(worker): worker for worker in await cluster.start_workers(2)}
    run_id = await start(flows)
    records = STEPS + ROUNDS
    await reached(cluster, records // 5)
    [row] = await cluster.rows("select worker_id from runs")
    first = workers.pop(row["worker_id"])
    [second] = workers.values()
    early = first.resident_mb
    await reached(cluster, records // 2)
    late = first.resident_mb
    first.kill()
    run = await cluster.app.wait(run_id, 120)
    assert run.status is Status.COMPLETED
    assert run.state is not None
    assert run.state["count"] == ROUNDS
    # A copy of the state or of the path for each step would be far more than this.
    assert late - early < 20, (early, late)
    assert second.resident_mb - late < 40, (late, second.resident_mb)

    done = await cluster.rows(
        "select count(*) as n, count(distinct path) as paths from run_steps where outcome = 'done'"
    )
    assert done == [{"n": records + 1, "paths": records + 1}]
    completed = await flows.paths(run_id, "step_complete")
    assert len(completed) == len(set(completed)) == STEPS
    # The new worker completed these again: fewer than between two snapshots, and those that were in flight.
    [snapshot] = await cluster.rows("select no, length(output) as size from run_steps where path = '_cursor'")
    assert snapshot["no"] > records - 3 * SNAPSHOT_EVERY
    assert snapshot["size"] < 5000
    [taken] = await cluster.rows("select at from run_events where type = 'worker_picked_up' and attempt = 2")
    [went_on] = await cluster.rows("select min(ended_at) as at from run_steps where attempt = 2")
    print("seconds from the claim to the next record:", (went_on["at"] - taken["at"]) / 1e6)
    assert not SOAK or (went_on["at"] - taken["at"]) / 1e6 < 3
    quarters = await cluster.rows(
        "select part, (max(ended_at) - min(ended_at)) / 1e3 / count(*) as ms from (select ended_at, ntile(4) over "
        f"(order by no) as part from run_steps where path <> '_cursor' and no <= {records // 2}) s "
        "group by part order by part"
    )
    print("ms per record in the quarters before the kill:", [round(float(row["ms"]), 2) for row in quarters])
    assert not SOAK or float(quarters[-1]["ms"]) < 5 * float(quarters[0]["ms"])
    await cluster.check_story()
