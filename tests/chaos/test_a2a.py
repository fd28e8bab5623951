"""The A2A client while processes die: the task is the run, so its answer is complete after any kill."""

from __future__ import annotations

from typing import Any

from a2a.client import A2AClientError
from a2a.types import a2a_pb2 as a2a
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from runlane.testing import RedisServer
from tests.acceptance.api.test_a2a import a2a_client, answer_of, message, sent, state_of
from tests.chaos.cluster import MakeCluster
from tests.chaos.test_openai import TEXT, cluster_of


async def test_a_worker_killed_in_mid_stream_leaves_a_complete_answer(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster, key = await cluster_of(make_cluster, chaos_redis)
    [first] = await cluster.start_workers(1)
    [url] = await cluster.start_servers(1)
    responses: list[dict[str, Any]] = []
    killed = False
    async with a2a_client(url, key, "writer") as client:
        async for response in client.send_message(message("write")):
            responses.append(MessageToDict(response))
            if not killed and len("".join(answer_of(responses))) > 40:
                killed = True
                first.kill()
                await cluster.start_workers(1)
    assert killed
    assert (state_of(responses), answer_of(responses)) == ("COMPLETED", [TEXT])
    rows = await cluster.rows("select attempt, status from runs")
    assert [(row["attempt"], row["status"]) for row in rows] == [(2, "completed")]
    await cluster.check_story()


async def test_a_client_resubscribes_at_another_server_after_its_server_was_killed(
    make_cluster: MakeCluster, chaos_redis: RedisServer
) -> None:
    cluster, key = await cluster_of(make_cluster, chaos_redis)
    await cluster.start_workers(1)
    victim, other = cluster.start_server(), cluster.start_server()
    urls = [await cluster.url_of(victim), await cluster.url_of(other)]
    responses: list[dict[str, Any]] = []
    request = message("write")
    async with a2a_client(urls[0], key, "writer") as client:
        try:
            async for response in client.send_message(request):
                responses.append(MessageToDict(response))
                if len("".join(answer_of(responses))) > 40:
                    victim.kill()
        except A2AClientError:
            pass
    task_id = responses[0]["task"]["id"]
    assert state_of(responses) != "COMPLETED"
    async with a2a_client(urls[1], key, "writer") as client:
        again = await _rest_of(client, task_id)
        assert (state_of(again), answer_of(again)) == ("COMPLETED", [TEXT])
        # A client that knows nothing of the task sends its message again, and gets the same task.
        repeated = await sent(client, request)
        assert (repeated[0]["task"]["id"], state_of(repeated)) == (task_id, "COMPLETED")
    assert len(await cluster.rows("select id from runs")) == 1
    await cluster.check_story()


async def _rest_of(client: Any, task_id: str) -> list[dict[str, Any]]:
    """Return the updates of a task; the task itself if it has ended meanwhile, which is an error of the protocol."""
    try:
        return [MessageToDict(item) async for item in client.subscribe(a2a.SubscribeToTaskRequest(id=task_id))]
    except UnsupportedOperationError:
        return [{"task": MessageToDict(await client.get_task(a2a.GetTaskRequest(id=task_id)))}]
