"""A run whose events were cut, as the command line and the client show it: the gap once, and then its end."""

from __future__ import annotations

import json
from pathlib import Path

from runlane import Client, LiveEvent
from tests.harness import eventually
from tests.server_process import command, serving, write_tasks

CUT_AT_ONCE = {"RUNLANE_EVENTS_RETENTION_DAYS": "0.000001", "RUNLANE_RETENTION_SECONDS": "0.1"}


async def test_the_command_line_and_the_client_report_a_cut(tmp_path: Path) -> None:
    database = write_tasks(tmp_path)
    with serving(tmp_path, {**database, **CUT_AT_ONCE}, "dev", "tasks:app") as server:
        async with Client(server.url) as client:
            run_id = (await client.enqueue("talk", {"count": 3})).run_id
            last = (await client.wait(run_id, 60)).last_seq

            async def cut() -> bool:
                return (await client.get(run_id)).first_seq == last

            await eventually(cut, "the cut")
            gap, end = [event async for event in client.stream(run_id)]
            assert gap == LiveEvent(run_id, "truncated", 0, {"first_seq": last})
            assert (end.seq, end.type) == (last, "done")
            assert [line.index async for line in client.log_lines(run_id, follow=True)] == [last - 1]
            logs = await client.logs(run_id)
            assert (logs.truncated, logs.first_index, logs.complete) == (True, last - 1, True)
        # Through the server and from the database.
        for where in ({"RUNLANE_URL": server.url}, database):
            shown = command(tmp_path, "runs", "tail", run_id, **where)
            assert shown.returncode == 0, shown.stderr
            first, second, result = shown.stdout.splitlines()
            assert first == f"events before {last} are no longer kept"
            assert second.split()[2:] == [str(last), "done", "completed"]
            assert result == "result  3"
            as_json = command(tmp_path, "runs", "tail", run_id, "--json", **where)
            assert json.loads(as_json.stdout.splitlines()[0])["first_seq"] == last
