"""Orchestrations whose worker is killed: another one continues after the last finished step, in every branch."""

from __future__ import annotations

from runlane import Status
from tests.chaos.cluster import Cluster
from tests.chaos.flows import Flows, ask, fan, human, in_a_row, say, worker_of
from tests.scale import scaled

KILLS = scaled(2, 5)
FIVE = [f"s{number}" for number in range(1, 6)]


async def test_a_kill_in_step_3_of_5_repeats_that_step_alone(cluster: Cluster) -> None:
    flows = Flows(cluster)
    flows.script({"s3": 1.5})
    await cluster.start_workers(2)
    for _ in range(KILLS):
        before = flows.counts()
        run_id = await flows.start(in_a_row(*(ask(name) for name in FIVE)))
        first = await flows.called("s3", before["s3"] + 1)
        worker_of(cluster, first["pid"]).kill()
        again = await flows.called("s3", before["s3"] + 2)
        assert again["pid"] != first["pid"]
        assert again["key"] == first["key"], "the repeated call must be known as the same one"
        await cluster.start_workers(1)
        ended = await cluster.app.wait(run_id, 30)
        assert ended.status is Status.COMPLETED
        assert ended.state is not None
        assert {ended.state[name] for name in FIVE} == {"said", "said s3"}
        assert flows.counts() - before == {"s1": 1, "s2": 1, "s3": 2, "s4": 1, "s5": 1}
        assert await flows.paths(run_id, "step_complete") == FIVE
        await flows.check_once(run_id)
    await cluster.check_story()


async def test_three_branches_run_at_the_same_time(cluster: Cluster) -> None:
    """All of them have called the model before one has its answer."""
    flows = Flows(cluster)
    flows.script(dict.fromkeys("abc", 55.0))
    await cluster.start_workers(1)
    run_id = await flows.start(fan(*([ask(name)] for name in "abc"), after=say("join")))
    for name in "abc":
        await flows.called(name)
    assert await flows.done(run_id) == []
    await cluster.app.cancel(run_id)
    assert (await cluster.app.wait(run_id, 60)).status is Status.CANCELLED
    assert flows.counts() == dict.fromkeys("abc", 1)


async def test_branches_that_were_finished_before_a_kill_are_not_run_again(cluster: Cluster) -> None:
    flows = Flows(cluster)
    flows.script({"c": 3})
    await cluster.start_workers(2)
    run_id = await flows.start(
        fan([ask("a"), ask("a2")], [ask("b")], [ask("c")], after=say("join", "{state.a2} {state.b} {state.c}"))
    )
    first = await flows.called("c")
    await flows.recorded(run_id, "a", "a2", "b")
    worker_of(cluster, first["pid"]).kill()
    again = await flows.called("c", 2)
    assert again["pid"] != first["pid"]
    ended = await cluster.app.wait(run_id, 30)
    assert ended.result == "said said said c"
    assert flows.counts() == {"a": 1, "a2": 1, "b": 1, "c": 2}
    await flows.check_once(run_id)
    await cluster.check_story()


async def test_a_question_in_one_branch_lets_the_others_finish_and_only_that_branch_continues(cluster: Cluster) -> None:
    flows = Flows(cluster)
    flows.script({"a": 0.5, "b": 1.0})
    [first] = await cluster.start_workers(1)
    run_id = await flows.start(
        fan([human("q"), ask("after")], [ask("a")], [ask("b")], after=say("join", "{state.a} {state.b} {state.after}"))
    )
    await flows.has(run_id, Status.PAUSED)
    assert flows.counts() == {"a": 1, "b": 1}
    assert sorted(await flows.done(run_id)) == ["a", "b"]
    first.kill()
    [second] = await cluster.start_workers(1)
    await cluster.app.resume(run_id, {"decision": "approve"})
    ended = await cluster.app.wait(run_id, 30)
    assert ended.result == "said a said b said"
    assert flows.counts() == {"a": 1, "b": 1, "after": 1}
    assert [call["pid"] for call in flows.calls() if call["step"] == "after"] == [second.pid]
    await flows.check_once(run_id)
    await cluster.check_story()
